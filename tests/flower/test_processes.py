"""Real SuperLink and SuperNode processes on loopback, with TLS and keys."""

from __future__ import annotations

import pytest

from flower import small
from flower.running import Running, until
from flower.test_rounds import assert_same_as_serial, history
from pgfed import algorithms


def test_three_sites_end_to_end_have_the_bits_of_a_simulation(tmp_path):
    with Running(tmp_path).all() as federation:
        federation.finish("--min-replies", "2")
        assert_same_as_serial(federation.folder, "pgfed")
        assert "accuracy" in federation.said("run")
    assert small.site_path(federation.folder.path, 0).joinpath("report.csv").is_file()
    assert not federation.left_over()
