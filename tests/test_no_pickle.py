"""Nothing in the package runs code that came in as data: no pickle, no eval."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pgfed

SOURCES = sorted(Path(pgfed.__file__).parent.rglob("*.py"))
REPOSITORY = Path(__file__).parent.parent
EXAMPLES = sorted(p for d in ("examples", "benchmarks") for p in (REPOSITORY / d).rglob("*.py"))

FORBIDDEN = {
    "eval",
    "exec",
    "pickle.load",
    "pickle.loads",
    "cPickle.load",
    "_pickle.load",
    "cloudpickle.load",
    "cloudpickle.loads",
    "dill.load",
    "dill.loads",
    "joblib.load",
    "marshal.load",
    "marshal.loads",
    "pandas.read_pickle",
    "pd.read_pickle",
    "shelve.open",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "os.system",
}


def calls(source: str) -> Iterator[tuple[int, str, dict[str, object]]]:
    """(line, dotted name of what is called, its constant keyword arguments)."""
    tree = ast.parse(source)
    # `from pickle import load as read` is a call of pickle.load all the same.
    names = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    names |= {
        alias.asname: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.asname
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            first, dot, rest = ast.unparse(node.func).partition(".")
            given = {
                k.arg: k.value.value if isinstance(k.value, ast.Constant) else ...
                for k in node.keywords
                if k.arg
            }
            yield node.lineno, names.get(first, first) + dot + rest, given


def problems(source: str) -> list[str]:
    found = []
    for line, name, given in calls(source):
        unsafe = (
            name in FORBIDDEN
            or (name == "torch.load" and given.get("weights_only") is not True)
            or (name in ("numpy.load", "np.load") and given.get("allow_pickle", False) is not False)
            or (name.startswith("subprocess.") and given.get("shell", False) is not False)
        )
        if unsafe:
            found.append(f"line {line}: {name}")
    return found


def test_the_search_finds_what_it_is_for() -> None:
    assert SOURCES
    for bad in (
        "import pickle\npickle.load(f)",
        "import pickle as p\np.loads(b)",
        "from pickle import load as read\nread(f)",
        "import torch\ntorch.load(f)",
        "import torch\ntorch.load(f, weights_only=False)",
        "import torch\ntorch.load(f, weights_only=wanted)",
        "import numpy as np\nnp.load(f, allow_pickle=True)",
        "eval('1')",
        "exec(code)",
        "import yaml\nyaml.load(f)",
        "import subprocess\nsubprocess.run(c, shell=True)",
    ):
        assert problems(bad), bad
    for good in (
        "import torch\ntorch.load(f, weights_only=True)",
        "import numpy as np\nnp.load(f, allow_pickle=False)\nnp.load(g)",
        "model.eval()",
        "import json\njson.load(f)",
    ):
        assert not problems(good), good


@pytest.mark.parametrize("path", [*SOURCES, *EXAMPLES], ids=lambda p: p.name)
def test_no_code_from_data(path: Path) -> None:
    assert problems(path.read_text(encoding="utf-8")) == []
