"""Noise: a function of seed and position alone, and Gumbel noise at that."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from smartree.verify.noise import _GOLDEN, GumbelNoise, _mix, _mixed, _signed

CPU = torch.device("cpu")


def uniform(noise: torch.Tensor) -> np.ndarray:
    """Gumbel noise mapped back to (0, 1) by its distribution function."""
    return torch.exp(-torch.exp(-noise.double())).flatten().numpy()


def test_the_same_seed_and_position_give_the_same_noise_whoever_else_is_in_the_batch() -> None:
    noise = GumbelNoise(50, CPU)
    alone = noise.rows([7], [3])[0]
    assert torch.equal(GumbelNoise(50, CPU).rows([7], [3])[0], alone)
    batch = noise.rows([1, 7, 2, 7], [3, 3, 9, 4])
    assert torch.equal(batch[1], alone)
    assert not torch.equal(batch[3], alone)


def test_a_larger_vocabulary_keeps_the_noise_of_its_first_entries() -> None:
    longer, shorter = GumbelNoise(90, CPU).rows([7], [3])[0, :50], GumbelNoise(50, CPU).rows([7], [3])[0]
    assert torch.allclose(longer, shorter, rtol=1e-6)  # the last entries of a row may be rounded otherwise


def test_every_seed_and_every_position_has_its_own_noise() -> None:
    seeds = [seed for seed in (0, 1, 2, 2**32, 2**62, 2**63 - 1) for _ in range(200)]
    rows = GumbelNoise(4, CPU).rows(seeds, list(range(200)) * 6)
    assert torch.isfinite(rows).all()
    assert len(torch.unique(rows)) > 0.99 * rows.numel()  # a few pairs are equal in float32


def test_it_is_the_noise_that_it_was() -> None:
    # A seed in a bug report must give the same output with the next release, on any device.
    rows = GumbelNoise(3, CPU).rows([0, 123456789], [1, 4095])
    expected = reference(0, 1, 3) + reference(123456789, 4095, 3)
    assert rows.flatten().tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_every_device_computes_the_same_numbers() -> None:
    noise = GumbelNoise(100, CPU)
    keys = [_mix(_mix(seed) + _GOLDEN * (position + 1)) for seed, position in ((0, 1), (2**62, 77))]
    columns = torch.tensor([_signed(key) for key in keys])[:, None]
    assert torch.equal(
        _mixed(columns + noise._offsets), torch.stack([noise._mixed_in_place(key).clone() for key in keys])
    )


def reference(seed: int, position: int, vocab: int) -> list[float]:
    """SplitMix64 written out on Python integers."""
    golden, mask = 0x9E3779B97F4A7C15, 2**64 - 1

    def mix(value: int) -> int:
        value &= mask
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        return value ^ (value >> 31)

    key = mix(mix(seed) + golden * (position + 1))
    uniforms = [((mix(key + golden * (entry + 1)) >> 12) + 0.5) * 2.0**-52 for entry in range(vocab)]
    return [float(-np.log(-np.log(one))) for one in uniforms]


@pytest.mark.parametrize("varying", ["seed", "position", "entry"])
def test_it_is_uniform_along_every_direction(varying: str) -> None:
    count = 20_000
    if varying == "entry":
        values = uniform(GumbelNoise(count, CPU).rows([11], [5]))
    else:
        many = list(range(count))
        seeds, positions = (many, [5] * count) if varying == "seed" else ([11] * count, many)
        values = uniform(GumbelNoise(1, CPU).rows(seeds, positions))
    assert stats.kstest(values, "uniform").pvalue > 1e-4
    # Neighbours are independent: pairs fill the unit square evenly.
    counts = np.histogram2d(values[:-1:2], values[1::2], bins=8, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(counts.ravel()).pvalue > 1e-4


@pytest.mark.parametrize(("shift", "what"), [((1, 0), "seed"), ((0, 1), "position")])
def test_neighbouring_streams_are_uncorrelated(shift: tuple[int, int], what: str) -> None:
    rows = GumbelNoise(50_000, CPU).rows([3, 3 + shift[0]], [8, 8 + shift[1]])
    values = [uniform(row) for row in rows]
    assert abs(float(np.corrcoef(values)[0, 1])) < 0.02
    # Nor is one stream the other one moved along.
    for lag in (1, 2, 3):
        assert abs(float(np.corrcoef(values[0][lag:], values[1][:-lag])[0, 1])) < 0.02


def unmix(value: int) -> int:
    """The input of SplitMix64's finaliser that gives `value`."""
    mask = 2**64 - 1
    value ^= value >> 31 ^ value >> 62
    value = value * pow(0x94D049BB133111EB, -1, 2**64) & mask
    value ^= value >> 27 ^ value >> 54
    value = value * pow(0xBF58476D1CE4E5B9, -1, 2**64) & mask
    return value ^ value >> 30 ^ value >> 60


@pytest.mark.parametrize("highest", [False, True])
def test_the_ends_of_the_range_are_finite(highest: bool) -> None:
    # The seeds whose first bits are all 0 or all 1: infinite noise would draw a token that top_k has removed.
    golden, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    bits = range(2**64 - 2**11, 2**64) if highest else range(2**11)
    seeds = [unmix(unmix(unmix(one) - golden & mask) - golden & mask) for one in bits]
    seeds = [seed for seed in seeds if seed < 2**63]
    rows = GumbelNoise(1, CPU).rows(seeds, [0] * len(seeds))
    assert len(seeds) > 500
    assert torch.isfinite(rows).all()
    assert torch.all(rows > 30) if highest else torch.all(rows < -2.8)
