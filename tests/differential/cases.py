"""The federations that version 0.1 and today's tree both run.

FedFomo's `candidates` is nowhere below the number of models there are, so that all of them are
sent: which one of two equally preferred models is sent is not promised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

METHODS = (
    *("local", "fedavg", "fedavg-local", "fedavg-ft", "feddyn", "pfedme", "fedfomo", "apfl"),
    *("fedrep", "lg-fedavg", "fedper", "per-fedavg", "fedrod", "fedbabu"),
    *("pgfed", "pgfed-mo", "pgfed-ce"),
)
MEANS = ("median", "trimmed-mean", "krum", "norm-clip")
ATTACKS = ("sign-flip", "scale", "noise", "label-flip")

# Every key that has a value; what a method's own table leaves out, version 0.1 itself fills in.
# Three of six clients are drawn per round: under seed 1 these are 015, 235, 034 and 024.
COMPLETE: dict[str, Any] = {
    "seeds": [1],
    "rounds": 4,
    "cohort": 0.5,
    "methods": list(METHODS),
    "evaluate_every": 1,
    "data": {
        "dataset": "npz:digits.npz",
        "clients": 6,
        "partition": "given",
        "alpha": 0.3,
        "classes_per_client": 2,
        "test_share": 0.25,
        "validation_share": 0.0,
        "min_samples": 0,
        "new_clients": 0.0,
        "seed": 1,
    },
    "model": {"name": "mlp"},
    "train": {
        "epochs": 2,
        "batch_size": 4,
        "lr": 0.02,
        "momentum": 0.9,
        "momentum_policy": "paper",
        "reset_momentum": False,
    },
    "method": {},
    "engine": {
        "backend": "serial",
        "workers": 2,
        "address": "",
        "device": "cpu",
        "aggregation": "mean",
        "attackers": 0.2,
        "checkpoint_every": 1,
        "state_memory": "2GiB",
    },
    "attack": {"kind": "none", "share": 0.2, "strength": 10.0},
    "output": {"models": "all", "keep": "last"},
}
LOST = ((2, 5),)  # a reply: (round, client)


@dataclass(frozen=True)
class Case:
    """One experiment: what it changes of the complete one, and which replies get lost."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    lost: tuple[tuple[int, int], ...] = LOST
    refused: bool = False  # no method of it can be used with its model

    @property
    def document(self) -> dict[str, Any]:
        """The experiment file, by which the same things happen in any version."""
        document = {"name": self.name, **COMPLETE}
        for key, value in self.changes.items():
            document[key] = {**COMPLETE[key], **value} if isinstance(value, dict) else value
        return document


# name -> (its method, what it changes). The tables of BASES hold for the variants, too.
BASES: dict[str, dict[str, Any]] = {
    name: {"mu": 0.5, "alpha_lr": 0.5} for name in ("pgfed", "pgfed-mo", "pgfed-ce")
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg-ft-twice": ("fedavg-ft", {"ft_epochs": 2}),
    "fedavg-ft-slow": ("fedavg-ft", {"ft_lr": 0.003}),
    "feddyn-clip": ("feddyn", {"clip": 0.5}),
    "feddyn-strong": ("feddyn", {"a": 0.2}),
    "pfedme-w": ("pfedme", {"pfedme_eval": "w"}),
    "pfedme-half-way": ("pfedme", {"beta": 0.5}),
    "pfedme-loose": ("pfedme", {"lam": 1.0, "inner_steps": 3, "personal_lr": 0.03, "kappa": 0.01}),
    "fedfomo-others": ("fedfomo", {"fomo_include_self": False}),
    "fedfomo-share": ("fedfomo", {"validation_share": 0.4, "candidates": 6}),
    "apfl-quarter": ("apfl", {"alpha": 0.25}),
    "fedrep-short": ("fedrep", {"head_epochs": 1}),
    "lg-fedavg-two-pass": ("lg-fedavg", {"lg_two_pass": True}),
    "per-fedavg-hf": ("per-fedavg", {"variant": "hf", "delta": 0.01}),
    "per-fedavg-hvp": ("per-fedavg", {"variant": "hvp", "alpha": 0.05}),
    "per-fedavg-beta": ("per-fedavg", {"adapt_lr": "beta"}),
    "fedbabu-zero-head": ("fedbabu", {"babu_zero_head": True}),
    "fedbabu-longer": ("fedbabu", {"ft_epochs": 2, "ft_lr": 0.02}),
    "pgfed-post": ("pgfed", {"alpha_order": "post"}),
    "pgfed-exact": ("pgfed", {"alpha_gradient": "exact"}),
    "pgfed-free": ("pgfed", {"alpha_clamp": False}),
    "pgfed-full": ("pgfed", {"full_grad": True}),
    "pgfed-exact-post-free": (
        "pgfed",
        {"alpha_gradient": "exact", "alpha_order": "post", "alpha_clamp": False},
    ),
    "pgfed-mo-post": ("pgfed-mo", {"alpha_order": "post"}),
    "pgfed-mo-free": ("pgfed-mo", {"alpha_clamp": False}),
    "pgfed-mo-full": ("pgfed-mo", {"full_grad": True}),
    "pgfed-mo-slow": ("pgfed-mo", {"beta": 0.9}),
    "pgfed-ce-mean": ("pgfed-ce", {"ce_g2": "mean"}),
    "pgfed-ce-free": ("pgfed-ce", {"alpha_clamp": False}),
    "pgfed-ce-full": ("pgfed-ce", {"full_grad": True}),
}

