"""Checks at load time that packed passes give the model's own logits: an unsupported architecture is found early."""

from __future__ import annotations

import numpy as np
import torch

from smartree.errors import InputError
from smartree.models.attention import ATTENTION_NAME
from smartree.models.load import LoadedModel
from smartree.models.packed_pass import causal_group
from smartree.models.runner import ModelRunner

# Eager attention and norms work in float32 whatever the type.
_TOLERANCE = {torch.float64: 1e-3, torch.float32: 2e-3, torch.bfloat16: 0.25, torch.float16: 0.1}
_LENGTH = 12


@torch.inference_mode()
def check_packed_attention(loaded: LoadedModel) -> None:
    """Compares two packed chunks with one plain pass, then leaves the packed attention on.

    Raises:
        InputError: the model cannot run with a registered attention function, or its logits differ.
    """
    model = loaded.model
    length = min(_LENGTH, loaded.window)
    tokens = np.arange(3, 3 + 7 * length, 7) % loaded.vocab_size
    model.set_attn_implementation("eager")  # the definition; other kernels leave out a soft cap in some versions
    expected = model(input_ids=torch.from_numpy(tokens).to(loaded.device)[None], use_cache=False).logits[0]
    try:
        model.set_attn_implementation(ATTENTION_NAME)
        runner = ModelRunner(loaded, slots=1, window=length)
        half = length // 2
        first = runner.forward([causal_group(0, 0, half)], tokens[:half])
        second = runner.forward([causal_group(0, half, length - half)], tokens[half:])
    except (ValueError, TypeError, RuntimeError, IndexError, AttributeError, AssertionError) as error:
        raise InputError(
            f"{type(model).__name__} does not run with a registered attention function: {str(error).splitlines()[0]}"
        ) from error
    packed = torch.cat([first, second])
    distance = float((packed - expected).abs().max() / expected.float().std().clamp_min(1e-6))
    if not distance <= _TOLERANCE[loaded.dtype]:
        raise InputError(
            f"{type(model).__name__} gives other logits with smartree's attention (off by {distance:.2g} standard "
            "deviations): it uses something besides softmax attention over the whole prefix."
        )
