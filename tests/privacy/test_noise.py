"""Noise and draws are what they are said to be, and from where."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from pgfed.data.federation import Shard
from pgfed.model.private.noise import Keyed, Secret, Source, drawn, normals, uniforms
from privacy.material import linear, noisy_gradient, policy, samples

D = 100_000
SIZE, CLIP, SIGMA = 30, 0.7, 2.5


@pytest.fixture(scope="module")
def noises() -> dict[str, np.ndarray]:
    """Of gradients that are zero: nothing but noise, as a method gets it."""
    task, rules = linear(D), policy(SIZE, SIGMA, CLIP)
    nothing = Shard(torch.zeros(20, D), torch.zeros(20, dtype=torch.int64))
    found: dict[str, np.ndarray] = {}
    for name, source in {
        "site 0 round 1": Keyed("privacy", 0, 0, 1),
        "site 0 round 2": Keyed("privacy", 0, 0, 2),
        "site 1 round 1": Keyed("privacy", 0, 1, 1),
        "secret": Secret(),
        "secret again": Secret(),
    }.items():
        steps = [noisy_gradient(task, nothing, rules, batch=5, source=source) for _ in range(2)]
        for k, step in enumerate(steps):
            found[f"{name} step {k}"] = step.numpy().astype(float) * 5 / (SIGMA * CLIP)
    return found


def test_noise_is_standard_normal(noises: dict[str, np.ndarray]) -> None:
    for name, noise in noises.items():
        if "secret" not in name:  # keyed: the same in every run
            assert stats.kstest(noise, "norm").pvalue > 1e-4, name
        assert abs(noise.var() - 1) < 0.03 if "secret" in name else abs(noise.var() - 1) < 0.015


def test_noise_of_steps_rounds_and_sites_has_nothing_in_common(
    noises: dict[str, np.ndarray],
) -> None:
    keyed = [noise for name, noise in noises.items() if "secret" not in name]
    together = np.corrcoef(keyed) - np.eye(len(keyed))
    assert np.abs(together).max() < 0.015


def test_no_two_calls_at_a_site_are_alike(noises: dict[str, np.ndarray]) -> None:
    assert not np.array_equal(noises["secret step 0"], noises["secret again step 0"])
    assert not np.array_equal(noises["secret step 0"], noises["secret step 1"])


def test_the_same_key_gives_the_same_noise() -> None:
    assert np.array_equal(normals(Keyed(1, 2), 7), normals(Keyed(1, 2), 7))
    assert not np.array_equal(
        normals(Keyed(1, 2), 7),
        normals(
            Keyed(
                12,
            ),
            7,
        ),
    )


class Words:
    """A source of given words."""

    def __init__(self, *words: int) -> None:
        self._words = words

    def words(self, n: int) -> np.ndarray:
        return np.resize(np.array(self._words, dtype=np.uint64), n)


def test_uniforms_never_reach_an_end_and_normals_stay_finite() -> None:
    lowest, highest = uniforms(Words(0), 1)[0], uniforms(Words(2**64 - 1), 1)[0]
    assert lowest == 2.0**-54
    assert highest == 1 - 2.0**-54 or highest < 1
    assert np.isfinite(normals(Words(0, 2**64 - 1), 5)).all()


def test_box_and_muller_by_hand() -> None:
    u = uniforms(Keyed("k"), 4)
    by_hand = [
        np.sqrt(-2 * np.log(u[0])) * np.cos(2 * np.pi * u[2]),
        np.sqrt(-2 * np.log(u[1])) * np.cos(2 * np.pi * u[3]),
        np.sqrt(-2 * np.log(u[0])) * np.sin(2 * np.pi * u[2]),
    ]
    assert normals(Keyed("k"), 3) == pytest.approx(by_hand)


def test_draws_have_the_spread_of_independent_ones() -> None:
    """Batches of a fixed size would have none."""
    n, q = 400, 0.1
    source: Source = Keyed("draws")
    sizes = np.array([len(drawn(source, n, q)) for _ in range(1000)])
    assert sizes.mean() == pytest.approx(n * q, rel=0.03)
    assert sizes.var() == pytest.approx(n * q * (1 - q), rel=0.2)
    assert len(drawn(source, n, 1.0)) == n


def test_an_empty_draw_is_a_step_of_noise() -> None:
    """u = 1/2 is not below q: nobody is drawn, and noise is added all the same."""

    class Nobody(Words):
        calls = 0

        def words(self, n: int) -> np.ndarray:
            self.calls += 1
            return Keyed("x").words(n) if self.calls > 1 else np.full(n, 2**63, dtype=np.uint64)

    rules = policy(SIZE, SIGMA, CLIP)
    step = noisy_gradient(linear(5), samples(9), rules, batch=3, source=Nobody(0))
    expected = normals(Keyed("x"), 5) * SIGMA * CLIP / 3
    assert step.numpy() == pytest.approx(expected, rel=1e-6)
