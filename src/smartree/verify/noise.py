"""Gumbel noise that depends on a request's seed and an absolute position only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_LEAST = 2.0**-24 - 1  # -V as float32: the logarithm of 0 is not finite


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


def noise_key(seed: int, position: int) -> int:
    """Where the stream of a seed begins at a position: 64 bits."""
    return _mix(_mix(seed) + _GOLDEN * (position + 1))


def derived_seed(seed: int, number: int) -> int:
    """The seed of output `number` of a prompt that wants several; output 0 keeps the prompt's own."""
    return seed if number == 0 else _mix(_mix(seed + number * _GOLDEN) ^ _MIX_2) >> 1


class GumbelNoise:
    """SplitMix64 streams, one per (seed, position), one number per vocabulary entry.

    Integer arithmetic, the same on CPU and CUDA; two requests with one seed, alone or in a batch, speculating or not,
    draw the same tokens (design 4). A number is 52 bits and a half, V in (0, 1), and the noise -log(-log(1 - V)): large
    noise belongs to small V, which float32 resolves, so that probabilities are kept to seven digits however small.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        entries = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=device)
        self._offsets = entries * _signed(_GOLDEN)
        self._bits, self._scratch = (np.empty(vocab_size, np.uint64) for _ in range(2))

    def rows(self, seeds: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """[R, vocabulary] float32 standard Gumbel noise, one row per (seed, position)."""
        keys = [noise_key(seed, position) for seed, position in zip(seeds, positions, strict=True)]
        device = self._offsets.device
        if device.type != "cpu":
            column = torch.tensor([_signed(key) for key in keys], dtype=torch.int64, device=device)[:, None]
            return _gumbel(_mixed(column + self._offsets))
        noise = torch.empty(len(keys), len(self._offsets))
        for row, key in zip(noise, keys, strict=True):  # row by row, which stays in the processor's cache
            row.copy_(_gumbel(self._mixed_in_place(key)))
        return noise

    def _mixed_in_place(self, key: int) -> torch.Tensor:
        """What `_mixed` gives for one row; numpy has the logical shift that torch lacks and takes half as long."""
        bits, scratch = self._bits, self._scratch
        np.add(self._offsets.numpy().view(np.uint64), np.uint64(key), out=bits)
        for shift, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
            np.right_shift(bits, np.uint64(shift), out=scratch)
            np.bitwise_xor(bits, scratch, out=bits)
            if factor != 1:
                np.multiply(bits, np.uint64(factor), out=bits)
        np.invert(bits, out=bits)
        np.right_shift(bits, np.uint64(12), out=bits)
        return torch.from_numpy(bits.view(np.int64))


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser, inverted, the upper 52 bits."""
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        bits = (bits ^ _logical_shift(bits, shift)) * _signed(factor)
    return _logical_shift(~(bits ^ _logical_shift(bits, 31)), 12)


def _gumbel(numbers: torch.Tensor) -> torch.Tensor:
    """Gumbel noise from integers of 52 bits."""
    less = numbers.to(torch.float32).add_(0.5).mul_(-(2.0**-52)).clamp_(min=_LEAST)
    return less.log1p_().neg_().log_().neg_()


def _logical_shift(bits: torch.Tensor, places: int) -> torch.Tensor:
    """Right shift that fills with zeros; torch's own fills with the sign."""
    return (bits >> places) & (2 ** (64 - places) - 1)
