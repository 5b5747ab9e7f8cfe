"""Variants: a [method.NAME] with a `base` is that method under another name and other settings."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import small_runs
from pgfed.config.experiment import from_dict, load, make_methods
from pgfed.errors import UserError

FIXED = {"base": "pgfed", "alpha_lr": 0.0}


def content(**tables: Any) -> dict[str, Any]:
    return {"methods": ["pgfed", "pgfed-fixed"], "method": {"pgfed-fixed": FIXED, **tables}}


def test_a_variant_is_its_base_with_other_settings() -> None:
    methods, _ = make_methods(from_dict(content()))
    assert type(methods["pgfed-fixed"]) is type(methods["pgfed"])
    assert methods["pgfed-fixed"].alpha_lr == 0.0  # type: ignore[attr-defined]
    assert methods["pgfed"].alpha_lr == 0.01  # type: ignore[attr-defined]


def test_it_takes_over_what_its_base_is_set_to() -> None:
    methods, _ = make_methods(from_dict(content(pgfed={"mu": 0.3, "lr": 0.02, "alpha_lr": 0.5})))
    fixed = methods["pgfed-fixed"]
    assert (fixed.mu, fixed.train.lr, fixed.alpha_lr) == (0.3, 0.02, 0.0)  # type: ignore[attr-defined]


def test_also_from_a_base_that_is_not_run() -> None:
    only = {**content(pgfed={"mu": 0.3}), "methods": ["pgfed-fixed"]}
    methods, resolved = make_methods(from_dict(only))
    assert list(methods) == ["pgfed-fixed"]
    assert methods["pgfed-fixed"].mu == 0.3  # type: ignore[attr-defined]
    assert list(resolved.method) == ["pgfed-fixed"]


def test_the_document_repeats_it() -> None:
    methods, resolved = make_methods(from_dict(content(pgfed={"mu": 0.3, "lr": 0.02})))
    assert resolved.method["pgfed-fixed"]["base"] == "pgfed"
    again = from_dict(tomllib.loads(tomli_w.dumps(resolved.document())))
    assert make_methods(again) == (methods, resolved)


def test_an_own_method_can_be_a_base() -> None:
    own = "pgfed.methods.pgfed:PGFed"
    found = from_dict({"methods": ["mine"], "method": {"mine": {"base": own, "mu": 0.2}}})
    assert make_methods(found)[0]["mine"].mu == 0.2  # type: ignore[attr-defined]


def test_set_reaches_a_variant(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps(content()))
    found = load(path, ["method.pgfed-fixed.mu=0.9"])
    assert make_methods(found)[0]["pgfed-fixed"].mu == 0.9  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"method": {}}, "methods: unknown 'pgfed-fixed' (did you mean"),
        ({"method": {"pgfed-fixed": {"alpha_lr": 0.0}}}, "methods: unknown 'pgfed-fixed'"),
        (content(x={"base": "pgfedd"}), "method.x.base: unknown 'pgfedd' (did you mean 'pgfed'?)"),
        (content(x={"base": 3}), "method.x.base: unknown '3'"),
        (content(x={"base": "pgfed-fixed"}), "method.x.base: unknown 'pgfed-fixed'"),
        (content(pgfed={"base": "fedavg"}), "method.pgfed.base: 'pgfed' is a method"),
        (content(x={"base": "pgfed", "muu": 1}), "method.x.muu: unknown key (did you mean 'mu'?)"),
        (content(**{"../x": {"base": "pgfed"}}), "method: found '../x'"),
        (
            {
                "methods": ["pgfed.methods.pgfed_mo:PGFedMo"],
                "method": {"pgfedmo": {"base": "pgfed"}},
            },
            "method.pgfedmo.base: 'pgfedmo' is a method",
        ),
        (
            {"methods": ["pgfed-fixed", "pgfed-fixed"]},
            "methods: found 'pgfed-fixed' twice",
        ),
    ],
)
def test_mistakes_are_one_line(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        make_methods(from_dict({**content(), **change}))
    assert said in str(error.value)


def test_variants_run_side_by_side(tmp_path: Path) -> None:
    result = small_runs.run(
        methods=["local", "pgfed", "pgfed-off", "fedavg-local"],
        method={"pgfed-off": {"base": "pgfed", "mu": 0.0}},
        clients=4,
        rounds=3,
        epochs=1,
        backend="serial",
        out=tmp_path / "run",
    )
    assert [row["method"] for row in result.summary] == [
        *("local", "pgfed", "pgfed-off", "fedavg-local"),
    ]
    with (tmp_path / "run/pgfed-off/seed-0/clients.csv").open() as file:
        off = list(csv.DictReader(file))
    with (tmp_path / "run/fedavg-local/seed-0/clients.csv").open() as file:
        control = list(csv.DictReader(file))
    assert [row["mean"] for row in off] == [row["mean"] for row in control]
    assert result.model(0, "pgfed-off") is not None
    again = load(tmp_path / "run/experiment.toml")
    assert make_methods(again)[0]["pgfed-off"].mu == 0.0  # type: ignore[attr-defined]