# Under seed 4 the cohorts are 134, 015, 034 and 125: clients come back after a round's pause, when
# FedFomo's choice does not hold their own models.
VARIED = Case(
    "variants",
    {
        "seeds": [4],
        "methods": [*dict.fromkeys(base for base, _ in VARIANTS.values()), *VARIANTS],
        "method": {
            **BASES,
            **{name: {"base": base, **table} for name, (base, table) in VARIANTS.items()},
        },
    },
    lost=((2, 1),),
)


def _attacked(mean: str, attack: str) -> Case:
    """All are drawn: a krum of fewer than five replies leaves nobody out."""
    return Case(
        f"{mean}-{attack}",
        {
            "rounds": 3,
            "cohort": 1.0,
            "engine": {"aggregation": mean},
            "attack": {"kind": attack},
        },
    )


_FEW = ["local", "fedavg", "fedfomo", "lg-fedavg", "pgfed", "pgfed-mo", "pgfed-ce"]
_NORMED = {"model": {"name": "own_models:normed"}}

# Run by `make test`, each group in one process per tree.
DEFAULT = {"methods": (Case("methods", {"engine": {"backend": "process"}}),)}

NIGHTLY: dict[str, tuple[Case, ...]] = {
    "variants": (VARIED,),
    "training": (
        Case("official", {"train": {"momentum_policy": "official"}}),
        Case("reset", {"train": {"reset_momentum": True}}),
        Case("whole", {"train": {"batch_size": 0}}),
    ),
    "models": (
        Case("normed", _NORMED),
        Case("normed-median", {**_NORMED, "cohort": 1.0, "engine": {"aggregation": "median"}}),
        Case("normed-variants", {**VARIED.changes, **_NORMED}, lost=VARIED.lost),
        *(
            Case(f"refused-{method}", {"methods": [method], "model": model}, refused=True)
            for method, model in {
                "fedbabu": {"name": "own_models:baseless"},
                "fedrep": {"name": "own_models:baseless"},
                "fedrod": {"name": "own_models:two_layer_head", "head": "head"},
            }.items()
        ),
    ),
    "attacks": tuple(_attacked(mean, kind) for mean, kind in zip(MEANS, ATTACKS, strict=True)),
    # With a whole round without a reply, and under seed 5 a client that is never drawn.
    "best": (
        Case("best", {"data": {"validation_share": 0.25}, "output": {"keep": "best"}, "rounds": 6}),
        Case("silence", {"seeds": [1, 5]}, lost=((3, 0), (3, 1), (3, 3), (3, 4), (3, 5))),
    ),
    "ray": (Case("ray", {"engine": {"backend": "ray"}, "methods": _FEW}),),
    "pictures": (
        Case(
            "pictures",
            {
                "data": {"dataset": "npz:pictures.npz", "clients": 3},
                "model": {"name": "cnn"},
                "rounds": 1,
                "cohort": 1.0,
            },
            lost=(),
        ),
    ),
    # Data that is divided by us, rounds that are not scored, updates that are too long, clients
    # that join later, states that do not fit into memory, models of the last seed only.
    "settings": (
        Case(
            "settings",
            {
                "methods": _FEW,
                "seeds": [0, 3],
                "rounds": 12,
                "evaluate_every": 2,
                "data": {
                    "dataset": "digits",
                    "clients": 12,
                    "partition": "dirichlet",
                    "test_share": 0.7,
                    "min_samples": 20,
                    "new_clients": 0.2,
                },
                "engine": {
                    "backend": "process",
                    "max_update_norm": 3.0,
                    "checkpoint_every": 3,
                    "state_memory": "100kB",
                },
                "output": {"models": "last"},
            },
        ),
    ),
}
