"""What another share of a client's own last model would have given, without training again.

    python experiments/shares.py RUN METHOD [SEED] [--json FILE]

RUN is a folder that kept its state (stopped, or `output.keep_state = true`), METHOD one in a
training frame with a fixed blend, as fedavg-framed: its training does not depend on the share.
Prints the mean accuracy of the clients' models after the last round for several shares of the own
model; the rest is the newest global one.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from pgfed.config.experiment import data_root, from_dict
from pgfed.engine.backends.base import Serial
from pgfed.engine.setup import prepare
from pgfed.model import frames

SHARES = (0.0, 0.3, 0.5, 0.7, 1.0)


def scores(run: Path, method: str, seed: int) -> dict[str, Any]:
    """After which round, and the mean accuracy and loss for each share."""
    setup = prepare(
        from_dict(tomllib.loads((run / "experiment.toml").read_text())), data_root(None)
    )
    personal = setup.methods[method].personal
    if personal.frame != "training" or personal.blend == "auto":
        raise SystemExit(f"{method}: not in a training frame with a fixed blend")
    kept = run / method / f"seed-{seed}" / "checkpoint"
    newest = max(kept.glob("server-*.safetensors"))
    shared = load_file(newest)["server.w"]
    federation, model = setup.federation, setup.experiment.model
    task = Serial(federation, model.name, objective=setup.objective).task(seed)
    found: dict[float, list[tuple[float, float]]] = {share: [] for share in SHARES}
    for i in range(len(federation)):
        states = sorted((kept / "clients").glob(f"{i:06d}-*.safetensors"))
        own = load_file(states[-1])["w"] if states else shared  # it has never taken part
        train, test = federation.train(i), federation.test(i)
        offset = frames.own_frame(train.class_counts(task.outputs))
        models = task.folded(shared, offset), task.folded(own, offset)
        for share in SHARES:
            told = task.view(train).score(torch.lerp(*models, share), test)
            found[share].append((float(told.score or 0.0), told.loss / len(test)))
    means = {str(share): np.mean(each, axis=0).round(6).tolist() for share, each in found.items()}
    return {"round": int(newest.stem.rpartition("-")[2]), "accuracy and loss by share": means}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("method")
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    told = scores(asked.run, asked.method, asked.seed)
    print(f"After round {told['round']}:\n")
    print("| share of the own model | accuracy | loss |\n|---:|---:|---:|")
    for share, (accuracy, loss) in told["accuracy and loss by share"].items():
        print(f"| {share} | {100 * accuracy:.1f} | {loss:.2f} |")
    if asked.json is not None:
        asked.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
