"""Gumbel noise that depends on a request's seed and an absolute position only."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(value: int) -> int:
    """A 64-bit pattern as the signed integer that torch stores it in."""
    value &= _MASK
    return value - 2**64 if value >= 2**63 else value


def _mix(value: int) -> int:
    """The finaliser of SplitMix64 on a Python integer."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


class GumbelNoise:
    """SplitMix64 streams, one per (seed, position), one number per vocabulary entry.

    Integer arithmetic in torch, so that CPU and CUDA give the same bits; two requests with one seed, alone or in a
    batch, speculating or not, draw the same tokens (design 4).
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        entries = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=device)
        self._offsets = entries * _signed(_GOLDEN)

    def rows(self, seeds: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """[R, vocabulary] float64 standard Gumbel noise, one row per (seed, position)."""
        keys = [
            _signed(_mix(_mix(seed) + _GOLDEN * (position + 1)))
            for seed, position in zip(seeds, positions, strict=True)
        ]
        bits = torch.tensor(keys, dtype=torch.int64, device=self._offsets.device)[:, None] + self._offsets
        for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
            bits ^= _logical_shift(bits, shift)
            bits *= _signed(factor)
        bits ^= _logical_shift(bits, 31)
        # 52 bits and a half: neither 0 nor 1, so the logarithms are finite.
        uniform = _logical_shift(bits, 12).to(torch.float64).add_(0.5).mul_(2.0**-52)
        return uniform.log_().neg_().log_().neg_()


def _logical_shift(bits: torch.Tensor, places: int) -> torch.Tensor:
    """Right shift that fills with zeros; torch's own fills with the sign."""
    return (bits >> places) & (2 ** (64 - places) - 1)
