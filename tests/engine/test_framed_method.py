"""fedavg-framed: FedAvg-local in frames, blended; and what becomes of it where no frame can be."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import pgfed
from pgfed.config.experiment import from_dict, load, make_methods
from pgfed.errors import UserError
from pgfed.methods.registry import get
from pgfed.methods.settings import PersonalConfig
from pgfed.testing import TRAIN, check_equal, outcome, started

FRAMED = PersonalConfig(frame="training", blend=0.3)
SMALL: dict[str, Any] = {"rounds": 2, "engine": {"backend": "serial"}, "train": {"epochs": 1}}


def result_of(method: str, **settings: Any) -> dict[str, Any]:
    with started(get(method)(train=TRAIN, **settings), rounds=3) as run:
        return outcome(run)


def test_it_is_fedavg_local_in_frames_and_blended() -> None:
    ours, same = result_of("fedavg-framed"), result_of("fedavg-local", personal=FRAMED)
    check_equal(ours, same, "fedavg-framed")


def test_without_either_it_is_its_control() -> None:
    plain = result_of("fedavg-framed", personal=PersonalConfig())
    check_equal(plain, result_of("fedavg-local"), "its control")


def personal_of(**content: Any) -> PersonalConfig:
    methods, _ = make_methods(from_dict({"methods": ["fedavg-framed"], **content}))
    return methods["fedavg-framed"].personal


def test_what_it_is_made_of_stands_above_what_all_methods_are_told() -> None:
    told = {"frame": "serving", "blend": 0.9, "refresh": True}
    assert personal_of() == FRAMED
    assert personal_of(personal=told) == PersonalConfig("training", 0.3, True)
    own = {"fedavg-framed": {"personal": {"blend": "auto"}}}
    assert personal_of(personal=told, method=own) == PersonalConfig("training", "auto", True)
    off = {"fedavg-framed": {"personal": {"frame": "none", "blend": 1.0}}}
    assert personal_of(method=off) == PersonalConfig()


def test_without_classes_the_blend_alone_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="pgfed"):
        pgfed.run(
            "diabetes",
            task={"kind": "regression"},
            methods=["local", "fedavg-framed"],
            out=tmp_path / "run",
            **SMALL,
        )
    assert "fedavg-framed: runs without a frame, its blend alone (personal.frame: needs" in (
        caplog.text
    )
    kept = load(tmp_path / "run" / "experiment.toml").method["fedavg-framed"]["personal"]
    assert kept == {"frame": "none", "blend": 0.3, "refresh": False}


class NoBias(nn.Module):
    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, 8), nn.Linear(8, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.fc1(x.flatten(1)).relu())
        return out


def test_a_model_that_takes_no_frame_runs_without_and_a_wish_for_one_is_refused() -> None:
    found = pgfed.run("digits", methods=["fedavg-framed"], model=NoBias, **SMALL)
    assert found.experiment.method["fedavg-framed"]["personal"]["frame"] == "none"
    serving = {"fedavg-framed": {"personal": {"frame": "serving"}}}
    with pytest.raises(UserError, match=r"personal\.frame: .* with a bias"):
        pgfed.run("digits", methods=["fedavg-framed"], model=NoBias, method=serving, **SMALL)
