"""docs/your-data.md: the walk with tables, from its first command to its last."""

from __future__ import annotations

import csv
import re
import runpy
import shlex
from pathlib import Path

from cli.conftest import pgfed as pgfed  # the command line, as a fixture
from pgfed.data.tables.schema import load

ROOT = Path(__file__).parents[2]


def blocks(language: str) -> list[str]:
    page = (ROOT / "docs/your-data.md").read_text(encoding="utf-8")
    text = page[page.index("## Tables, step by step") :]  # tests/jobs does what is before
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_documented_walk(pgfed, tmp_path: Path) -> None:
    (schema,) = blocks("toml")
    (tmp_path / "schema.toml").write_text(schema)
    for line in "".join(blocks("sh")).splitlines():
        program, *words = shlex.split(line)
        if program == "python":
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
            continue
        quick = ["--set", "engine.backend=serial"] if words[0] == "run" else []
        done = pgfed(*words, *quick)
        assert done.code == 0, f"{line}: {done.err}"
        if words[:2] == ["data", "schema"]:
            assert "chargeback equals the target fraud" in done.err
            (tmp_path / "proposed.toml").write_text(done.out)
    proposed, ours = (load(tmp_path / name)[0] for name in ("proposed.toml", "schema.toml"))
    assert (proposed.target, proposed.group, proposed.drop) == (ours.target, ours.group, ours.drop)
    assert proposed.categorical == ours.categorical
    with (tmp_path / "predictions.csv").open() as file:
        found = list(csv.DictReader(file))
    assert len(found) == 20
    assert {row["class"] for row in found} <= {"no", "yes"}
    (python,) = blocks("python")
    exec(python, {})
