"""The command line in this process, in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.cli_tools import Done
from pgfed.cli.app import main


@pytest.fixture
def pgfed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """Call `pgfed` with these words; the current folder is tmp_path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PGFED_DATA", raising=False)

    def call(*words: object) -> Done:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        printed = capsys.readouterr()
        return Done(ended.value.code, printed.out, printed.err)

    return call
