"""The tables of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pgfed.paper import printed as paper
from pgfed.results import statistics as stats
from pgfed.results.comparison import Curve, Group, Method, Score
from pgfed.results.formats import NONE, bracketed, correlation, meaning, percent, signed, size
from pgfed.results.runs import NO_ATTACK, SeedRun
from pgfed.results.statistics import Comparison, Correlation

NAMED = 8  # clients, or reasons, that a cell names
TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class Cell:
    """What people read, and the number behind it for sorting and for CSV."""

    text: str
    value: float | str | None = None
    interval: tuple[float, float, float] | None = None  # low, mean, high: drawn in the page
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Columns are (key for CSV, heading, explanation)."""

    id: str
    caption: str
    columns: list[tuple[str, str, str]]
    rows: list[list[Cell]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)  # per row, the method it is about

    def __bool__(self) -> bool:
        return bool(self.rows)


# -- the tables --------------------------------------------------------------------------------


def results(group: Group) -> Table:
    """The table of the first screen."""
    with_std = any(len(method.runs) > 1 for method in group.methods)
    fedavg = next((m for m in group.methods if m.name == "fedavg"), None)
    relative = " (× FedAvg)" if fedavg else ""
    table = Table(
        "results",
        "Accuracy is the mean over all clients of each client's own model on its own test data"
        + (", ± the standard deviation over seeds" if with_std else "")
        + (". Attackers are left out" if group.attacked else "")
        + ". Gains are in percentage points, with a paired 95 % interval.",
        [
            ("method", "Method", "The control is PGFed with mu = 0"),
            ("last10", "Last 10 rounds", "Mean accuracy of the last ten rounds"),
            ("best", "Best on test", "Best round, chosen on test data as the paper does"),
            ("gain", "Gain over Local", "Mean over clients of the last-10 accuracy minus Local's"),
            ("gained", "Gained", "Clients better off than alone"),
            ("lost", "Lost", "Clients worse off than alone"),
            ("sent", f"Sent{relative}", "Bytes in both directions, all clients, one run"),
            (
                "images_per_second",
                f"Images/s{relative}",
                "Training samples per second of client work",
            ),
        ],
    )
    for method in group.methods:
        gain, local = group.gain(method), group.local(method)
        compared = None if local is None or gain is None else group.compare(method, local)
        speed = method.images_per_second()
        row = [
            Cell(method.label, note="control" if group.is_control(method) else ""),
            _score(method, "last10"),
            _score(method, "best"),
            _difference(compared),
            Cell(NONE) if gain is None else Cell(str(gain.gained), gain.gained),
            Cell(NONE) if gain is None else Cell(str(gain.harmed), gain.harmed),
            _beside(size(method.sent()), method.sent(), fedavg.sent() if fedavg else None),
            Cell(NONE)
            if speed is None
            else _beside(f"{speed:,.0f}", speed, fedavg.images_per_second() if fedavg else None),
        ]
        table.rows.append(row)
        table.labels.append(method.label)
    return table


def control(group: Group) -> Table:
    """What the explicit objective itself contributes."""
    table = Table(
        "control",
        "The control is PGFed with mu = 0: trained and scored alike, without the other clients' "
        "risks in the objective. The difference is what the explicit objective contributes.",
        [
            ("method", "Method", "A method of the PGFed family"),
            ("control", "Control", "PGFed with mu = 0"),
            ("difference", "Difference", "Points, mean over clients and seeds, 95 % interval"),
            ("better", "Better", "Clients better off than with the control"),
            ("worse", "Worse", "Clients worse off than with the control"),
            ("equal", "Equal", "Clients equally well off"),
            ("meaning", "Reading", "Whether the interval leaves out zero"),
        ],
    )
    for method in group.methods:
        if not method.has_control:
            continue
        other = group.control(method)
        found = None if other is None else group.compare(method, other)
        if other is None or found is None:
            cells = [Cell(NONE)] * 5 + [Cell("not in the run: add it")]
        else:
            counts = [Cell(str(n), n) for n in (found.better, found.worse, found.equal)]
            cells = [Cell(other.label), _difference(found), *counts, Cell(meaning(found))]
        table.rows.append([Cell(method.label), *cells])
        table.labels.append(method.label)
    return table


