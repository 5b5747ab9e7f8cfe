"""Today's tree gives the bits of version 0.1: models, the matrix A, and the history's numbers."""

from __future__ import annotations

import pytest

from differential.cases import DEFAULT, METHODS, NIGHTLY, VARIANTS, VARIED, Case
from differential.federations import FEWEST
from differential.readout import Items
from differential.trees import Bench

GROUPS = [
    *(pytest.param(cases, id=name) for name, cases in DEFAULT.items()),
    *(pytest.param(c, id=name, marks=pytest.mark.nightly) for name, c in NIGHTLY.items()),
]


@pytest.mark.parametrize("cases", GROUPS)
def test_every_bit_is_that_of_version_0_1(bench: Bench, cases: tuple[Case, ...]) -> None:
    found = bench.differences(cases)
    if found:
        pytest.fail("\n".join([f"{len(found)} items differ from 0.1:", *found]), pytrace=False)


def test_the_methods_lose_a_reply_and_a_client_has_few_samples(bench: Bench) -> None:
    items = bench.old(DEFAULT["methods"])["methods"].items
    for method in METHODS:
        assert items[f"{method}, seed 1: round 2: dropped"] == '["5"]'
        assert f'"{FEWEST}"' in items[f"{method}, seed 1: round 4: cohort"]


@pytest.mark.nightly
def test_rounds_of_the_special_cases_are_special(bench: Bench) -> None:
    """Or they would test what others test: see what each is made for in `cases`."""
    attacked = bench.old(NIGHTLY["attacks"])["krum-noise"].items
    for method in METHODS[1:]:  # of Local's clients nothing leaves, and nobody is left out
        assert attacked[f"{method}, seed 1: round 1: left out"] != "[]", method
    best = bench.old(NIGHTLY["best"])["best"].items
    assert len(set(_all("round of the models", best))) > 1
    silent = bench.old(NIGHTLY["best"])["silence"].items
    for method in METHODS:
        drawn, lost = (silent[f"{method}, seed 1: round 3: {w}"] for w in ("cohort", "dropped"))
        assert drawn == lost
    settings = bench.old(NIGHTLY["settings"])["settings"].items
    assert "null" in _all("mean accuracy", settings)
    assert any(bits != "[]" for bits in _all("dropped", settings))
    assert _all("dropped", settings).count("[]") > len(_all("dropped", settings)) / 2


@pytest.mark.nightly
def test_every_variant_differs_from_its_method(bench: Bench) -> None:
    items = bench.old(NIGHTLY["variants"])[VARIED.name].items
    for variant, (base, _) in VARIANTS.items():
        own, plain = _of(variant, items), _of(base, items)
        assert own.keys() == plain.keys()
        assert own != plain, f"{variant} does what {base} does: it tests nothing"


def _of(method: str, items: Items) -> Items:
    """The items of one method, without its name."""
    found = {what: bits for what, bits in items.items() if what.startswith(f"{method}, ")}
    return {what.partition(", ")[2]: bits for what, bits in found.items()}


def _all(what: str, items: Items) -> list[str]:
    """One item of all methods, seeds and rounds."""
    return [bits for name, bits in items.items() if name.endswith(f": {what}")]
