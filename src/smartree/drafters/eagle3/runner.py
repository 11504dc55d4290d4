"""Runs a head for a target: packed levels over a slot cache of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import embedding, pad

from smartree.drafters.eagle3.checkpoint import Eagle3Checkpoint
from smartree.drafters.eagle3.head import Eagle3Head, Rotary
from smartree.drafters.eagle3.native import native_fits, native_head, store_in_int8
from smartree.drafters.eagle3.spec import Eagle3Spec
from smartree.errors import InputError
from smartree.models.attention import packed_attention
from smartree.models.cache import CacheShape, SlotCache
from smartree.models.load import LoadedModel
from smartree.models.native.decoder import NativeRunner
from smartree.models.native.groups import Gathered
from smartree.models.native.matrix import NativeLinear
from smartree.models.packed_pass import PackedPass, RowGroup
from smartree.models.seating import Seating
from smartree.models.surgery import merge_linears, prepack_linears, weight_of
from smartree.models.taps import chosen_rows, decoder_layers

_FIRST_ROWS = 544  # see `odd_rows`
_FEW_ROWS, _MANY_ROWS = 4, 32  # numbers of rows are multiples of the one up to the other, then multiples of that


class LoadedHead:
    """A head fitted to a target: borrowed weights taken, layers to tap known, products merged and prepacked.

    Engines share it; each has a `HeadRunner` of its own.
    """

    def __init__(self, checkpoint: Eagle3Checkpoint, target: LoadedModel, name: str) -> None:
        """Args:
            checkpoint: the head.
            target: the model it drafts for.
            name: what to call it in messages.

        Raises:
            InputError: the head was made for another model.
        """
        self.spec, self.name, self.fingerprint = checkpoint.spec, name, checkpoint.fingerprint
        self.calibration = checkpoint.calibration
        self.device, self.dtype = target.device, target.dtype
        _require_fit(self.spec, target, name)
        self.feature_layers = self.spec.layers_of(len(decoder_layers(target.model)))
        table = checkpoint.token_ids
        self.token_ids = None if table is None else table.numpy()
        self._embeddings = (
            input_rows(target)
            if "embed_tokens" in self.spec.borrowed
            else checkpoint.weights["embed_tokens.weight"].to(target.device, target.dtype)
        )
        self.head = self._build(checkpoint, target)
        self.attentions = [layer.get_submodule("self_attn") for layer in self.head.layers]

    def _build(self, checkpoint: Eagle3Checkpoint, target: LoadedModel) -> Eagle3Head:
        with torch.device("meta"):
            head = Eagle3Head(self.spec)
        weights = {name: tensor for name, tensor in checkpoint.weights.items() if name != "embed_tokens.weight"}
        if "lm_head" in self.spec.borrowed:
            rows = output_rows(target)[: self.spec.vocab_size]
            weights["lm_head.weight"] = rows if checkpoint.token_ids is None else rows[checkpoint.token_ids]
        moved = {name: tensor.to(target.device, target.dtype) for name, tensor in weights.items()}
        head.load_state_dict(moved, assign=True)
        head.requires_grad_(False)
        self.native = native_fits(self.spec, head)
        if self.native:
            if store_in_int8(head):
                self.fingerprint += "-int8"  # profiles of the same head in bfloat16 say other times
        else:
            merge_linears(head)
        if target.device.type == "cpu":
            prepack_linears(head)
        return head

    def embeddings_of(self, tokens: NDArray[np.int64]) -> Gathered:
        """`embed` for the kernels, which look the rows up themselves."""
        return Gathered(self._embeddings, np.ascontiguousarray(tokens, dtype=np.int64))

    def embed(self, tokens: NDArray[np.int64]) -> torch.Tensor:
        """[N] token ids -> [N, H]; padding of the target's vocabulary that the head does not know becomes token 0."""
        known = np.where(tokens < len(self._embeddings), tokens, 0)
        return embedding(torch.from_numpy(known).to(self.device), self._embeddings)


def output_rows(target: LoadedModel) -> torch.Tensor:
    """[V, Ht] the target's output embedding."""
    return weight_of(target.model.get_output_embeddings())


def input_rows(target: LoadedModel) -> torch.Tensor:
    """[V, Ht] the target's input embedding."""
    module = target.model.get_input_embeddings()
    assert isinstance(module, nn.Embedding)
    return module.weight.detach()


def _require_fit(spec: Eagle3Spec, target: LoadedModel, name: str) -> None:
    width = target.model.config.get_text_config(decoder=True).hidden_size
    if spec.target_hidden_size != width:
        raise InputError(
            f"The head {name!r} reads hidden states of size {spec.target_hidden_size}, but {target.name!r} has "
            f"{width}; it was made for another model."
        )
    if spec.vocab_size > target.vocab_size:
        raise InputError(
            f"The head {name!r} is for a vocabulary of {spec.vocab_size} tokens, but {target.name!r} has "
            f"{target.vocab_size}; it was made for another model."
        )
    layers = len(decoder_layers(target.model))
    if not all(0 <= layer <= layers for layer in spec.layers_of(layers)):
        raise InputError(
            f"The head {name!r} reads layers {list(spec.layers_of(layers))}, but {target.name!r} has {layers}; it was "
            "made for another model."
        )