def gains(group: Group) -> Table:
    """Individual gain over Local (the paper's third table)."""
    table = Table(
        "gains-table",
        "Gain over Local per client, in points, on the last ten rounds; each client's mean over "
        "the seeds.",
        [
            ("method", "Method", ""),
            ("mean", "Mean", "Over the clients"),
            ("std", "Std", "Sample standard deviation over the clients"),
            ("worst_decile", "Worst tenth", "Mean over the tenth of the clients that gained least"),
            ("minimum", "Minimum", "The client that gained least"),
            ("maximum", "Maximum", "The client that gained most"),
            ("gained", "Gained", "Clients better off than alone"),
            ("lost", "Lost", "Clients worse off than alone"),
            ("unchanged", "Unchanged", "Clients exactly as well off"),
        ],
    )
    for method in group.methods:
        gain = group.gain(method)
        if gain is None:
            continue
        lowest, highest = np.nanmin(gain.per_client), np.nanmax(gain.per_client)
        values = [gain.mean, gain.std, gain.worst_decile, float(lowest), float(highest)]
        cells = [_points(v) if k != 1 else _plain(100 * v, v) for k, v in enumerate(values)]
        counts = [Cell(str(n), n) for n in (gain.gained, gain.harmed, gain.unchanged)]
        table.rows.append([Cell(method.label), *cells, *counts])
        table.labels.append(method.label)
    return table


def speed(group: Group) -> Table:
    """Rounds until the seed-mean curve reaches an accuracy (the paper's second table)."""
    best = max((max(m.mean_curve.accuracy, default=0.0) for m in group.methods), default=0.0)
    targets = [target for target in TARGETS if target <= best]
    table = Table(
        "rounds-table",
        "First round in which the mean over seeds reaches an accuracy; single seeds in brackets.",
        [("method", "Method", "")]
        + [(f"to_{100 * t:.0f}", f"{100 * t:.0f} %", "Rounds to this accuracy") for t in targets],
    )
    if not targets:
        return table
    for method in group.methods:
        cells = [_reached(method, target) for target in targets]
        table.rows.append([Cell(method.label), *cells])
        table.labels.append(method.label)
    return table


def _reached(method: Method, target: float) -> Cell:
    def first(curve: Curve) -> int | None:
        return stats.rounds_to(curve.rounds, curve.accuracy, target)

    reached = first(method.mean_curve)
    text = NONE if reached is None else str(reached)
    if len(method.runs) > 1:
        each = [first(method.curve(seed)) for seed in method.seeds]
        text += f" ({', '.join(NONE if t is None else str(t) for t in each)})"
    return Cell(text, reached)


def domains(group: Group) -> Table:
    """Accuracy by domain, at each method's best round (the paper's Office-Home table)."""
    names = group.clients.domains or []
    found = list(dict.fromkeys(names))
    table = Table(
        "domains-table",
        "Mean accuracy of the clients of each domain, at the method's best round on test data.",
        [("method", "Method", "")]
        + [(name, name, f"Clients of the domain {name}") for name in found]
        + [("all", "All clients", "")],
    )
    if len(found) < 2:
        return table
    member = np.array(names)
    for method in group.methods:
        best = method.scores("best")
        cells = [_seeds(np.nanmean(best[:, member == name], axis=1).tolist()) for name in found]
        table.rows.append([Cell(method.label), *cells, _score(method, "best")])
        table.labels.append(method.label)
    return table


def matrix(group: Group) -> Table:
    """Experiment E4 with its controls."""
    table = Table(
        "matrix-table",
        "Correlation (Pearson's r, permutation p) of the changes of A with the clients' training "
        "samples. A client with more data takes more steps of its alphas in a round, so the rows "
        "must also be read per step; by how often a pair met is the other control.",
        [
            ("run", "Run", "Method and seed"),
            ("column_size", "Column mean ~ n", "Weight others give to j; the paper: positive"),
            ("row_size", "Row mean ~ n", "Weight i gives to others; the paper: negative"),
            ("column_step", "Column, per step ~ n", "The control: change per step of alpha"),
            ("row_step", "Row, per step ~ n", "The control: change per step of alpha"),
            ("column_met", "Column ~ meetings", "Is it only how often j was met?"),
            ("meetings", "Meetings per pair", "Rounds in which i trained with j's gradient"),
            ("at_zero", "At zero", "Share of entries clamped at zero"),
            ("increased", "Increased", "Share of entries above 1/M"),
            ("never_met", "Never met", "Share of entries that could not change"),
        ],
    )
    for method in group.methods:
        for run in method.runs.values():
            found = group.helpfulness(method, run)
            if found is None:
                continue
            correlations = [
                found.column_size,
                found.row_size,
                found.column_per_step_size,
                found.row_per_step_size,
                found.column_meetings,
            ]
            shares = [found.at_zero, found.increased, found.never_met]
            table.rows.append(
                [
                    Cell(method.run_label(run)),
                    *map(_correlation, correlations),
                    _plain(found.meetings_per_pair),
                    *(Cell(percent(share), share) for share in shares),
                ]
            )
            table.labels.append(method.label)
    return table


