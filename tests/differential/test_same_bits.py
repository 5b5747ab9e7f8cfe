"""Today's tree gives the bits of version 0.1: models, the matrix A, and the history's numbers."""

from __future__ import annotations

import pytest

from differential.cases import DEFAULT, METHODS, NIGHTLY, VARIANTS, VARIED, Case
from differential.federations import FEWEST
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
def test_every_variant_differs_from_its_method(bench: Bench) -> None:
    items = bench.old(NIGHTLY["variants"])[VARIED.name].items
    for variant, (base, _) in VARIANTS.items():
        own, plain = (
            {what.partition(": ")[2]: bits for what, bits in items.items() if what.startswith(name)}
            for name in (f"{variant}, ", f"{base}, ")
        )
        assert own.keys() == plain.keys()
        assert own != plain, f"{variant} does what {base} does: it tests nothing"
