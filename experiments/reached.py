"""What the runs of a question have reached so far, beside the paper's: tables in Markdown.

    python experiments/reached.py TABLE DIR [DIR ...] [--at ROUND]

DIR: a run folder, what `scripts/keep.py` kept of one, or a folder of such; runs on the same clients
make one table. A method that was stopped counts with the rounds that it reached.

    scores       how far each method came, beside the paper's 300 rounds
    curves       the mean score after some rounds
    against      a control (--control), after the same rounds
    chosen       which of a method's settings are best on validation data, and what they then give
    gains        over local, after the same rounds
    bytes        sent in a round, beside the control's: as many as FedAvg's
    matrix       PGFed's A against the clients' sizes
    explicit, new-clients       what `pgfed study` found

--at: as if all had ended there, without those that were not; otherwise `against` and `gains` take
the last round that all reached. "Last rounds" are ten, at most a third of the run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from pgfed.config.experiment import of_run
from pgfed.engine.callbacks import Record
from pgfed.methods.registry import BASELINE
from pgfed.paper import printed
from pgfed.results.comparison import Group, Method, group
from pgfed.results.folder import layout, reader
from pgfed.results.folder.history import history_of, window_of
from pgfed.results.folder.studies import read_explicit, read_new_clients
from pgfed.results.folder.texts import read_object
from pgfed.results.formats import NONE, bare, bracketed, correlation, gain, percent, size
from pgfed.results.runs import KEPT, Clients, RunData, SeedRun
from pgfed.results.statistics import Paired, mean_over_seeds, mean_std, rounds_to

Row = Sequence[str]
MARKS = (5, 10, 15, 20, 30, 50, 75, 100, 150, 200, 250, 300)  # rounds that `curves` tells


def reached(path: Path, at: int | None) -> RunData:
    """A run folder whose methods are all taken as they were after round ``at``, or are now."""
    experiment = of_run(path)
    clients, methods = _clients(path), reader.read_methods(path, experiment)
    runs: dict[str, dict[int, SeedRun]] = {}
    for method, about in methods.items():
        for seed in experiment.seeds:
            records = reader.read_records(path, experiment, method, seed, clients.names)
            enough = at is None or len(records) >= at or about.course == "once"
            if records and enough:
                run = _seed_run(path, method, seed, records[:at], whole=len(records) <= (at or 1e9))
                runs.setdefault(method, {})[seed] = run
    return RunData(
        path=path,
        experiment=experiment,
        environment=read_object(path / layout.ENVIRONMENT),
        clients=clients,
        metric=reader.read_metric(path),
        methods=methods,
        runs=runs,
    )


def _clients(path: Path) -> Clients:
    rows = read_object(path / layout.DATA)["clients"]
    n_train, n_test = (np.array([row[key] for row in rows]) for key in ("n_train", "n_test"))
    return Clients(n_train, n_test, reader.names_in(path), None, None, [])


def _seed_run(path: Path, method: str, seed: int, records: list[Record], *, whole: bool) -> SeedRun:
    """``whole``: the matrix, which is of the last round, is of the last of these."""
    folder = layout.seed_folder(path, method, seed)
    history = history_of(records, folder / layout.HISTORY)
    if history.clients is None:
        raise SystemExit(f"{folder / layout.HISTORY}: has no scores of single clients")
    window = window_of(len(records))
    means = np.nanmean(history.clients, axis=1)
    last = history.clients[-window:].mean(axis=0)
    scores = {"best": history.clients[means.argmax()], "mean": last, "final": history.clients[-1]}
    return SeedRun(
        method=method,
        seed=seed,
        history=history,
        scores={**scores, KEPT: last},  # what is compared: less a matter of the round than one is
        matrix=reader.read_alpha(folder / layout.ALPHA, len(last)) if whole else None,
        window=window,
    )


def runs_in(places: Sequence[Path]) -> list[Path]:
    """The run folders among these, and in those that are none."""
    found = [[at] if layout.is_run(at) else sorted(at.glob("*")) for at in places]
    return [folder for several in found for folder in several if layout.is_run(folder)]


def length(method: Method) -> int:
    """Rounds; of several seeds the fewest."""
    return min(len(run.history.rounds) for run in method.runs.values())


def in_rounds(found: Group) -> list[Method]:
    return [method for method in found.methods if method.about.course != "once"]


def named(method: Method) -> str:
    seeds = len(method.runs)
    return f"`{method.label}`" + (f", {seeds} seeds" if seeds > 1 else "")


# -- tables ------------------------------------------------------------------------------------


def scores(found: Group) -> Iterator[Row]:
    metric = found.metric
    yield "method", "rounds", "last rounds", "best on test", "paper, 300 rounds", "to 70 %", "paper"
    for method in found.methods:
        row, rounds = printed.accuracy(found, method), printed.rounds_to_70(found, method)
        to_70 = rounds_to(method.mean_curve.rounds, method.mean_curve.score, 0.7)
        yield (
            named(method),
            str(length(method)),
            bare(method.mean("last"), metric),
            bare(method.mean("best"), metric),
            NONE if row is None else f"{row['mean']:.2f} ± {row['std']:.2f}",
            NONE if to_70 is None else str(to_70),
            NONE if rounds is None else str(rounds),
        )


def curves(found: Group) -> Iterator[Row]:
    methods = in_rounds(found)
    longest = max(map(length, methods))
    marks = [t for t in MARKS if t < longest] + [longest]
    yield "after round", *map(str, marks)
    for method in methods:
        curve = dict(zip(method.mean_curve.rounds, method.mean_curve.score, strict=True))
        yield named(method), *(bare(curve.get(t), found.metric) for t in marks)


def against(found: Group, control: str) -> Iterator[Row]:
    rounds = length(in_rounds(found)[0])
    other = next((m for m in found.methods if m.label == control), None)
    if other is None:
        return
    yield "method", f"last rounds of {rounds}", f"against `{control}`, points", "better", "worse"
    for method in found.methods:
        seeds = sorted(method.runs.keys() & other.runs.keys())
        values = {m.label: m.scores("last", seeds) for m in (method, other)}
        shown = bare(float(np.nanmean(method.scores("last"))), found.metric)
        if method is other or not seeds:
            yield named(method), shown, "", "", ""
            continue
        d = Paired(values).difference(method.label, control)
        yield named(method), shown, bracketed(d, found.metric), str(d.better), str(d.worse)


def chosen(found: Group, control: str) -> Iterator[Row]:
    judged = {m.label: v for m in found.methods if (v := on_validation(m)) is not None}
    methods = [m for m in found.methods if m.label in judged]
    # By name the best: of several the last one stays.
    best = {m.name: m for m in sorted(methods, key=lambda m: judged[m.label])}
    if control not in best:
        return
    other = best[control]
    yield "method", "on validation data", "on test data", f"against `{other.label}`, points"
    for method in sorted(methods, key=lambda m: m.name):
        told = (judged[method.label], method.mean("last"))
        row = (named(method), *(bare(score, found.metric) for score in told))
        if method is not best[method.name]:
            yield *row, ""
        elif method is other:
            yield *row, "chosen"
        else:
            d = Paired({m.label: m.scores("last") for m in (method, other)})
            difference = bracketed(d.difference(method.label, other.label), found.metric)
            yield *row, f"chosen: {difference}"


def on_validation(method: Method) -> float | None:
    """The mean over seeds and the last rounds."""
    seeds = []
    for run in method.runs.values():
        told = [record.get("mean_validation_score") for record in run.history.records]
        last = [score for score in told[-run.window :] if score is not None]
        if not last:
            return None
        seeds.append(np.mean(last))
    return float(np.mean(seeds))


def gains(found: Group) -> Iterator[Row]:
    local = next((m for m in found.methods if m.label == BASELINE), None)
    if local is None:
        return
    rounds = length(in_rounds(found)[0])
    yield "method", f"gain over local, last rounds of {rounds}", "gained", "lost", "paper's gain"
    for method in found.methods:
        seeds = sorted(method.runs.keys() & local.runs.keys())
        if method is local or not seeds:
            continue
        each = mean_over_seeds(method.scores("last", seeds) - local.scores("last", seeds))
        mean, std = mean_std(each)
        row = printed.gain(found, method)
        yield (
            named(method),
            f"{gain(mean, found.metric)} ± {100 * std:.1f}",
            str(int((each > 0).sum())),
            str(int((each < 0).sum())),
            NONE if row is None else f"{gain(row['mean'] / 100, found.metric, 2)} ± {row['std']}",
        )


def sent(found: Group, control: str) -> Iterator[Row]:
    each = {m.label: m.sent() / length(m) for m in in_rounds(found)}
    if control not in each:
        return
    yield "method", "rounds", "sent in a round", f"of `{control}`'s", "paper's"
    for method in in_rounds(found):
        mine, said = each[method.label], printed.bytes_ratio(method)
        yield (
            *(named(method), str(length(method)), size(mine)),
            f"{mine / each[control]:.2f}",
            NONE if said is None else f"{said:g}",
        )


def matrix(found: Group) -> Iterator[Row]:
    yield (
        *("A against training samples: r (p)", "rounds", "column mean", "row mean"),
        *("column, per step", "row, per step", "column against meetings", "at zero", "never met"),
    )
    for method in found.methods:
        for run in method.runs.values():
            if (a := found.helpfulness(method, run)) is None:
                continue
            told = (a.column_size, a.row_size, a.column_per_step_size, a.row_per_step_size)
            yield (
                f"`{method.run_label(run)}`",
                str(len(run.history.rounds)),
                *map(correlation, (*told, a.column_meetings)),
                percent(a.at_zero),
                percent(a.never_met),
            )


def explicit(found: Group) -> Iterator[Row]:
    """The study's arms at the step lengths that were chosen on validation data."""
    yield "six exact steps from FedAvg", "rounds", "step length", "clients", "gain", "paper's"
    row = printed.explicit(found)
    for folder in found.folders:
        runs = folder.runs.get("fedavg", {}).values()
        rounds = max((len(run.history.rounds) for run in runs), default=0)
        for arm in read_explicit(folder.path / "explicit.json"):
            said = row and row[f"{'explicit' if arm.mu else 'implicit'}_mean_gain"]
            if arm.chosen:
                yield (
                    f"explicit, mu = {arm.mu:g}" if arm.mu else "implicit",
                    str(rounds),
                    f"{arm.lr:g}",
                    str(len(arm.gains)),
                    gain(arm.gain, found.metric, 2),
                    NONE if said is None else gain(said / 100, found.metric, 2),
                )


