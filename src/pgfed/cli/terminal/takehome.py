"""What the commands of this package print."""

from __future__ import annotations

import numpy as np

from pgfed.cli.terminal.tables import console, prose, table
from pgfed.model.metrics import Metric, described, label_of
from pgfed.results.formats import bare, bracketed, count, gain, percent, score
from pgfed.results.gains.clients import Gain
from pgfed.takehome.across import Across
from pgfed.takehome.evaluate import Evaluation, Row
from pgfed.takehome.influence import MOST, Reasons
from pgfed.takehome.onboard import ALONE, Newcomer, Onboarding
from pgfed.takehome.personalize import Outcome

MANY_CLIENTS = 20  # beyond this many a table of all on all is no longer readable
MANY_CLASSES = 20  # beyond this many a confusion matrix is no longer readable
BESIDE = 3  # models that are shown class by class: a method, its global model, and a baseline


def evaluation(of: Evaluation) -> None:
    """One row per model; class by class where there are few."""
    screen = console()
    samples = count(of.rows[0].scores.samples, "sample")
    title = f"{of.name}, seed {of.seed}: {samples} of {of.data}"
    screen.print(title, markup=False, soft_wrap=True)
    names = [name for name in of.rows[0].scores.metrics if label_of(name) is None]
    metrics = [described(name) for name in names]
    columns = ("model", *(metric.title for metric in metrics))
    cells = [
        (row.name, *(score(row.scores.metrics[metric.name], metric) for metric in metrics))
        for row in of.rows
    ]
    screen.print(table(columns, cells))
    labels = [name for name in of.rows[0].scores.metrics if label_of(name) is not None]
    if labels:
        auc = described("auc")
        each = [
            (label_of(name), *(score(row.scores.metrics[name], auc) for row in of.rows))
            for name in labels
        ]
        screen.print("\nAUC by label:")
        screen.print(table(("label", *(row.name for row in of.rows)), each))
    if not of.has_baseline:
        screen.print("The run has no baseline (alone, local): nothing says what alone gives.")
    if of.rows[0].scores.confusion is None:
        return
    if len(of.rows) > BESIDE:
        screen.print("Class by class, with confusion matrices: --method NAME, or all in --json.")
        return
    screen.print("\nRecall by class:")
    screen.print(table(("class", "samples", *(row.name for row in of.rows)), _recalls(of)))
    if len(of.classes) > MANY_CLASSES:
        screen.print(f"Confusion matrices of {len(of.classes)} classes are in --json.")
        return
    for row in of.rows:
        screen.print(f"\n{row.name}: true class (rows) by predicted class", markup=False)
        screen.print(table(("", *of.classes), _confusion(of, row)))


def across(of: Across) -> None:
    """Whose model (rows) on whose test data (columns)."""
    screen = console()
    screen.print(
        f"{of.method}, seed {of.seed}: {of.metric.title} of each client's model (rows) on each "
        "client's test data (columns)",
        markup=False,
        soft_wrap=True,
    )
    if len(of.names) <= MANY_CLIENTS:
        rows = [
            (name, *(bare(value, of.metric) for value in row))
            for name, row in zip(of.names, of.scores, strict=True)
        ]
        screen.print(table(("model of", *of.names), rows))
    else:
        screen.print(f"The {len(of.names)} x {len(of.names)} scores are in --json.")
    screen.print(
        f"At home {score(of.own, of.metric)} on average, elsewhere {score(of.away, of.metric)}.",
        markup=False,
        soft_wrap=True,
    )


def _recalls(of: Evaluation) -> list[tuple[str, ...]]:
    held = [sum(row) for row in of.rows[0].scores.confusion or []]
    recalls = [row.scores.recall or [] for row in of.rows]
    return [
        (name, str(held[k]), *(percent(recall[k]) for recall in recalls))
        for k, name in enumerate(of.classes)
    ]


def _confusion(of: Evaluation, row: Row) -> list[tuple[str, ...]]:
    lines = zip(of.classes, row.scores.confusion or [], strict=True)
    return [(name, *(str(n) if n else "-" for n in found)) for name, found in lines]