class HeadRunner:
    """A head with its cache: runs packed levels."""

    def __init__(self, loaded: LoadedHead, slots: int, window: int, positions: int) -> None:
        """Args:
        loaded: the head.
        slots: most requests at a time; one more slot lets two change places.
        window: most rows a request will ever need.
        positions: most positions.
        """
        spec = loaded.spec
        self.loaded, self.window = loaded, window
        self.seating = Seating(slots + 1)
        shape = CacheShape(spec.layers, spec.kv_heads, spec.head_dim)
        self.cache = SlotCache(shape, slots + 1, min(_FIRST_ROWS, window), loaded.dtype, loaded.device)
        rotary = Rotary(spec, positions, loaded.dtype, loaded.device)
        self._native = NativeRunner(native_head(loaded.head, rotary), self.cache) if loaded.native else None
        self._rotary = None if loaded.native else rotary  # the kernels have tables of their own

    def features(self, states: torch.Tensor, rows: NDArray[np.int64] | None = None) -> torch.Tensor:
        """Tapped states [M, taps * Ht] -> features [M, H], or [R, H] of the chosen `rows`."""
        head = self.loaded.head
        if self._native is not None and isinstance(head.fc, NativeLinear) and not head.norms_states:
            return head.fc.of_rows(Gathered(states.contiguous(), rows))
        with torch.inference_mode():
            chosen = chosen_rows(states, rows)
            return head.features(self._rounded(chosen))[: len(chosen)]

    @torch.inference_mode()
    def forward(
        self, groups: Sequence[RowGroup], tokens: NDArray[np.int64], features: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs one level and stores its rows.

        Args:
            groups: who the rows belong to.
            tokens: [N] token ids.
            features: [N, H] of the tokens before them, or the states of their parents.

        Returns:
            [N, H] states for the next level, [N, H] what `logits` reads.
        """
        self.cache.ensure_rows(max(group.reach for group in groups), self.window)
        if self._native is not None:
            inputs, looked_up = Gathered(features.contiguous()), self.loaded.embeddings_of(tokens)
            output = self._native.run(groups, inputs, None, embeddings=looked_up, states=True, logits=False, best=False)
            assert output.states is not None
            return output.normed if self.loaded.spec.norm_output else output.states, output.normed
        assert self._rotary is not None
        packed = PackedPass(groups, self.cache)
        attentions, rows = self.loaded.attentions, len(tokens)

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            more = query.shape[2] - rows
            query, key, value = query[:, :, :rows], key[:, :, :rows], value[:, :, :rows]
            mixed = packed_attention(attentions[layer], query, key, value, None, smartree=packed)[0]
            return pad(mixed, (0, 0, 0, 0, 0, more)) if more else mixed

        embeddings = self.loaded.embed(np.pad(tokens, (0, self._missing(rows))))
        rotation = self._rotary(self._rounded(packed.positions))
        states, normed = self.loaded.head(embeddings[None], self._rounded(features)[None], rotation, attend)
        return states[0, :rows], normed[0, :rows]

    def level(
        self,
        groups: Sequence[RowGroup],
        tokens: NDArray[np.int64],
        features: torch.Tensor,
        keep: NDArray[np.int64],
        rows: NDArray[np.int64] | None = None,
    ) -> tuple[torch.Tensor, NDArray[np.int64], torch.Tensor]:
        """`forward`, then `logits` of some of its rows, in one call where the kernels run.

        Args:
            groups: who the rows belong to.
            tokens: [N] token ids.
            features: [N, H] of the tokens before them, or the states of their parents; [M, H] if `rows` picks some.
            keep: [K] the rows that are wanted.
            rows: [N] rows of `features`; None for all, in order.

        Returns:
            [M, H] states for the next level, [K] where among them those of `keep` are, [K, draft vocabulary] logits.
        """
        if self._native is None:
            chosen = features if rows is None else features[torch.from_numpy(rows).to(features.device)]
            states, normed = self.forward(groups, tokens, chosen)
            return states, keep, self.logits(normed[torch.from_numpy(keep).to(features.device)])
        self.cache.ensure_rows(max(group.reach for group in groups), self.window)
        wants_states = not self.loaded.spec.norm_output
        output = self._native.run(
            groups,
            Gathered(features, rows),
            keep,
            embeddings=self.loaded.embeddings_of(tokens),
            states=wants_states,
        )
        assert output.logits is not None
        if output.states is None:
            return output.normed, np.arange(len(keep)), output.logits
        return output.states, keep, output.logits

    @torch.inference_mode()
    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """[K, H] -> [K, draft vocabulary]."""
        return self.loaded.head.lm_head(self._rounded(normed))[: len(normed)]

    def _rounded(self, rows: torch.Tensor) -> torch.Tensor:
        """[N, ...] with a few rows of zeros behind, so that the head's products come in few shapes.

        On the CPU every new number of rows lets oneDNN make a kernel for each product, which takes twice as long as a
        level does; a few rows more cost a hundredth.
        """
        missing = self._missing(rows.shape[0])
        return pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing)) if missing else rows

    def _missing(self, rows: int) -> int:
        """Rows of zeros behind so many rows."""
        if self.loaded.device.type != "cpu" or self._native is not None:
            return 0
        return -rows % (_FEW_ROWS if rows <= _MANY_ROWS else _MANY_ROWS)

    def seat(self, request_ids: Sequence[int]) -> None:
        """Gives request i of the batch cache slot i."""
        moves = self.seating.seat(request_ids)
        if not moves:
            return
        with torch.inference_mode():
            for move in moves:
                self.cache.copy_slot(move.source, move.target, move.rows)

    @torch.inference_mode()
    def share(self, donor_id: int, request_id: int, rows: int) -> None:
        """Lets a new request begin with the first `rows` rows of another one."""
        for move in self.seating.share(donor_id, request_id, rows):
            self.cache.copy_slot(move.source, move.target, move.rows)
