"""The run folder that the report's tests read, too."""

from cli.conftest import pgfed as pgfed  # the command line, as a fixture
from report.conftest import folder as folder
from report.conftest import group as group
