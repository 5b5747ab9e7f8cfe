"""A picture of who holds how much of what."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pgfed.data.federation import Federation
from pgfed.errors import UserError
from pgfed.report.figures.colours import BLUE
from pgfed.report.images.drawing import blank, check_format, styled, write

MAX_CLIENTS = 200  # beyond this dots can no longer be told apart


def distribution_figure(federation: Federation, path: Path) -> Path:
    """Save a figure of clients by classes, a dot's area the number of samples (PNG, SVG, PDF)."""
    check_format(path)
    counts = federation.counts()
    if counts is None:
        raise UserError(f"--figures: {federation.name} has {federation.targets}; allowed: classes")
    counts = counts[:MAX_CLIENTS]
    clients, classes = counts.shape
    width, height = np.clip([clients * 0.22 + 2.0, classes * 0.22 + 1.4], 4.0, 24.0)
    with styled():
        figure = blank(width, height)
        axes = figure.subplots()
        client, label = np.nonzero(counts)
        # The largest dot just fills its cell (72 points to the inch).
        cell = 72 * min((width - 2.0) / clients, (height - 1.4) / classes)
        share = counts[client, label] / counts.max()
        axes.scatter(client, label, s=share * cell**2, color=BLUE, linewidths=0)
        axes.set_xlim(-0.7, clients - 0.3)
        axes.set_ylim(classes - 0.3, -0.7)
        if classes <= 100:
            axes.set_yticks(range(classes), federation.class_names, fontsize=7)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("client")
        axes.set_ylabel("class")
        all_of_them = clients == len(federation)
        shown = clients if all_of_them else f"the first {clients} of {len(federation)}"
        axes.set_title(
            f"{federation.name}: {shown} clients; the largest dot is {counts.max():,} samples",
            fontsize=9,
        )
    return write(figure, path)
