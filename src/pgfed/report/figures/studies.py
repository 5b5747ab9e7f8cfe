"""The figures of the studies: clients that come later, explicit against implicit objectives."""

from __future__ import annotations

from pgfed.paper import printed as paper
from pgfed.report.figures.specification import (
    BLUE,
    PALETTE,
    VERMILLION,
    Figure,
    Panel,
    Style,
    Trace,
    layout_of,
    percents,
    plain,
    spec,
)
from pgfed.results.comparison import Group
from pgfed.results.formats import count, percent, signed


def new_clients(group: Group, style: Style) -> Figure | None:
    """Clients that were not there during training, fine-tuning the global model."""
    found = {name: curve for folder in group.folders for name, curve in folder.new_clients.items()}
    if not found:
        return None
    traces: list[Trace] = []
    told = []
    for name, curve in found.items():
        colour, dash = style[name]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "meta": name,
                "x": curve["epochs"],
                "y": percents(curve["accuracy"]),
                "line": {"color": colour, "dash": dash, "width": 2},
                "marker": {"color": colour, "size": 6},
                "hovertemplate": f"{plain(name)}, epoch %{{x}}: %{{y:.1f}} %<extra></extra>",
            }
        )
        best = f"{name} {percent(max(curve['accuracy'], default=0.0))}"
        printed = paper.new_clients(group, name)
        told.append(best if printed is None else f"{best} (paper {percent(printed)})")
    caption = (
        "Clients that took no part in training start from the global model and train on their own "
        f"data. Best over the epochs: {'; '.join(told)}."
    )
    if "(paper" in caption:
        caption += _setting_of_new_clients(group)
    return Figure(
        "new-clients",
        "",
        caption,
        ["accuracy over epochs"],
        [
            Panel(
                "Accuracy of new clients over epochs of fine-tuning",
                [spec(traces, layout_of("epochs of fine-tuning", "accuracy in %"))],
            )
        ],
        legend=list(found),
    )


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


def explicit(group: Group) -> Figure | None:
    """A few exact steps from a FedAvg model, with and without the other clients' risks."""
    arms = [arm for folder in group.folders for arm in folder.explicit]
    if not arms:
        return None
    mus = sorted({arm.mu for arm in arms})
    colours = dict(zip(mus, (BLUE, VERMILLION, *PALETTE[3:], *PALETTE * len(mus)), strict=False))
    steps: list[Trace] = []
    gained: list[Trace] = []
    rates: list[Trace] = []
    told = []
    for mu in mus:
        name = f"explicit, mu = {mu:g}" if mu else "implicit"
        line = {"color": colours[mu], "width": 2}
        of_mu = sorted((arm for arm in arms if arm.mu == mu), key=lambda arm: arm.lr)
        for arm in of_mu:
            if arm.chosen:
                told.append(f"{name}: {signed(arm.gain)} points (step length {arm.lr:g})")
                steps.append(
                    {
                        "type": "scatter",
                        "mode": "lines+markers",
                        "name": name,
                        "line": line,
                        "x": list(range(len(arm.accuracy))),
                        "y": percents(arm.accuracy),
                        "hovertemplate": f"{name}, step %{{x}}: %{{y:.1f}} %<extra></extra>",
                    }
                )
                gained.append(
                    {
                        "type": "histogram",
                        "name": name,
                        "x": percents(arm.gains),
                        "opacity": 0.55,
                        "marker": {"color": colours[mu]},
                        "hovertemplate": f"{name}: %{{y}} clients at %{{x}} points<extra></extra>",
                    }
                )
        rates.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "line": line,
                "x": [arm.lr for arm in of_mu],
                "y": percents(arm.gain for arm in of_mu),
                "hovertemplate": f"{name}, %{{x}}: %{{y:+.1f}} points<extra></extra>",
            }
        )
    printed = paper.explicit(group)
    caption = (
        "Every client takes a few full-batch gradient steps from the FedAvg model, on its own risk "
        f"(implicit) or with mu times the mean of all others' risks. {'; '.join(told)}."
    )
    if printed is not None:
        caption += (
            f" The paper: explicit {printed['explicit_mean_gain']:+.2f}, implicit "
            f"{printed['implicit_mean_gain']:+.2f}; it does not say mu and step length."
        )
    legend = {"showlegend": True, "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"}}
    by_step = layout_of("gradient steps", "accuracy in %") | legend
    histogram = layout_of("gain of a client in points", "clients") | legend
    histogram["barmode"] = "overlay"
    by_rate = layout_of("step length", "mean gain in points") | legend
    by_rate["xaxis"]["type"] = "log"
    by_rate["yaxis"]["zeroline"] = True
    return Figure(
        "explicit",
        "",
        caption,
        ["accuracy over steps", "gains of the clients", "all step lengths"],
        [
            Panel(
                "Explicit and implicit steps from a FedAvg model",
                [
                    spec(steps, by_step),
                    spec(gained, histogram),
                    spec(rates, by_rate),
                ],
            )
        ],
    )