def dropped(group: Group) -> Table:
    """Replies that did not count."""
    table = Table(
        "dropped-table",
        "Replies that did not come or were refused; the round went on without them.",
        [
            ("method", "Method", ""),
            ("replies", "Replies", "Dropped replies over all seeds"),
            ("clients", "Clients", "Whose replies they were"),
            ("reasons", "Reasons", "How often each"),
        ],
    )
    for method in group.methods:
        found = [drop for run in method.runs.values() for drop in run.history.dropped]
        if not found:
            continue
        clients = sorted({client for _, client, _ in found})
        names = [group.clients.names[i] for i in clients[:NAMED]]
        more = f" and {len(clients) - NAMED} more" if len(clients) > NAMED else ""
        table.rows.append(
            [
                Cell(method.label),
                Cell(str(len(found)), len(found)),
                Cell(", ".join(names) + more, len(clients)),
                Cell(_reasons([reason for _, _, reason in found])),
            ]
        )
        table.labels.append(method.label)
    return table


def attack(group: Group) -> Table:
    """What an attack costs the honest clients, and what a defence saves."""
    table = Table(
        "attack-table",
        "Accuracy is the honest clients' mean over the last ten rounds; attackers, whom the seed "
        "draws, are left out here and everywhere on this page. The difference is over the same "
        "clients and seeds in a run that nobody attacked and nobody defended.",
        [
            ("method", "Method", ""),
            ("run", "Run", "The folder of the run"),
            ("attack", "Attack", "Its kind, how many times as long, the share of attackers"),
            ("defence", "Aggregation", "How replies become one; mean is no defence"),
            ("honest", "Honest clients", "Mean accuracy of the last ten rounds"),
            ("against", "Against no attack", "Points, over the same clients and seeds"),
            ("refused", "Refused", "Replies that were refused or did not come"),
            ("left_out", "Left out", "Replies that krum left out, and whose they were"),
        ],
    )
    names = dict.fromkeys(method.name for method in group.methods) if group.attacked else ()
    for name in names:
        for folder in group.folders:
            runs = folder.runs.get(name, {})
            defence = folder.experiment.engine.aggregation
            if not runs:
                continue
            drops = [drop for run in runs.values() for drop in run.history.dropped]
            left = [i in run.attackers for run in runs.values() for _, i in run.history.left_out]
            told = f"{len(left)}, {sum(left)} of them attackers'" if left else "0"
            table.rows.append(
                [
                    Cell(name),
                    Cell(folder.path.name, folder.path.name),
                    Cell(folder.attack, folder.attack),
                    Cell(defence, defence),
                    _seeds([stats.mean_std(run.last10)[0] for run in runs.values()]),
                    _against_no_attack(group, name, runs),
                    Cell(str(len(drops)), len(drops)),
                    Cell(told, len(left)),
                ]
            )
            table.labels.append(_label_of(group, runs))
    return table


def _against_no_attack(group: Group, name: str, runs: Mapping[int, SeedRun]) -> Cell:
    calm = {"aggregation": "mean", "attack": NO_ATTACK}
    for method in group.methods:
        if method.name == name and method.settings | calm == method.settings:
            found = [
                run.last10 - method.runs[seed].last10
                for seed, run in runs.items()
                if seed in method.runs and method.runs[seed] is not run
            ]
            mean, _ = stats.mean_std(found)
            return Cell(NONE) if np.isnan(mean) else _points(mean)
    return Cell(NONE)


def _label_of(group: Group, runs: Mapping[int, SeedRun]) -> str:
    """The method that these runs are of."""
    run = next(iter(runs.values()))
    return next(m.label for m in group.methods if any(r is run for r in m.runs.values()))


