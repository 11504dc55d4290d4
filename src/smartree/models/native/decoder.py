"""A stack of LLaMA-like decoder layers, run by one native call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from smartree.models.cache import CacheShape, SlotCache
from smartree.models.native import structs
from smartree.models.native.groups import Gathered, NativeGroups, address
from smartree.models.native.library import Session, library
from smartree.models.native.matrix import NativeLinear
from smartree.models.native.structs import Cache, Layer, Matrix, Model
from smartree.models.packed_pass import RowGroup


@dataclass(frozen=True, slots=True)
class NativeLayer:
    """What a decoder layer consists of; norms are [size] in float32.

    Attributes:
        linears: q, k, v, o, gate, up, down.
        norm_in: before attention.
        norm_post: before the MLP.
        norm_q, norm_k: of each head, or None.
        norm_hidden: of the features, in the first layer of an EAGLE head, which joins them with embeddings.
        eps: of all norms.
        scale: of the scores.
        window: positions a row looks back, itself included; 0 sees all.
        normed_residual: an EAGLE head's residual stream continues with the normed features.
    """

    linears: tuple[NativeLinear, ...]
    norm_in: torch.Tensor
    norm_post: torch.Tensor
    norm_q: torch.Tensor | None
    norm_k: torch.Tensor | None
    eps: float
    scale: float
    window: int = 0
    norm_hidden: torch.Tensor | None = None
    normed_residual: bool = False

    def struct(self) -> Layer:
        """For the kernels; this object must outlive it."""
        norms = (self.norm_in, self.norm_post, self.norm_q, self.norm_k, self.norm_hidden)
        return Layer(
            *(linear.matrix for linear in self.linears),
            *(None if norm is None else norm.data_ptr() for norm in norms),
            self.eps,
            self.scale,
            self.window,
            self.normed_residual,
        )


@dataclass(frozen=True, slots=True)
class NativeOutput:
    """What a pass gives.

    Attributes:
        states: [N, hidden] what leaves the last layer, if asked for.
        normed: [K, hidden] the kept rows behind the last norm.
        logits: [K, outputs] of the kept rows, if asked for.
        tapped: [N, taps * hidden] states entering the tapped layers, side by side, if there are any.
        best: [K] the first of each kept row's largest logits, if these or logits were asked for.
    """

    states: torch.Tensor | None
    normed: torch.Tensor
    logits: torch.Tensor | None
    tapped: torch.Tensor | None
    best: NDArray[np.int64] | None


class NativeDecoder:
    """Weights of a stack; engines share it, each with a `NativeRunner`."""

    def __init__(
        self,
        layers: Sequence[NativeLayer],
        shape: CacheShape,
        hidden: int,
        norm_out: torch.Tensor,
        head: NativeLinear,
        cosines: NDArray[np.float32],
        sines: NDArray[np.float32],
    ) -> None:
        """Args:
        layers: from the first to the last.
        shape: of the cache.
        hidden: size of the residual stream.
        norm_out: [hidden] float32, behind the last layer.
        head: output rows.
        cosines: [positions, head_dim] of the rotations.
        sines: the same.
        """
        self.layers, self.norm_out, self.head = tuple(layers), norm_out, head
        self.hidden, self.outputs = hidden, head.out_features
        self.cosines, self.sines = cosines, sines
        first = self.layers[0]
        heads = first.linears[0].out_features // shape.head_dim
        self._structs = (Layer * len(layers))(*(layer.struct() for layer in self.layers))
        self.struct = Model(
            *(hidden, heads, shape.kv_heads, shape.head_dim, len(layers)),
            self._structs,
            norm_out.data_ptr(),
            first.eps,
            Matrix.from_buffer_copy(head.matrix),
            *(cosines.ctypes.data, sines.ctypes.data, len(cosines)),
        )


class NativeRunner:
    """Runs passes of a decoder over a slot cache."""

    def __init__(self, decoder: NativeDecoder, cache: SlotCache) -> None:
        self._decoder, self._cache = decoder, cache
        self._session = Session(library())
        self._rows = 0
        self._addresses = Cache()

    def run(
        self,
        groups: Sequence[RowGroup],
        inputs: Gathered,
        keep: NDArray[np.int64] | None,
        *,
        embeddings: Gathered | None = None,
        tapped: Sequence[int] = (),
        states: bool = False,
        logits: bool = True,
        best: bool = True,
    ) -> NativeOutput:
        """One pass; it stores its rows in the cache.

        Args:
            groups: who the rows belong to.
            inputs: [N, hidden] what enters the first layer.
            keep: [K] rows whose logits are wanted; None wants all.
            embeddings: [N, hidden] of the tokens, for an EAGLE head.
            tapped: layers whose entering states are wanted.
            states: whether what leaves the last layer is wanted.
            logits: whether logits are wanted, not just what they are made of.
            best: whether the largest of them are wanted; alone they need no memory for the others.

        Raises:
            IndexError: a row's position lies beyond the last one that was asked for when the decoder was built.
        """
        decoder, native = self._decoder, NativeGroups(groups)
        count, kept = native.rows, native.rows if keep is None else len(keep)
        keep = None if keep is None else np.ascontiguousarray(keep, dtype=np.int64)
        taps = np.array(tapped, np.int32)
        output = NativeOutput(
            _empty(count, decoder.hidden) if states else None,
            _empty(kept, decoder.hidden),
            _empty(kept, decoder.outputs) if logits else None,
            _empty(count, len(taps) * decoder.hidden) if len(taps) else None,
            np.empty(kept, np.int64) if best or logits else None,
        )
        beyond = library().run_pass(
            *(self._session.handle, decoder.struct, self._addresses_now(), native.structs, native.count),
            *(inputs.struct(), _NOTHING if embeddings is None else embeddings.struct()),
            *(taps.ctypes.data, len(taps), _address(output.tapped), _address(output.states)),
            *(address(keep), kept, _address(output.normed), _address(output.logits), address(output.best)),
            torch.get_num_threads(),
        )
        if beyond:
            raise IndexError(f"a row's position is beyond the {len(decoder.cosines)} that the decoder was built for")
        return output

    def move(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Moves cached rows, in all layers; as `SlotCache.move`, for targets that rise and lie before their sources.

        Args:
            moves: of a slot, a row, and where it goes.
        """
        shape = self._cache.shape
        slots, old, new = np.ascontiguousarray(np.array(moves, np.int32).T)
        library().move(
            ctypes.byref(self._addresses_now()),
            *(shape.layers, shape.kv_heads, shape.head_dim),
            *(slots.ctypes.data, old.ctypes.data, new.ctypes.data, len(moves), torch.get_num_threads()),
        )

    def _addresses_now(self) -> Cache:
        """Where the cache's layers lie: elsewhere once it has grown."""
        # Remembered by the number of rows, not by the tensors: these would stay alive while the cache grows.
        if self._cache.rows != self._rows:
            self._rows = self._cache.rows
            keys, values = zip(*self._cache.views, strict=True)
            array = ctypes.c_void_p * len(keys)
            self._addresses = Cache(
                array(*(key.data_ptr() for key in keys)),
                array(*(value.data_ptr() for value in values)),
                self._cache.rows,
            )
        return self._addresses


_NOTHING = structs.Gathered()  # read only


def _empty(*size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.bfloat16)


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
