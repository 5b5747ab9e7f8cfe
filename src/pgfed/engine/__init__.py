"""Running a federation: rounds, cohorts, scoring, and where the clients' work is done."""

from pgfed.engine.backend import Backend, Serial
from pgfed.engine.checkpoint import Checkpoints
from pgfed.engine.client import ClientError
from pgfed.engine.process import Process
from pgfed.engine.run import Run
from pgfed.engine.store import ClientStore

__all__ = ["Backend", "Checkpoints", "ClientError", "ClientStore", "Process", "Run", "Serial"]
