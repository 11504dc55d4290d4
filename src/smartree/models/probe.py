"""Checks at load time that packed passes give the model's own logits: an unsupported architecture is found early."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from smartree.errors import InputError
from smartree.models.attention import ATTENTION_NAME
from smartree.models.load import LoadedModel
from smartree.models.native.decoder import NativeDecoder
from smartree.models.native.recognise import build_decoder
from smartree.models.packed_pass import RowGroup, causal_group
from smartree.models.runner import ModelRunner
from smartree.models.surgery import prepack_linears

# Eager attention and norms work in float32 whatever the type.
_TOLERANCE = {torch.float64: 1e-3, torch.float32: 2e-3, torch.bfloat16: 0.25, torch.float16: 0.1}
_LENGTH = 12
# Of the logits' standard deviation. The demo model is off by 0.04, another architecture by about 1; what differs in one
# layer of four only stands out less.
_NATIVE_MEAN = 0.1


@torch.inference_mode()
def check_packed_attention(loaded: LoadedModel) -> None:
    """Compares two packed chunks with one plain pass, then leaves the packed attention on.

    Raises:
        InputError: the model cannot run with a registered attention function, or its logits differ.
    """
    model, tokens = loaded.model, _tokens(loaded)
    length = len(tokens)
    model.set_attn_implementation("eager")  # the definition; other kernels leave out a soft cap in some versions
    expected = model(input_ids=torch.from_numpy(tokens).to(loaded.device)[None], use_cache=False).logits[0]
    try:
        model.set_attn_implementation(ATTENTION_NAME)
        runner = ModelRunner(loaded, slots=1, window=length)
        packed = _in_two_chunks(runner, tokens)
    except (ValueError, TypeError, RuntimeError, IndexError, AttributeError, AssertionError) as error:
        raise InputError(
            f"{type(model).__name__} does not run with a registered attention function: {str(error).splitlines()[0]}"
        ) from error
    distance = float((packed - expected).abs().max() / expected.float().std().clamp_min(1e-6))
    if not distance <= _TOLERANCE[loaded.dtype]:
        raise InputError(
            f"{type(model).__name__} gives other logits with smartree's attention (off by {distance:.2g} standard "
            "deviations): it uses something besides softmax attention over the whole prefix."
        )


@torch.inference_mode()
def check_native(loaded: LoadedModel) -> NativeDecoder | None:
    """Builds the native form of a model and compares its logits with those of torch on the model's own code.

    The model's linear layers are repacked for it, in place, and stay so.

    Args:
        loaded: a model that `native_refusal` has nothing against.

    Returns:
        None if the logits differ by more than the type's rounding explains.
    """
    tokens = _tokens(loaded)
    expected = _near_and_far(loaded, tokens)
    prepack_linears(loaded.model)
    decoder = build_decoder(loaded.model, loaded.cache_shape, loaded.window)
    native = _near_and_far(replace(loaded, native=decoder), tokens)
    distances = [
        float((mine - theirs).abs().mean() / theirs.std().clamp_min(1e-6))
        for mine, theirs in zip(native, expected, strict=True)
    ]
    return decoder if all(distance <= _NATIVE_MEAN for distance in distances) else None  # not a number is none


def _near_and_far(loaded: LoadedModel, tokens: NDArray[np.int64]) -> list[torch.Tensor]:
    """Logits at the first positions and at the last ones: some models do something else far out."""
    size = len(tokens)
    far = causal_group(0, 0, size)
    far = RowGroup(far.slots, far.base, far.cached, far.sizes, far.depths + loaded.window - size, far.mask)
    runner = ModelRunner(loaded, 1, size)
    return [_in_two_chunks(runner, tokens).float(), runner.forward([far], tokens).float()]


def _tokens(loaded: LoadedModel) -> NDArray[np.int64]:
    length = min(_LENGTH, loaded.window)
    return np.arange(3, 3 + 7 * length, 7) % loaded.vocab_size


def _in_two_chunks(runner: ModelRunner, tokens: NDArray[np.int64]) -> torch.Tensor:
    half = len(tokens) // 2
    first = runner.forward([causal_group(0, 0, half)], tokens[:half])
    second = runner.forward([causal_group(0, half, len(tokens) - half)], tokens[half:])
    return torch.cat([first, second])
