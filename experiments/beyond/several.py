"""Several personal models from one training: frames, blends and fine-tuning need none of their own.

    python experiments/beyond/several.py EXPERIMENT.toml --at 5,15 --out DIR [--set KEY=VALUE]

Runs the experiment into DIR as `pgfed run` does (and goes on with what is there) and adds lines to
DIR/several.jsonl, one for each seed, method, way to make a personal model, and round of --at: every
client's score on its test data. `fedavg-local` and `fedavg-framed`, which keep the last own model,
are also scored as their newest global model, as blends of the two, and as that model fine-tuned for
an epoch: without a frame (`plain`), in the frame that it was trained in (`framed`), and corrected
to the client's class shares (`served`); where there is validation data, also as each client would
choose on it (`blend chosen`); and with the global models averaged over about the last ninth or
quarter of the rounds so far (`average 0.11`, `average 0.25`: polynomial decay, Shamir and Zhang,
ICML 2013; of runs that were not interrupted). `several_table.py` and `blends_table.py` read the
file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from pgfed.config.experiment import data_root, load
from pgfed.data.augment import augmentation
from pgfed.engine import personal
from pgfed.engine.callbacks import Observer, Record
from pgfed.engine.client import one_thread
from pgfed.engine.rounds import Run
from pgfed.engine.setup import prepare
from pgfed.methods.randomness import Rng
from pgfed.methods.steps import sgd
from pgfed.model import frames
from pgfed.results.folder import layout
from pgfed.results.recording import record

BLENDS = (0.3, 0.5, 0.7)  # shares of the own model
AVERAGES = (0.11, 0.25)  # shares of the rounds so far, the last ones
OLDER, FEWER = 0.9, 60  # rules: 0.7 times 0.9 for each round since it trained; n/(n + 60) samples


class Scores(Observer):
    """Scores every way after some rounds of a training."""

    def __init__(self, at: list[int], out: Path) -> None:
        self.at, self.out = at, out
        self.means: dict[str, Tensor] = {}

    def round(self, method: str, run: Run, record: Record) -> None:
        print(f"{method} {run.seed} round {run.round}: {record['mean_score']}", flush=True)
        algorithm = run.algorithm
        keeps_own = algorithm.name in ("fedavg-local", "fedavg-framed")
        if keeps_own:
            self._average(algorithm.global_model(run.task, run.server, {}), run.round)
        if run.round not in self.at:
            return
        found: dict[str, list[float]] = {"as it is": run.score.tolist()}
        if keeps_own:
            with one_thread():
                found |= several(run, self.means)
        sent = sum(r["bytes_down"] + r["bytes_up"] for r in run.history)
        with self.out.open("a", encoding="utf-8") as file:
            for way, scores in found.items():
                line = {"method": method, "seed": run.seed, "round": run.round, "way": way}
                print(json.dumps({**line, "sent": sent, "scores": scores}), file=file)

    def _average(self, newest: Tensor, round: int) -> None:
        """Weighted means of all global models so far, from the first round on."""
        counts = {f"average {share}": 1 / (1 + share * (round - 1)) for share in AVERAGES}
        if round == 1:
            self.means = {name: newest.clone() for name in counts}
        for name, mean in self.means.items():
            mean.lerp_(newest, counts[name])


def several(run: Run, means: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """way -> score of every client, of models made of the newest global and the last own one."""
    task, federation, algorithm = run.task, run.federation, run.algorithm
    counts = [federation.train(i).class_counts(task.outputs) for i in range(run.info.clients)]
    common = frames.shares(torch.stack(counts).double().sum(0))
    newest = algorithm.global_model(task, run.server, {})
    trained_in_frames = algorithm.personal.frame == "training"
    found: dict[str, list[float]] = {}
    for i in range(run.info.clients):
        data = federation.test(i)
        view = task.view(federation.train(i))
        view.augment = augmentation(algorithm.train.augment)
        rng = Rng(run.seed, i, run.round, federation.key(i))
        public = algorithm.public(run.server)
        own = algorithm.personal_model(view, run.state(i), public, federation.train(i), rng)
        once = replace(algorithm.train, epochs=1)
        blends = {f"blend {share}": share for share in BLENDS} | ruled(run, i)
        ways: dict[str, Tensor] = {}
        if trained_in_frames:
            frame = view.offset = frames.own_frame(counts[i])
            own, name = task.folded(own, frame), "framed"
            ways |= _blends(name, task.folded(newest, frame), own, blends)
        else:
            frame, name = frames.corrected(counts[i], common), "served"
            ways |= _blends("plain", newest, own, blends)
            ways |= _blends(name, task.folded(newest, frame), own, blends)
            del ways["served own"]  # plain own
        shares = {f"blend {share}": share for share in BLENDS}
        for kind, mean in means.items():
            offsets = {name: frame} if trained_in_frames else {name: frame, "plain": None}
            for each, offset in offsets.items():
                ways |= _blends(f"{each} {kind}", task.folded(mean, offset), own, shares)
                del ways[f"{each} {kind} own"]
        if len(held_out := federation.validation(i)):
            for kind in (name, *(f"{name} {kind}" for kind in means)):
                share = personal.chosen(task, ways[f"{kind} global"], own, held_out)
                ways[f"{kind} blend chosen"] = torch.lerp(ways[f"{kind} global"], own, share)
        if not run.touched(i):  # what it has of its own is the start that all had
            ways = {way: ways[_without_own(way)] for way in ways}
        tuned, _ = sgd(view, newest, federation.train(i), rng, once, purpose="evaluate")
        name = "framed" if trained_in_frames else "plain"
        ways[f"{name} tuned"] = task.folded(tuned, view.offset)
        ways[f"{name} tuned blend 0.5"] = torch.lerp(
            ways[f"{name} global"], ways[f"{name} tuned"], 0.5
        )
        for way, theta in ways.items():
            score = task.score(theta, data).score if len(data) else None
            found.setdefault(way, []).append(float("nan") if score is None else float(score))
    return found


def ruled(run: Run, client: int) -> dict[str, float]:
    """Shares of the own model by rules that need no validation data."""
    age = run.round - max((r["round"] for r in run.history if client in r["cohort"]), default=0)
    n = len(run.federation.train(client))
    return {"blend by age": 0.7 * OLDER**age, "blend by samples": n / (n + FEWER)}


def _without_own(way: str) -> str:
    frame, kind, count, *_ = [*way.split(), ""]
    return f"{frame} {kind} {count} global" if kind == "average" else f"{frame} global"


def _blends(name: str, newest: Tensor, own: Tensor, blends: dict[str, float]) -> dict[str, Tensor]:
    ways = {f"{name} global": newest, f"{name} own": own}
    return ways | {f"{name} {way}": torch.lerp(newest, own, s) for way, s in blends.items()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("experiment", type=Path)
    arguments.add_argument("--at", required=True, help="rounds, with commas")
    arguments.add_argument("--out", type=Path, required=True, help="the run folder")
    arguments.add_argument("--set", action="append", default=[])
    given = arguments.parse_args()
    setup = prepare(load(given.experiment, given.set), data_root(None))
    scores = Scores([int(word) for word in given.at.split(",")], given.out / "several.jsonl")
    record(setup, given.out, [scores], resume=layout.is_run(given.out))


if __name__ == "__main__":
    main()