def _reasons(reasons: Sequence[str]) -> str:
    """How often each, the most frequent first."""
    counted = Counter(sorted(reasons)).most_common()
    told = [f"{n} × {reason}" for reason, n in counted[:NAMED]]
    rest = sum(n for _, n in counted[NAMED:])
    return "; ".join([*told, f"{rest} × others"] if rest else told)


def sites(group: Group) -> Table:
    """What a federation over Flower was like with each site."""
    table = Table(
        "sites-table",
        "Over all rounds and seeds. An answer takes the site's training, the way there and back, "
        "and waiting; bytes are those of the messages as they were sent.",
        [
            ("site", "Site", ""),
            ("method", "Method", ""),
            ("asked", "Asked", "Rounds in which its update was asked for"),
            ("counted", "Counted", "Rounds in which its update was used"),
            ("seconds", "Answer, mean", "From asking for an update to having it"),
            ("slowest", "Slowest", "The slowest answer"),
            ("work_seconds", "Training", "All rounds together"),
            ("bytes_down", "Down", "From the server to the site"),
            ("bytes_up", "Up", "From the site to the server"),
            ("failures", "Failures", "How often each"),
        ],
    )
    for method in group.methods:
        found = [run.history.sites for run in method.runs.values()]
        for i in sorted({client for sites in found for client in sites}):
            own = [sites[i] for sites in found if i in sites]
            waited = [seconds for site in own for seconds in site.seconds]
            failures = [reason for site in own for reason in site.failures]
            counts = [sum(site.asked for site in own), sum(site.counted for site in own)]
            sent = [sum(site.bytes_down for site in own), sum(site.bytes_up for site in own)]
            times = [float(np.mean(waited)), max(waited)] if waited else [float("nan")] * 2
            table.rows.append(
                [
                    Cell(group.clients.names[i]),
                    Cell(method.label, method.label),
                    *(Cell(str(n), n) for n in counts),
                    *map(_seconds, [*times, sum(site.work_seconds for site in own)]),
                    *(Cell(size(n), n) for n in sent),
                    Cell(_reasons(failures) or "none", len(failures)),
                ]
            )
            table.labels.append(method.label)
    return table


def against_paper(group: Group) -> Table:
    """Ours beside the paper's, where data set, number of clients and method match."""
    table = Table(
        "paper-table",
        "Luo et al., ICCV 2023.",
        [
            ("method", "Method", ""),
            ("accuracy", "Best on test", "Ours"),
            ("accuracy_paper", "Paper", "Paper: best on test"),
            ("gain", "Gain over Local", "Ours: at each method's best round, ± std over clients"),
            ("gain_paper", "Paper", "Paper: individual gain"),
            ("rounds", "Rounds to 70 %", "Ours"),
            ("rounds_paper", "Paper", "Paper: rounds to 70 %"),
            ("sent", "Bytes × FedAvg", "Ours, all rounds; in the first there are no gradients yet"),
            ("sent_paper", "Paper", "Paper: communication cost"),
            ("speed", "Images/s × FedAvg", "Ours"),
            ("speed_paper", "Paper", "Paper: local computation speed"),
        ],
    )
    fedavg = next((m for m in group.methods if m.name == "fedavg"), None)
    for method in group.methods:
        row = paper.accuracy(group, method)
        speed = paper.relative_speed(group, method)
        ratio = method.sent() / fedavg.sent() if fedavg and fedavg.sent() else None
        paper_ratio = None if ratio is None else paper.bytes_ratio(method)
        if row is None and speed is None and paper_ratio is None:
            continue
        gain, paper_gain = group.gain(method, "best"), paper.gain(group, method)
        reached = stats.rounds_to(method.mean_curve.rounds, method.mean_curve.accuracy, 0.7)
        paper_rounds = paper.rounds_to_70(group, method)
        own_speed, base = method.images_per_second(), fedavg and fedavg.images_per_second()
        table.rows.append(
            [
                Cell(method.label),
                _score(method, "best"),
                _printed(row),
                Cell(NONE)
                if gain is None
                else Cell(f"{signed(gain.mean)} ± {100 * gain.std:.1f}", gain.mean),
                _printed(paper_gain, gain=True),
                Cell(NONE if reached is None else str(reached), reached),
                Cell(NONE if paper_rounds is None else str(paper_rounds), paper_rounds),
                _ratio(ratio),
                _ratio(paper_ratio),
                _ratio(own_speed / base if own_speed and base else None),
                _ratio(speed),
            ]
        )
        table.labels.append(method.label)
    return _without_empty_pairs(table)


