"""The figures of the studies: clients that come later, explicit against implicit objectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pgfed.model.metrics import ACCURACY
from pgfed.paper import printed as paper
from pgfed.report.figures.specification import (
    Figure,
    Panel,
    Style,
    Trace,
    layout_of,
    objective_colours,
    percents,
    plain,
    spec,
)
from pgfed.results.comparison import Group
from pgfed.results.formats import count, gain, percent
from pgfed.results.runs import Arm

# -- clients that come later -------------------------------------------------------------------


def new_clients(group: Group, style: Style) -> Figure | None:
    """Clients that were not there during training, fine-tuning the global model."""
    found = {name: curve for folder in group.folders for name, curve in folder.new_clients.items()}
    if not found:
        return None
    best = []
    for name, curve in found.items():
        own = f"{name} {percent(max(curve['accuracy'], default=0.0))}"
        printed = paper.new_clients(group, name)
        best.append(own if printed is None else f"{own} (paper {percent(printed)})")
    caption = (
        "Clients that took no part in training start from the global model and train on their own "
        f"data. Best over the epochs: {'; '.join(best)}."
    )
    if "(paper" in caption:
        caption += _setting_of_new_clients(group)
    traces = [_newcomers(name, curve, style) for name, curve in found.items()]
    panel = Panel(
        "Accuracy of new clients over epochs of fine-tuning",
        [spec(traces, layout_of("epochs of fine-tuning", "accuracy in %"))],
    )
    return Figure("new-clients", "", caption, ["accuracy over epochs"], [panel], legend=list(found))


def _newcomers(name: str, curve: dict[str, Any], style: Style) -> Trace:
    colour, dash = style[name]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "meta": name,
        "x": curve["epochs"],
        "y": percents(curve["accuracy"]),
        "line": {"color": colour, "dash": dash, "width": 2},
        "marker": {"color": colour, "size": 6},
        "hovertemplate": f"{plain(name)}, epoch %{{x}}: %{{y:.1f}} %<extra></extra>",
    }


def _setting_of_new_clients(group: Group) -> str:
    """In what the training before it was not the paper's."""
    printed = paper.tables()["new_clients"]
    experiment = group.folders[0].experiment
    ours = (len(group.clients), experiment.rounds)
    theirs = (printed["train_clients"], printed["rounds"])
    if ours == theirs:
        return ""
    return (
        f" Not the paper's setting: {ours[0]} clients trained for {count(ours[1], 'round')}, the "
        f"paper's {theirs[0]} for {theirs[1]}."
    )


# -- explicit against implicit -----------------------------------------------------------------


def explicit(group: Group) -> Figure | None:
    """A few exact steps from a FedAvg model, with and without the other clients' risks."""
    arms = [arm for folder in group.folders for arm in folder.explicit]
    if not arms:
        return None
    by_mu = {
        mu: sorted((arm for arm in arms if arm.mu == mu), key=lambda arm: arm.lr)
        for mu in sorted({arm.mu for arm in arms})
    }
    colours = objective_colours(by_mu)
    chosen = [arm for arms in by_mu.values() for arm in arms if arm.chosen]
    legend = {"showlegend": True, "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"}}
    by_step = layout_of("gradient steps", "accuracy in %") | legend
    histogram = layout_of("gain of a client in points", "clients") | legend
    histogram["barmode"] = "overlay"
    by_rate = layout_of("step length", "mean gain in points") | legend
    by_rate["xaxis"]["type"] = "log"
    by_rate["yaxis"]["zeroline"] = True
    panel = Panel(
        "Explicit and implicit steps from a FedAvg model",
        [
            spec([_over_steps(arm, colours[arm.mu]) for arm in chosen], by_step),
            spec([_gains(arm, colours[arm.mu]) for arm in chosen], histogram),
            spec([_over_rates(arms, colours[mu]) for mu, arms in by_mu.items()], by_rate),
        ],
    )
    views = ["accuracy over steps", "gains of the clients", "all step lengths"]
    return Figure("explicit", "", _what_came_out(group, chosen), views, [panel])


def _name(arm: Arm) -> str:
    return f"explicit, mu = {arm.mu:g}" if arm.mu else "implicit"


def _over_steps(arm: Arm, colour: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": _name(arm),
        "line": {"color": colour, "width": 2},
        "x": list(range(len(arm.accuracy))),
        "y": percents(arm.accuracy),
        "hovertemplate": f"{_name(arm)}, step %{{x}}: %{{y:.1f}} %<extra></extra>",
    }


def _gains(arm: Arm, colour: str) -> Trace:
    return {
        "type": "histogram",
        "name": _name(arm),
        "x": percents(arm.gains),
        "opacity": 0.55,
        "marker": {"color": colour},
        "hovertemplate": f"{_name(arm)}: %{{y}} clients at %{{x}} points<extra></extra>",
    }


def _over_rates(arms: Sequence[Arm], colour: str) -> Trace:
    """One objective with every step length."""
    name = _name(arms[0])
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "line": {"color": colour, "width": 2},
        "x": [arm.lr for arm in arms],
        "y": percents(arm.gain for arm in arms),
        "hovertemplate": f"{name}, %{{x}}: %{{y:+.1f}} points<extra></extra>",
    }


def _what_came_out(group: Group, chosen: Sequence[Arm]) -> str:
    gained = [
        f"{_name(arm)}: {gain(arm.gain, ACCURACY)} points (step length {arm.lr:g})"
        for arm in chosen
    ]
    caption = (
        "Every client takes a few full-batch gradient steps from the FedAvg model, on its own risk "
        f"(implicit) or with mu times the mean of all others' risks. {'; '.join(gained)}."
    )
    printed = paper.explicit(group)
    if printed is None:
        return caption
    return (
        f"{caption} The paper: explicit {printed['explicit_mean_gain']:+.2f}, implicit "
        f"{printed['implicit_mean_gain']:+.2f}; it does not say mu and step length."
    )
