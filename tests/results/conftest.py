"""The run folder that the report's tests read, too."""

from report.conftest import folder as folder
from report.conftest import group as group