def _without_empty_pairs(table: Table) -> Table:
    """Of the pairs (ours, the paper's), those for which the paper has a number."""
    kept = [0]
    for theirs in range(2, len(table.columns), 2):
        if any(row[theirs].text != NONE for row in table.rows):
            kept += [theirs - 1, theirs]
    told = " Accuracies are best-on-test, as the paper prints; mean ± std." if 2 in kept else ""
    return replace(
        table,
        caption=table.caption + told,
        columns=[table.columns[k] for k in kept],
        rows=[[row[k] for k in kept] for row in table.rows],
    )


def domains_against_paper(group: Group) -> Table:
    """The paper's Office-Home table in its own form."""
    found = list(dict.fromkeys(group.clients.domains or []))
    table = Table(
        "paper-domains-table",
        "Accuracy by domain, ours and the paper's (Luo et al., ICCV 2023).",
        [("method", "Method", "")]
        + [
            column
            for name in found
            for column in ((name, name, "Ours"), (f"{name}_paper", "Paper", "Paper"))
        ],
    )
    own = domains(group)
    ours = dict(zip(own.labels, own.rows, strict=True))
    for method in group.methods:
        rows = [paper.domain_accuracy(group, method, name) for name in found]
        if method.label not in ours or not any(rows):
            continue
        cells = [
            cell
            for mine, row in zip(ours[method.label][1:-1], rows, strict=True)
            for cell in (mine, _printed(row))
        ]
        table.rows.append([Cell(method.label), *cells])
        table.labels.append(method.label)
    return table


def overview(groups: Sequence[Group]) -> Table:
    """All federations side by side (the paper's main table)."""
    labels = list(dict.fromkeys(m.label for group in groups for m in group.methods))
    table = Table(
        "overview",
        "Mean accuracy of the last ten rounds on each federation; best on test in brackets.",
        [("method", "Method", "")] + [(g.title, g.title, "Last 10 (best on test)") for g in groups],
    )
    for label in labels:
        cells = []
        for group in groups:
            method = next((m for m in group.methods if m.label == label), None)
            if method is None:
                cells.append(Cell(NONE))
                continue
            last, best = _score(method, "last10"), _score(method, "best")
            cells.append(Cell(f"{last.text} ({best.text})", last.value))
        table.rows.append([Cell(label), *cells])
        table.labels.append(label)
    return table


# -- cells -------------------------------------------------------------------------------------


def _score(method: Method, which: Score) -> Cell:
    return _seeds(method.accuracy(which))


def _seeds(values: Sequence[float]) -> Cell:
    """Percent, with the standard deviation over seeds where there are several."""
    mean, std = stats.mean_std(values)
    if np.isnan(mean):
        return Cell(NONE)
    spread = "" if np.isnan(std) else f" ± {100 * std:.1f}"
    return Cell(f"{100 * mean:.1f}{spread}", mean)


def _difference(found: Comparison | None) -> Cell:
    if found is None:
        return Cell(NONE)
    return Cell(bracketed(found), found.mean, (found.low, found.mean, found.high))


def _points(value: float) -> Cell:
    return Cell(signed(value), value)


def _plain(shown: float, value: float | None = None) -> Cell:
    if np.isnan(shown):
        return Cell(NONE)
    return Cell(f"{shown:.1f}", shown if value is None else value)


def _seconds(value: float) -> Cell:
    return Cell(NONE) if np.isnan(value) else Cell(f"{value:.3g} s", value)


def _beside(text: str, value: float, base: float | None) -> Cell:
    """A number, and in brackets how many times that of FedAvg it is."""
    return Cell(f"{text} ({value / base:.2f})" if base else text, value)


def _ratio(value: float | None) -> Cell:
    return Cell(NONE) if value is None else Cell(f"{value:.2f}", value)


def _printed(row: dict[str, float] | None, gain: bool = False) -> Cell:
    """A number of the paper's, in percent there."""
    if row is None:
        return Cell(NONE)
    mean = signed(row["mean"] / 100, 2) if gain else f"{row['mean']:.2f}"
    return Cell(f"{mean} ± {row['std']:.2f}", row["mean"] / 100)


def _correlation(found: Correlation) -> Cell:
    return Cell(correlation(found), None if np.isnan(found.r) else found.r)
