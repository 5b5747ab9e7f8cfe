"""The study of explicit against implicit objectives, as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pgfed.report.figures.colours import GREY
from pgfed.report.figures.specification import objective_colours
from pgfed.report.images.drawing import KINDS, blank, styled, write
from pgfed.results.statistics import Floats

if TYPE_CHECKING:
    from pgfed.paper.explicit import Arm, Explicit

NARROWEST = 0.005  # of the density's bandwidth: accuracies are counts over few samples


def explicit_figure(result: Explicit, folder: Path) -> list[Path]:
    """Accuracy over steps, the gains of the clients, and the whole range of step lengths."""
    colours = objective_colours(sorted(result.chosen))
    with styled():
        figure = blank(13, 4)
        over_steps, of_clients, over_rates = figure.subplots(1, 3)
        _over_steps(over_steps, result, colours)
        _of_clients(of_clients, result, colours)
        _over_rates(over_rates, result, colours)
    return [write(figure, folder / f"explicit.{kind}") for kind in KINDS]


def _over_steps(axes: Any, result: Explicit, colours: dict[float, str]) -> None:
    for mu, arm in result.chosen.items():
        label = f"{arm.name} (η = {arm.lr:g})"
        axes.plot(100 * arm.curve, marker="o", color=colours[mu], label=label)
    axes.set(xlabel="gradient steps", ylabel="mean accuracy, %", title="From a FedAvg model")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize=8)


def _of_clients(axes: Any, result: Explicit, colours: dict[float, str]) -> None:
    both = np.concatenate([result.implicit.gains, result.explicit.gains])
    count = int(np.clip(np.sqrt(2 * len(both)), 4, 20))
    bins = np.histogram_bin_edges(100 * both[~np.isnan(both)], bins=count)
    for arm in (result.implicit, result.explicit):
        _density(axes, arm, bins, colours[arm.mu])
    axes.set(xlabel="gain of a client, points", ylabel="density", title="Individual gains")
    axes.legend(fontsize=8)


def _density(axes: Any, arm: Arm, bins: Floats, colour: str) -> None:
    gains = arm.gains[~np.isnan(arm.gains)]
    axes.hist(100 * gains, bins=bins, density=True, color=colour, alpha=0.3)
    grid, density = kernel_density(gains)
    label = f"{arm.name}: mean {100 * gains.mean():+.2f}"
    axes.plot(100 * grid, density / 100, color=colour, label=label)
    axes.axvline(100 * gains.mean(), color=colour, linestyle=":", linewidth=1)


def kernel_density(values: Floats) -> tuple[Floats, Floats]:
    """Gaussian kernels of Silverman's width, on a grid that covers them.

    Not scipy's gaussian_kde, which refuses values that are all alike, as clients' gains can be.
    """
    width = max(1.06 * float(values.std()) * len(values) ** -0.2, NARROWEST)
    grid = np.linspace(values.min() - 3 * width, values.max() + 3 * width, 200)
    kernels = np.exp(-0.5 * ((grid[:, None] - values[None, :]) / width) ** 2)
    density: Floats = kernels.mean(axis=1) / (width * np.sqrt(2 * np.pi))
    return grid, density


def _over_rates(axes: Any, result: Explicit, colours: dict[float, str]) -> None:
    for mu in result.chosen:
        arms = sorted((arm for arm in result.arms if arm.mu == mu), key=lambda arm: arm.lr)
        gains = [100 * float(np.nanmean(arm.gains)) for arm in arms]
        rates = [arm.lr for arm in arms]
        axes.plot(rates, gains, marker="o", color=colours[mu], label=arms[0].name)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set(xscale="log", xlabel="η", ylabel="mean gain, points", title="All step lengths")
    axes.legend(fontsize=8)
