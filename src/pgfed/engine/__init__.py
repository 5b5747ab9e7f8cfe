"""Running a federation: rounds, cohorts, scoring, and where the clients' work is done."""

from pgfed.engine.backend import Backend, Serial
from pgfed.engine.client import ClientError
from pgfed.engine.process import Process
from pgfed.engine.run import Run

__all__ = ["Backend", "ClientError", "Process", "Run", "Serial"]
