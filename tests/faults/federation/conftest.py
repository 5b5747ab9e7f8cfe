"""The table of what was tried, printed when all is done."""

from __future__ import annotations

import pytest

ROWS: list[tuple[str, str, str]] = []


@pytest.fixture(scope="session")
def row():
    """Note a row: what REVIEW calls it, what was done, and what came of it."""

    def note(review: str, fault: str, outcome: str) -> None:
        ROWS.append((review, fault, outcome))

    return note


def pytest_terminal_summary(terminalreporter):
    if not ROWS:
        return
    terminalreporter.section("faults of a federation")
    for review, fault, outcome in ROWS:
        terminalreporter.write_line(f"{review:5} {fault:58} {outcome}")
    terminalreporter.write_line(f"{len(ROWS)} rows")
