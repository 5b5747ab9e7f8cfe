"""A federation for a long time, with a fault every so many rounds.

    PYTHONPATH=tests python -m faults.federation.soak --rounds 500 --out soak.json

Three sites with digits, as processes of their own. Every 20 rounds something happens, of a kind and
to somebody that the seed decides. The run must end by itself with the bits of a run that nobody
disturbed, no reply lost; and no process may grow: its memory in the last hundred rounds is that of
the first hundred.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from federation import small
from federation.running import Running
from federation.test_strangers import knock

EVERY = 20  # rounds between two faults
WARM = 15.0  # seconds after which a process has what it needs
SITES = range(small.SITES)
AROUND = 100  # rounds at each end over which memory is compared
FLAT = 5.0  # percent by which it may differ


def full_disk(pid: int, seconds: float = 5.0) -> None:
    """As there: for a while every write of this process to a file fails."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
    time.sleep(seconds)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


class Soak:
    """One long run; ``say`` is told what happens."""

    def __init__(
        self, place: Path, rounds: int, seed: int, say: Callable[[str], None], every: int = EVERY
    ) -> None:
        self.rounds, self.say, self._every = rounds, say, every
        self.federation = Running(
            place, cohort=1.0, rounds=rounds, evaluate_every=max(1, rounds // 5)
        )
        self._rng = np.random.default_rng(seed)
        self._born: dict[str, float] = {}
        self.faults: list[tuple[int, str]] = []
        self.memory: dict[str, list[tuple[int, float]]] = {}  # role -> (round, MB)
        self.kinds: dict[str, Callable[[], None]] = {
            "a site killed": self._kill_site,
            "a site stopped for 5 s": self._freeze_site,
            "a site told to end": self._end_site,
            "a site cannot write for 5 s": self._stop_writing,
            "the server killed": self._kill_server,
            "the server cannot write for 5 s": self._stop_the_servers_writing,
            "everything killed": self._kill_all,
            "a hundred silent connections": self._knock,
        }

    # -- the whole -----------------------------------------------------------------------------

    def run(self, seconds: float) -> dict[str, Any]:
        """To the end, within this time; what came of it."""
        began = time.monotonic()
        with self.federation as federation:
            for i in SITES:
                self._site(i)
            self._server()
            federation.run("--min-replies", "3", "--round-timeout", "120")
            due = self._every
            while (status := federation.status()).get("state") != "finished":
                assert time.monotonic() - began < seconds, f"round {status.get('round')}"
                assert status.get("state") != "failed", status
                self._measure(status.get("round", 0))
                if status.get("round", 0) >= due < self.rounds:
                    self._disturb(due)
                    due += self._every
                time.sleep(0.5)
            outcome = self._outcome(time.monotonic() - began)
        for role, memory in outcome["memory_mb"].items():
            assert abs(memory["percent"]) < FLAT, (role, memory)
        return outcome

    def _outcome(self, took: float) -> dict[str, Any]:
        folder = self.federation.folder
        small.assert_same_as_serial(folder, "pgfed")
        lost = [r["dropped"] for r in small.history(folder, "pgfed") if r["dropped"]]
        assert not lost, lost
        return {
            "rounds": self.rounds,
            "seconds": round(took),
            "faults": dict(Counter(kind for _, kind in self.faults)),
            "memory_mb": {role: self._ends(role) for role in sorted(self.memory)},
            "bits": "those of an undisturbed simulation",
        }

    def _ends(self, role: str) -> dict[str, float]:
        """Medians over the first and the last rounds, and by how much they differ."""
        seen = self.memory[role]
        first = statistics.median(mb for t, mb in seen if t <= min(AROUND, self.rounds // 2))
        last = statistics.median(mb for t, mb in seen if t > self.rounds - AROUND)
        change = 100 * (last / first - 1)
        return {"first": round(first, 1), "last": round(last, 1), "percent": round(change, 1)}

    def _measure(self, round: int) -> None:
        for name, process in self.federation.processes.items():
            old = time.monotonic() - self._born.get(name, time.monotonic()) > WARM
            if old and process.poll() is None:
                with suppress(OSError):
                    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
                    megabytes = pages * resource.getpagesize() / 2**20
                    self.memory.setdefault(name, []).append((round, megabytes))

    # -- what happens --------------------------------------------------------------------------

    def _disturb(self, round: int) -> None:
        kind = list(self.kinds)[self._rng.integers(len(self.kinds))]
        self.say(f"round {round}: {kind}")
        self.faults.append((round, kind))
        self.kinds[kind]()

    def _site(self, client: int) -> None:
        self.federation.site(client)
        self._born[f"site-{client}"] = time.monotonic()

    def _server(self) -> None:
        self.federation.serve("--resume")
        self._born["server"] = time.monotonic()

    def _one(self) -> int:
        return int(self._rng.integers(small.SITES))

    def _kill_site(self) -> None:
        client = self._one()
        self.federation.kill(f"site-{client}")
        self._site(client)

    def _end_site(self) -> None:
        client = self._one()
        process = self.federation.processes[f"site-{client}"]
        process.terminate()
        assert process.wait(60) == 0
        self._site(client)

    def _freeze_site(self) -> None:
        pid = self.federation.processes[f"site-{self._one()}"].pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(5)
        os.kill(pid, signal.SIGCONT)

    def _stop_writing(self) -> None:
        full_disk(self.federation.processes[f"site-{self._one()}"].pid)

    def _stop_the_servers_writing(self) -> None:
        full_disk(self.federation.processes["server"].pid)

    def _kill_server(self) -> None:
        self.federation.kill("server")
        self._server()

    def _kill_all(self) -> None:
        names = ["server", *(f"site-{i}" for i in SITES)]
        for name in names:
            self.federation.kill(name)
        for i in SITES:
            self._site(i)
        self._server()

    def _knock(self) -> None:
        connections = [knock(self.federation) for _ in range(100)]
        time.sleep(2)
        for connection in connections:
            connection.close()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=500)
    options.add_argument("--every", type=int, default=EVERY, help="rounds between two faults")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--seconds", type=float, default=7200.0, help="the most it may take")
    options.add_argument("--out", type=Path, help="where the outcome is written, as JSON")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgfed-soak-") as place:
        soak = Soak(
            Path(place),
            given.rounds,
            given.seed,
            lambda text: print(text, flush=True),
            given.every,
        )
        outcome = soak.run(given.seconds)
    text = json.dumps(outcome, indent=2)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
