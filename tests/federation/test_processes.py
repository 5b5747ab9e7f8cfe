"""Real processes of a server and three sites on loopback, with TLS and keys."""

from __future__ import annotations

from federation.running import Running
from federation.small import assert_same_as_serial, site_path
from pgfed.results.kept.models import open_model


def test_three_sites_end_to_end_have_the_bits_of_a_simulation(tmp_path):
    with Running(tmp_path).all() as federation:
        federation.finish("--min-replies", "2")
        assert_same_as_serial(federation.folder, "pgfed")
        said = federation.said("run")
        assert "round 3 of 3" in said
        assert "site-02" in said
    site = site_path(federation.folder.path, 0)
    assert (site / "report.csv").read_text().count("pgfed") == 1
    open_model(site / "models" / "small" / "pgfed" / "seed-0" / "model.safetensors").module()
