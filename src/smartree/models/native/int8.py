"""Linear layers with weights of 8 bits, for draft heads: their guesses never change the output."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import pad

from smartree.models.native.matrix import NativeLinear, is_plain_bfloat16
from smartree.models.pages import LargePages

_COLUMNS = 32  # outputs of a block; `kColumns` of the kernels
_INPUTS = 32  # their number is a multiple of it
_MOST_INPUTS = 2**16  # sums of so many products of bytes fit into 32 bits
_LARGEST = 127


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds every output's weights to multiples of a 127th of its largest one.

    Args:
        weight: [outputs, inputs].

    Returns:
        [outputs, inputs] int8 and [outputs] float32 what one step is worth.
    """
    wide = weight.float()
    largest = wide.abs().amax(dim=1)
    steps = largest / _LARGEST
    codes = torch.round(wide / torch.where(steps > 0, steps, 1.0)[:, None])
    return codes.to(torch.int8), steps


class Int8Linear(NativeLinear):
    """A bfloat16 linear layer whose weights are rounded to 8 bits.

    Its inputs are rounded to 8 bits too, each row by its own largest value, so a row's result does not depend on the
    other rows here either. Only for layers that `fits_int8`, where the kernels take them.
    """

    def __init__(self, linear: nn.Linear, pages: LargePages) -> None:
        """Args:
        linear: whose weight and bias it takes.
        pages: where the weight is to lie.
        """
        super().__init__(linear, pages)
        self.matrix.scale, self.matrix.offset = self._steps.data_ptr(), self._offsets.data_ptr()

    def _pack(self, weight: torch.Tensor, pages: LargePages) -> torch.Tensor:
        """[outputs, inputs] -> [ceil(outputs / 32), inputs / 4, 32, 4], zeros behind the last output."""
        codes, steps = quantise(weight)
        missing = -len(weight) % _COLUMNS
        codes, self._steps = pad(codes, (0, 0, 0, missing)), pad(steps, (0, missing))
        self._offsets = -128 * codes.sum(dim=1, dtype=torch.int32)
        blocks, fours = len(codes) // _COLUMNS, codes.shape[1] // 4
        packed = pages.zeros((blocks, fours, _COLUMNS, 4), torch.int8)
        return packed.copy_(codes.view(blocks, _COLUMNS, fours, 4).transpose(1, 2))

    def dense(self) -> torch.Tensor:
        """[out, in] the rounded weight in the usual layout, a copy in bfloat16."""
        codes = self.packed.transpose(1, 2).reshape(len(self._steps), -1)
        return (codes * self._steps[:, None])[: self.out_features].to(torch.bfloat16)


def fits_int8(module: nn.Module) -> bool:
    """True for a plain bfloat16 linear layer on a CPU, of a size that products of bytes take."""
    return is_plain_bfloat16(module) and module.in_features % _INPUTS == 0 and module.in_features <= _MOST_INPUTS
