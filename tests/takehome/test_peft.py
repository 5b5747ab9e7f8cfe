"""Adapters of peft are frozen and trained as one's own are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import pgfed as package
import small_runs
from takehome.test_frozen import OPTIONS, samples

pytestmark = pytest.mark.nightly


class Net(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(6, 20)
        self.second = nn.Linear(20, 20)
        self.head = nn.Linear(20, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return out


def adapted(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    import peft

    lora = peft.LoraConfig(r=2, target_modules=["first", "second"], modules_to_save=["head"])
    found: nn.Module = peft.get_peft_model(Net(outputs), lora)  # type: ignore[arg-type]
    return found


def test_only_adapters_and_head_travel(tmp_path: Path) -> None:
    x, y = samples()
    result = small_runs.run(
        (x, y), methods=["fedavg", "fedper"], model=adapted, out=tmp_path / "run", **OPTIONS
    )
    adapters, head = 2 * (6 + 20) + 2 * (20 + 20), 20 * 3 + 3
    for method, sent in (("fedavg", adapters + head), ("fedper", adapters)):
        seed = tmp_path / f"run/{method}/seed-0"
        record = json.loads((seed / "history.jsonl").read_text().splitlines()[0])
        assert record["bytes_down"] == len(record["cohort"]) * 4 * sent
        assert all("lora" not in name for name in load_file(seed / "models/frozen.safetensors"))
    module, _ = package.load(tmp_path / "run", 1, method="fedavg", allow_modules=[__name__])
    inputs = torch.from_numpy(x)
    with torch.no_grad():
        assert torch.equal(module(inputs), result.model(1, "fedavg")(inputs))