def new_clients(found: Group) -> Iterator[Row]:
    """Clients that were not there fine-tune each method's global model."""
    yield (
        "new clients fine-tune",
        "at first",
        "after an epoch",
        "at the end",
        "best",
        "paper's best",
    )
    for folder in found.folders:
        for method, curve in read_new_clients(folder.path / "new_clients.json").items():
            told = curve["accuracy"]
            said = printed.new_clients(found, method)
            each = (told[0], told[1], told[-1], max(told), said)
            yield f"`{method}`", *(bare(value, found.metric) for value in each)


TABLES: dict[str, Callable[..., Iterator[Row]]] = {
    "scores": scores,
    "curves": curves,
    "against": against,
    "chosen": chosen,
    "gains": gains,
    "bytes": sent,
    "matrix": matrix,
    "explicit": explicit,
    "new-clients": new_clients,
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("table", choices=TABLES)
    arguments.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    arguments.add_argument("--at", type=int, default=None, metavar="ROUND")
    arguments.add_argument("--control", default="fedavg-local", metavar="METHOD")
    given = arguments.parse_args()
    told = {}
    for found in group([reached(folder, given.at) for folder in runs_in(given.folders)]):
        if not in_rounds(found):  # none came so far
            continue
        if given.at is None and given.table in ("against", "chosen", "gains"):
            shortest = min(map(length, in_rounds(found)))
            (found,) = group([reached(folder.path, shortest) for folder in found.folders])
        options = (
            {"control": given.control} if given.table in ("against", "bytes", "chosen") else {}
        )
        _, *rows = table = list(TABLES[given.table](found, **options)) or [()]
        if rows:
            told[found.title] = table
    for title, table in told.items():
        if len(told) > 1:
            print(f"\n{title}:\n")
        for k, row in enumerate(table):
            print(f"| {' | '.join(row)} |")
            if k == 0:
                print("|---|" + "---:|" * (len(row) - 1))
    if not told:
        print(f"(No run that has this is kept in {', '.join(map(str, given.folders))}.)")


if __name__ == "__main__":
    main()
