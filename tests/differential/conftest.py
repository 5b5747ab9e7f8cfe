"""One bench for all: the old tree is unpacked once."""

from __future__ import annotations

import pytest

from differential.trees import Bench, no_history


@pytest.fixture(scope="session")
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    reason = no_history()
    if reason is not None:
        pytest.skip(reason)
    memory = request.config.cache.mkdir("version-0.1")
    return Bench(tmp_path_factory.mktemp("differential"), memory)
