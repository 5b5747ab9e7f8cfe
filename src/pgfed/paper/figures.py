"""The figure of explicit against implicit, as PNG and SVG."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgfed.errors import UserError
from pgfed.paper.explicit import Arm, Explicit

Floats = NDArray[np.float64]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito
NARROWEST = 0.005  # of the density's bandwidth: accuracies are counts over few samples


def check_matplotlib() -> Any:
    """The module that draws, or one line on how to get it; asked before hours of work."""
    try:
        return importlib.import_module("matplotlib.figure")
    except ModuleNotFoundError:
        raise UserError(
            "the figure needs matplotlib, which is not installed: pip install pgfed[report]"
        ) from None


def explicit_figure(result: Explicit, folder: Path) -> list[Path]:
    """Accuracy over steps, the gains of the clients, and the whole range of step lengths."""
    figure = check_matplotlib().Figure(figsize=(13, 4), layout="constrained")
    over_steps, of_clients, over_rates = figure.subplots(1, 3)
    style = dict(zip(result.chosen, COLOURS * len(result.chosen), strict=False))
    for mu, arm in result.chosen.items():
        label = f"{arm.name} (η = {arm.lr:g})"
        over_steps.plot(100 * arm.curve, marker="o", color=style[mu], label=label)
    over_steps.set(xlabel="gradient steps", ylabel="mean accuracy, %", title="From a FedAvg model")
    over_steps.xaxis.get_major_locator().set_params(integer=True)
    over_steps.legend(fontsize=8)

    both = np.concatenate([result.implicit.gains, result.explicit.gains])
    count = int(np.clip(np.sqrt(2 * len(both)), 4, 20))
    bins = np.histogram_bin_edges(100 * both[~np.isnan(both)], bins=count)
    for arm in (result.implicit, result.explicit):
        _density(of_clients, arm, bins, style[arm.mu])
    of_clients.set(xlabel="gain of a client, points", ylabel="density", title="Individual gains")
    of_clients.legend(fontsize=8)

    for mu in result.chosen:
        arms = sorted((arm for arm in result.arms if arm.mu == mu), key=lambda arm: arm.lr)
        gains = [100 * float(np.nanmean(arm.gains)) for arm in arms]
        rates = [arm.lr for arm in arms]
        over_rates.plot(rates, gains, marker="o", color=style[mu], label=arms[0].name)
    over_rates.axhline(0, color="#888888", linewidth=0.8)
    over_rates.set(xscale="log", xlabel="η", ylabel="mean gain, points", title="All step lengths")
    over_rates.legend(fontsize=8)
    paths = [folder / f"explicit.{kind}" for kind in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths


def _density(axes: Any, arm: Arm, bins: Floats, colour: str) -> None:
    gains = arm.gains[~np.isnan(arm.gains)]
    axes.hist(100 * gains, bins=bins, density=True, color=colour, alpha=0.3)
    grid, density = kernel_density(gains)
    label = f"{arm.name}: mean {100 * gains.mean():+.2f}"
    axes.plot(100 * grid, density / 100, color=colour, label=label)
    axes.axvline(100 * gains.mean(), color=colour, linestyle=":", linewidth=1)


def kernel_density(values: Floats) -> tuple[Floats, Floats]:
    """Gaussian kernels of Silverman's width, on a grid that covers them."""
    width = max(1.06 * float(values.std()) * len(values) ** -0.2, NARROWEST)
    grid = np.linspace(values.min() - 3 * width, values.max() + 3 * width, 200)
    kernels = np.exp(-0.5 * ((grid[:, None] - values[None, :]) / width) ** 2)
    density: Floats = kernels.mean(axis=1) / (width * np.sqrt(2 * np.pi))
    return grid, density
