"""Linear layers in the order in which the kernels read them."""

from __future__ import annotations

import ctypes
from typing import TypeGuard

import torch
from torch import nn
from torch.nn.functional import pad

from smartree.models.native.groups import Gathered
from smartree.models.native.library import Session, library
from smartree.models.native.structs import Matrix
from smartree.models.pages import LargePages

_COLUMNS = 32  # outputs of a block; `kColumns` of the kernels


def pack(weight: torch.Tensor, pages: LargePages) -> torch.Tensor:
    """[outputs, inputs] -> [ceil(outputs / 32), inputs / 2, 32, 2], zeros behind the last output."""
    outputs, inputs = weight.shape
    filled = pad(weight, (0, 0, 0, -outputs % _COLUMNS))
    packed = pages.zeros((len(filled) // _COLUMNS, inputs // 2, _COLUMNS, 2), weight.dtype)
    return packed.copy_(filled.view(-1, _COLUMNS, inputs // 2, 2).transpose(1, 2))


def unpack(packed: torch.Tensor, outputs: int) -> torch.Tensor:
    """The inverse of `pack`, a copy."""
    blocks, pairs = packed.shape[:2]
    return packed.transpose(1, 2).reshape(blocks * _COLUMNS, pairs * 2)[:outputs].clone()


class NativeLinear(nn.Module):
    """A bfloat16 linear layer that the kernels run: a row's result does not depend on the other rows."""

    def __init__(self, linear: nn.Linear, pages: LargePages) -> None:
        """Args:
        linear: whose weight and bias it takes.
        pages: where the weight is to lie.
        """
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = self._pack(linear.weight.detach(), pages)
        self.bias = linear.bias
        self._wide_bias = None if linear.bias is None else linear.bias.detach().float()
        self.matrix = Matrix(
            self.packed.data_ptr(),
            None if self._wide_bias is None else self._wide_bias.data_ptr(),
            inputs=self.in_features,
            outputs=self.out_features,
            streamed=False,
        )
        self._session = Session(library())

    def _pack(self, weight: torch.Tensor, pages: LargePages) -> torch.Tensor:
        return pack(weight, pages)

    def dense(self) -> torch.Tensor:
        """[out, in] the weight in the usual layout, a copy."""
        return unpack(self.packed, self.out_features)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs @ weight.T + bias."""
        output = self.of_rows(Gathered(inputs.reshape(-1, self.in_features).contiguous()))
        return output.view(*inputs.shape[:-1], self.out_features)

    def of_rows(self, inputs: Gathered) -> torch.Tensor:
        """[N, out] the same of chosen rows of a table, which are read where they lie."""
        rows = inputs.table.shape[0] if inputs.rows is None else len(inputs.rows)
        output = torch.empty((rows, self.out_features), dtype=torch.bfloat16)
        library().linear(
            self._session.handle,
            ctypes.byref(self.matrix),
            ctypes.byref(inputs.struct()),
            rows,
            output.data_ptr(),
            torch.get_num_threads(),
        )
        return output

    __call__ = forward  # hooks cost more than some of these products


def is_plain_bfloat16(module: nn.Module) -> TypeGuard[nn.Linear]:
    """True for a plain bfloat16 linear layer on a CPU."""
    return type(module) is nn.Linear and module.weight.dtype == torch.bfloat16 and module.weight.device.type == "cpu"


def fits(module: nn.Module) -> bool:
    """True for a plain bfloat16 linear layer on a CPU, of a size that the kernels take."""
    return is_plain_bfloat16(module) and module.in_features % 2 == 0
