"""The Python interface: `pgfed.run`, `pgfed.open` and what they give, `Result`."""

from pgfed.api.predictions import Predictions
from pgfed.api.result import Result, open
from pgfed.api.running import run, run_setup

__all__ = ["Predictions", "Result", "open", "run", "run_setup"]
