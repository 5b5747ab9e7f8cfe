"""Version 0.1 from the repository's own history, and today's tree: the same experiments in both.

Each tree runs in a process of its own. What version 0.1 gave is remembered in pytest's cache, for
this processor and these versions of torch and numpy, which decide the last bits.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w

from differential import federations
from differential.cases import Case
from differential.readout import Items, differences, read_run

COMMIT = "8547dbf10c93c320c1236bf09f3a9b2eec2f931c"
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TODAY = ROOT / "src"
REFUSED = 2  # the exit code of `pgfed` for what the user can mend
SECONDS = 800  # that a group may take under one tree

Document = dict[str, Any]


@dataclass(frozen=True)
class Ran:
    """One experiment under one tree: the complete document, and what came out."""

    document: Document
    items: Items


def no_history() -> str | None:
    """Why version 0.1 cannot be had here, if there is a good reason: a source archive has no
    history, and a shallow clone only its end. Any other trouble with git is an error."""
    if not (ROOT / ".git").exists():
        return "no git history here (a source archive)"
    if _git("cat-file", "-e", f"{COMMIT}^{{commit}}").returncode == 0:
        return None
    shallow = _git("rev-parse", "--is-shallow-repository")
    if shallow.stdout.strip() == b"true":
        return f"a shallow clone: it does not reach back to {COMMIT[:7]}"
    raise RuntimeError(f"git does not know {COMMIT[:7]}: {shallow.stderr.decode()}")


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=False)


class Bench:
    """Runs groups of cases under both trees; ``place`` is for files, ``memory`` outlives us."""

    def __init__(self, place: Path, memory: Path) -> None:
        self._place = place
        self._memory = memory
        federations.write(place)

    def differences(
        self, cases: Sequence[Case], changes: Mapping[str, Document] | None = None
    ) -> list[str]:
        """One line for each item in which today's tree differs from 0.1.

        ``changes``: documents that today's tree gets instead of 0.1's, by case.
        """
        old = self.old(cases)
        documents = {name: ran.document for name, ran in old.items()} | dict(changes or {})
        new = self._run(TODAY, cases, documents)
        return [
            f"{name}: {line}"
            for name in old
            for line in differences(old[name].items, new[name].items)
        ]

    def old(self, cases: Sequence[Case]) -> dict[str, Ran]:
        """What version 0.1 makes of the cases; from memory, if it has run them here before."""
        remembered = self._memory / f"{self._key(cases)}.json"
        if remembered.is_file():
            content = json.loads(remembered.read_text(encoding="utf-8"))
            return {name: Ran(**ran) for name, ran in content.items()}
        ran = self._run(self._version_0_1, cases, {case.name: case.document for case in cases})
        for case in cases:
            _check_complete(case, ran[case.name])
        part = remembered.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps({n: asdict(r) for n, r in ran.items()}), encoding="utf-8")
        part.replace(remembered)
        return ran

    @cached_property
    def _version_0_1(self) -> Path:
        """The sources of 0.1."""
        archive = _git("archive", COMMIT, "src")
        archive.check_returncode()
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(self._place / "version-0.1", filter="data")
        return self._place / "version-0.1" / "src"

    def _key(self, cases: Sequence[Case]) -> str:
        """Of all that decides what 0.1 gives, and how it is read."""
        digest = hashlib.sha256()
        for text in (COMMIT, *_machine(), *(repr((c.document, c.lost)) for c in cases)):
            digest.update(text.encode() + b"\0")
        ours = [HERE / f"{name}.py" for name in ("driver", "readout", "own_models")]
        for path in [*ours, *sorted(self._place.glob("*.npz"))]:
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def _run(
        self, src: Path, cases: Sequence[Case], documents: Mapping[str, Document]
    ) -> dict[str, Ran]:
        with tempfile.TemporaryDirectory(dir=self._place) as name:
            folder = Path(name)
            results = self._drive(src, folder, cases, documents)
            out: dict[str, Ran] = {}
            for case, (code, said) in zip(cases, results, strict=True):
                wanted = REFUSED if case.refused else 0
                assert code == wanted, f"{case.name} under {src}: exit code {code}: {said}"
                out[case.name] = _read(folder / case.name, case, documents[case.name])
            return out

    def _drive(
        self, src: Path, folder: Path, cases: Sequence[Case], documents: Mapping[str, Document]
    ) -> list[tuple[int, str]]:
        """Each case's exit code, and what was said on stderr."""
        job = []
        for case in cases:
            file = folder / f"{case.name}.toml"
            file.write_text(tomli_w.dumps(documents[case.name]), encoding="utf-8")
            place = {"file": str(file), "out": str(folder / case.name), "data": str(self._place)}
            job.append({**place, "lost": case.lost})
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(HERE / "driver.py"), str(folder / "job.json")],
            cwd=folder,
            env=_environment(src),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"the driver failed under {src}:\n{done.stderr}"
        told = json.loads(done.stdout.splitlines()[-1])
        assert Path(told["package"]).is_relative_to(src), f"{told['package']} is not of {src}"
        return [(code, said) for code, said in told["results"]]


def _environment(src: Path) -> dict[str, str]:
    paths = os.pathsep.join([str(src), str(HERE)])
    kept = {k: v for k, v in os.environ.items() if k != "PGFED_DATA"}
    return kept | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _read(folder: Path, case: Case, asked: Document) -> Ran:
    """The run folder; its document under the data's own name, which holds in any folder."""
    if case.refused:
        return Ran(asked, {})
    document = tomllib.loads((folder / "experiment.toml").read_text(encoding="utf-8"))
    document["data"]["dataset"] = asked["data"]["dataset"]
    return Ran(document, read_run(folder, asked))


def _check_complete(case: Case, ran: Ran) -> None:
    """Nothing but the methods' tables was left for 0.1 to fill in: new defaults cannot hide."""
    asked, resolved = ({**d, "method": None} for d in (case.document, ran.document))
    assert asked == resolved, f"{case.name}: not every key is named: {asked} became {resolved}"


def _machine() -> list[str]:
    """What else decides the last bits."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = f"model name: {platform.processor()}"
    facts = {line for line in text.splitlines() if line.startswith(("model name", "flags"))}
    return [*sorted(facts), *(version(name) for name in ("torch", "numpy"))]
