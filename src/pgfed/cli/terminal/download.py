"""The bytes of a download, for people."""

from __future__ import annotations

from typing import Self, TextIO


class Download:
    """The bytes of a download: a bar on a terminal, silent elsewhere."""

    def __init__(self, name: str, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(file=stream),
            disable=not stream.isatty(),
        )
        self._task = self._bar.add_task(name, total=None)

    def update(self, received: int, total: int | None) -> None:
        self._bar.update(self._task, completed=received, total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
