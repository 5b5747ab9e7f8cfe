"""What is told of an experiment's runs while they happen.

Progress on a terminal, the run folder, TensorBoard: all of them are callbacks. Importing this
module does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgfed.engine.rounds import Run

Record = dict[str, Any]  # of a round; clients are numbers in it


class Callback:
    """Somebody who is told how runs go on. Each method does nothing; override what you need.

    ``method`` is the name of the method's folder. Callbacks are called in their order, in the
    process that runs the rounds; one that adds to a record comes before those that keep it.
    """

    def begin(self, method: str, run: Run) -> None:
        """A run starts, or goes on after the rounds of its history."""

    def skip(self, method: str, seed: int, history: list[Record]) -> None:
        """A run had come to its end before, with these rounds."""

    def best(self, method: str, run: Run) -> None:
        """The round just run is the best so far on validation data (output.keep = "best").

        Told before `round`, and never of a method that has one result, at the end.
        """

    def round(self, method: str, run: Run, record: Record) -> None:
        """A round has been run; its checkpoint comes after."""

    def end(self, method: str, run: Run) -> None:
        """The last round has been run; the engine can still be asked for models."""
