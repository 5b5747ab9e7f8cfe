"""What a round costs on Flower beyond the clients' training, and what waiting processes take.

Three sites and a server as processes of their own on loopback, with TLS and keys, as a federation
is started from the command line; a small model on a few digits, so that what is left is the
transport. The processes and the folder are those of tests/federation.
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

MOST = 2.0  # seconds beyond training that a round may take
WARM = 2  # rounds: connections are up, and auxiliary gradients travel


def run(rounds: int = 12) -> Iterator[str]:
    from federation import small
    from federation.running import Running, until

    with (
        tempfile.TemporaryDirectory(prefix="pgfed-bench-") as place,
        Running(Path(place), rounds=rounds, cohort=1.0, methods=["pgfed"]) as running,
    ):
        running.all()
        until(lambda: running.are_here(), "all sites are there")
        idle = {name: _memory(p.pid) for name, p in running.processes.items()}
        running.finish()
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
    kept = "kept" if beyond <= MOST else "NOT KEPT"
    yield f"{small.SITES} sites, PGFed, training and scoring of all; medians of {len(history)}."
    yield f"At most {MOST:g} s beyond training: {kept}."
    sites = max(memory for name, memory in idle.items() if name != "server")
    yield f"Idle, the server takes {size(idle['server'])} and a site {size(sites)}, data included."


def _memory(pid: int) -> int:
    """Bytes of this process alone; what it shares with others is divided among them."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * int(text.partition("Pss:")[2].split()[0])


if __name__ == "__main__":
    show(run())
