"""What a round costs on Flower beyond the clients' training.

Three sites and a server as processes of their own on loopback, with TLS and node keys, as a
federation is started from the command line; a small model on a few digits, so that what is left
is Flower's transport and ours. The processes and the folder are those of tests/federation.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.text import show, table
from pgfed.results.formats import size

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

WARM = 2  # rounds: connections are up, and auxiliary gradients travel


def run(rounds: int = 12) -> Iterator[str]:
    from federation import small
    from federation.running import Running

    with (
        tempfile.TemporaryDirectory(prefix="pgfed-bench-") as place,
        Running(Path(place), rounds=rounds, cohort=1.0, methods=["pgfed"]) as running,
    ):
        running.all().finish()
        history = small.history(running.folder, "pgfed")[WARM:]
    # Sites train side by side: the slowest one's time is the round's.
    training = median(max(r["client_seconds"].values()) for r in history)
    whole = median(r["seconds"] for r in history)
    beyond = median(r["seconds"] - max(r["client_seconds"].values()) for r in history)
    sent = median(r["bytes_down"] + r["bytes_up"] for r in history)
    yield from table(
        ("seconds per round", "training", "beyond it", "sent"),
        [(f"{whole:.2f}", f"{training:.2f}", f"{beyond:.2f}", size(sent))],
    )
    yield f"{small.SITES} sites, PGFed, training and scoring of all; medians of {len(history)}."


if __name__ == "__main__":
    show(run())
