"""Where a run begins that goes on from an earlier one."""

from __future__ import annotations

from torch import Tensor

from pgfed.model.task import Task


class Start:
    """Models of an earlier run to begin with."""

    def shared(self, task: Task) -> Tensor:
        """The method's global one, for the server and for clients that were not there."""
        raise NotImplementedError

    def personal(self, task: Task, client: int) -> Tensor | None:
        """A client's own; None where it was not there."""
        raise NotImplementedError