def personalized(of: Outcome) -> None:
    """The models as the run kept them, and with each client's class shares on."""
    screen = console()
    columns = ("method", "own share", "kept", "personalized", "difference")
    cells = [
        (
            m.method,
            f"{m.blend:g}",
            score(float(np.nanmean(m.before)), of.metric),
            score(float(np.nanmean(m.after)), of.metric),
            bracketed(m.difference, of.metric),
        )
        for m in of.methods
    ]
    screen.print(table(columns, cells))
    for method, why in of.left_out.items():
        screen.print(f"{method}: left as it is; {why}", markup=False, soft_wrap=True)


def onboarding(of: Onboarding, out: str) -> None:
    """What each method offers the new site, and the advice."""
    screen = console()
    site = of.site.table()[0]
    classes = (
        f", {site['classes']} of {len(of.site.class_names)} classes" if "classes" in site else ""
    )
    screen.print(
        f"{of.data}: {site['n_train']} training, {site['n_validation']} validation and "
        f"{count(site['n_test'], 'test sample')}{classes}",
        markup=False,
        soft_wrap=True,
    )
    columns = ("start from", "epochs", "validation", "test before", "test", "gain over alone")
    alone = of.newcomers[0]
    cells = [
        (
            _name(n),
            str(n.epochs),
            score(n.after.validation_score, of.metric),
            score(n.before.test_score, of.metric),
            score(n.after.test_score, of.metric),
            "" if n.method == ALONE else _gain(of.gain(n, alone), of.metric),
        )
        for n in of.newcomers
    ]
    screen.print(table(columns, cells))
    for n in of.newcomers:
        if n.method != ALONE and n.start.startswith("no "):
            screen.print(f"{n.method} has {n.start}.", markup=False, soft_wrap=True)
    for line in _advice(of):
        prose(screen, line)
    screen.print(f"Models, manifests and learning curves: {out}", markup=False, soft_wrap=True)


def _name(newcomer: Newcomer) -> str:
    return "alone (untrained)" if newcomer.method == ALONE else newcomer.method


def _advice(of: Onboarding) -> list[str]:
    """Chosen on validation data; the test data only says what it is worth."""
    best, alone = of.best, of.newcomers[0]
    epochs = count(best.epochs, "epoch")
    if best is alone:
        text = f"Train alone, for {epochs}: on validation data no global model did better"
    elif not best.epochs:
        text = f"Take {best.method}'s model as it is: on validation data fine-tuning did not help"
    else:
        text = f"Start from {best.method}'s model and fine-tune for {epochs}"
    if best.after.test_score is None:
        return [f"{text}. There is no test data to tell what that gives."]
    text += f": {score(best.after.test_score, of.metric)} on the new site's test data"
    if best is not alone:
        text += f", against {score(alone.after.test_score, of.metric)} alone"
    lines = [f"{text}."]
    if of.tied:
        names = " and ".join(_name(n) for n in of.tied)
        samples = count(of.site.table()[0]["n_test"], "test sample")
        lines.append(f"Tied: {samples} cannot tell {best.method} from {names}.")
    return lines


def _gain(found: Gain | None, metric: Metric) -> str:
    """With its interval, which is of this site by itself."""
    if found is None:
        return gain(None, metric)
    value, low, high = (float(v[0]) for v in (found.per_client, found.low, found.high))
    if np.isnan(low):
        return gain(value, metric)
    return f"{gain(value, metric)} [{gain(low, metric)}, {gain(high, metric)}]"


def reasons(of: Reasons) -> None:
    """The weights, largest first, and how far they can be trusted."""
    screen = console()
    screen.print(
        f"{of.name}, {of.method}, seed {of.seed}: whose risks its model weighed most "
        f"(every weight starts at {of.start:.4g})",
        markup=False,
        soft_wrap=True,
    )
    if not of.weights:
        screen.print("It never trained with another client's gradient: all weights are as begun.")
    else:
        columns = ("client", "train", "met", "weight", "change", "share of the last gradient")
        cells = [
            (
                w.name.removeprefix("client ") + (" = itself" if w.client == of.client else ""),
                str(w.n_train),
                str(w.met),
                f"{w.weight:.4f}",
                f"{w.change:+.4f}",
                percent(w.share),
            )
            for w in of.weights[:MOST]
        ]
        screen.print(table(columns, cells))
        if len(of.weights) > MOST:
            screen.print(f"... and {count(len(of.weights) - MOST, 'more client')}")
    if not of.has_gradient:
        screen.print("The run holds no gradients of a last round, so there are no shares.")
    screen.print(of.limits, soft_wrap=True)
