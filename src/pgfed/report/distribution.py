"""A picture of who holds how much of what."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np

from pgfed.data.federation import Federation
from pgfed.errors import UserError

MAX_CLIENTS = 200  # beyond this dots can no longer be told apart


def distribution_figure(federation: Federation, path: Path) -> Path:
    """Save a figure of clients by classes, a dot's area the number of samples (PNG, SVG, PDF)."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UserError(f"{path}: cannot draw {path.suffix!r}; allowed: .png, .svg, .pdf")
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ModuleNotFoundError:
        raise UserError(
            "the figure needs matplotlib, which is not installed: pip install pgfed[report]"
        ) from None

    counts = federation.counts()[:MAX_CLIENTS]
    clients, classes = counts.shape
    width, height = np.clip([clients * 0.22 + 2.0, classes * 0.22 + 1.4], 4.0, 24.0)
    figure = figures.Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    client, label = np.nonzero(counts)
    # The largest dot just fills its cell (72 points to the inch).
    cell = 72 * min((width - 2.0) / clients, (height - 1.4) / classes)
    share = counts[client, label] / counts.max()
    axes.scatter(client, label, s=share * cell**2, color="#2a6f97", linewidths=0)
    axes.set_xlim(-0.7, clients - 0.3)
    axes.set_ylim(classes - 0.3, -0.7)
    if classes <= 100:
        axes.set_yticks(range(classes), federation.class_names, fontsize=7)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    shown = f"the first {clients} of {len(federation)}" if clients < len(federation) else clients
    axes.set_title(
        f"{federation.name}: {shown} clients; the largest dot is {counts.max():,} samples",
        fontsize=9,
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
    return path
