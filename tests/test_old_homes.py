"""What 0.1 offered at `pgfed.core` and `pgfed.task` is still there, and says where it went."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from importlib import import_module

import pytest

OLD = {
    "pgfed.core": (
        *("Algorithm", "ClientInfo", "FederationInfo", "Mean", "Message", "Rng", "State"),
        *("TrainConfig", "Update", "generator", "sgd"),
    ),
    "pgfed.task": ("Layout", "Task"),
}
NAMES = [(home, name) for home, names in OLD.items() for name in names]


def value_and_warning(home: str, name: str) -> tuple[object, str]:
    with pytest.warns(DeprecationWarning, match=f"{name} is now") as caught:
        value = getattr(import_module(home), name)
    (warning,) = caught
    assert warning.filename == __file__, "it points at the line that asks"
    return value, str(warning.message)


@pytest.mark.parametrize(("home", "name"), NAMES)
def test_the_warning_names_the_new_home(home: str, name: str):
    value, said = value_and_warning(home, name)
    found = re.fullmatch(
        rf"{re.escape(home)}\.{name} is now (\S+)\.(\w+); {re.escape(home)} goes with version 0\.3",
        said,
    )
    assert found is not None, said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert getattr(import_module(found[1]), found[2]) is value


@pytest.mark.parametrize("home", OLD)
def test_all_that_is_listed_is_there(home: str):
    module = import_module(home)
    listed = dir(module)
    assert set(OLD[home]) <= set(listed)
    for name in listed:
        value_and_warning(home, name)


@pytest.mark.parametrize("name", ["batches", "mean_gradient"])
def test_what_is_gone_says_what_to_write(name: str):
    with pytest.raises(AttributeError, match=rf"pgfed\.core\.{name} is gone; write task\.{name}"):
        getattr(import_module("pgfed.core"), name)


@pytest.mark.parametrize("home", OLD)
def test_nothing_else_is(home: str):
    with pytest.raises(AttributeError, match=rf"module '{home}' has no attribute 'nothing'"):
        _ = import_module(home).nothing


def test_importing_them_is_silent_and_light():
    """The warning is for those who use a name, and torch for those who need it."""
    code = (
        "import sys, pgfed.core, pgfed.task\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
        "from pgfed.core import sgd\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stderr.count("DeprecationWarning: pgfed.core.sgd is now pgfed.methods") == 1
