"""A model that transformers has sharded, as plain modules on this process's shards.

transformers keeps every sharded weight as a DTensor and unwraps it in every call of its layer. Passes of a few tokens
are too short for that, and the module surgery (`models/surgery.py`) needs plain linear layers. What is sharded, and
how, stays transformers' own plan; a layer that it shards in another way than those below stays as it is.
"""

from __future__ import annotations

import re
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from smartree.errors import InputError

_SPLIT, _GATHERED, _SUMMED = ("colwise",), ("colwise_gather_output", "colwise_rep"), ("rowwise", "rowwise_rep")
# Eager attention and norms work in float32 whatever the type; sums over ranks round differently.
_TOLERANCE = {torch.float64: 1e-3, torch.float32: 2e-3, torch.bfloat16: 0.25, torch.float16: 0.1}
_PROBE = 8  # tokens


class SummedLinear(nn.Module):
    """A linear layer whose input is split over the processes: the ranks' products are added up."""

    def __init__(self, linear: nn.Linear, bias: torch.Tensor | None) -> None:
        """Args:
        linear: this rank's columns, without bias.
        bias: [out] of the whole layer.
        """
        super().__init__()
        self.linear = linear
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The whole layer's output, on every rank."""
        output = self.linear(inputs)
        dist.all_reduce(output)
        return output if self.bias is None else output + self.bias


class GatheredLinear(nn.Module):
    """A linear layer whose outputs are split over the processes and put side by side again: the logits."""

    def __init__(self, linear: nn.Linear, features: int, whole: torch.Tensor | None = None) -> None:
        """Args:
        linear: this rank's rows.
        features: of the whole layer; all ranks but the last ones have as many rows.
        whole: [features, in] the whole layer's weight, where anybody may ask for it.
        """
        super().__init__()
        self.linear, self.out_features = linear, features
        self._whole = whole
        self._part = -(-features // dist.get_world_size())

    @property
    def weight(self) -> torch.Tensor:
        """[features, in] the whole layer's, in the host's memory, for heads that borrow it.

        Raises:
            InputError: this is not rank 0.
        """
        if self._whole is None:
            raise InputError("Only rank 0 has the whole output layer.")
        return self._whole

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The whole layer's output, on every rank."""
        output = self.linear(inputs)
        missing = self._part - output.shape[-1]
        output = nn.functional.pad(output, (0, missing)) if missing else output.contiguous()
        parts = [torch.empty_like(output) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, output)
        return torch.cat(parts, dim=-1)[..., : self.out_features]


def own_device(kind: str) -> torch.device:
    """The device of this process among several that share a model.

    Raises:
        InputError: one device was named for all of them, or the kind is not the one that transformers will use.
    """
    here = "cuda" if torch.cuda.is_available() else "cpu"
    if kind not in ("auto", here):
        raise InputError(f"Device {kind!r} cannot be shared by several processes; each takes its own, so use {here}.")
    return torch.device("cuda", torch.cuda.current_device()) if here == "cuda" else torch.device("cpu")


def require_shardable(config: Any, name: str, shards: int) -> None:
    """Raises:
    InputError: transformers has no plan to share this model, or its heads cannot be dealt out evenly.
    """
    text = config.get_text_config(decoder=True)
    heads = getattr(text, "num_attention_heads", None) or 1
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    if getattr(text, "base_model_tp_plan", None) is None:
        raise InputError(f"Model {name!r} has no plan for tensor parallelism in transformers; run it in one process.")
    if heads % shards or kv_heads % shards:
        fitting = [count for count in range(1, kv_heads + 1) if heads % count == 0 and kv_heads % count == 0]
        choice = f"one of {', '.join(map(str, fitting))}" if len(fitting) > 1 else "1"
        raise InputError(
            f"Model {name!r} has {heads} query and {kv_heads} key/value heads, which {shards} processes cannot share "
            f"evenly; start {choice}."
        )


def localize(model: PreTrainedModel) -> bool:
    """Replaces sharded modules by plain ones, in place; every rank calls it.

    Embeddings become whole again: heads read them, and a pass looks up a few rows only.

    Returns:
        True if no sharded module is left, so that surgery may follow.

    Raises:
        InputError: the logits are others than before.
    """
    vocab = model.config.get_text_config(decoder=True).vocab_size
    tokens = torch.arange(_PROBE, device=next(model.parameters()).device)[None] % vocab
    before = _logits(model, tokens)
    styles = dict(model.tp_plan)
    for name, module in list(model.named_modules()):
        if any(isinstance(weight, DTensor) for weight in module.parameters(recurse=False)):
            _replace(model, name, module, styles.get(re.sub(r"\.\d+(?=\.)", ".*", name)))
    dtype = before.dtype
    distance = float((_logits(model, tokens) - before).abs().max() / before.float().std().clamp_min(1e-6))
    if not distance <= _TOLERANCE[dtype]:
        raise InputError(
            f"{type(model).__name__} gives other logits on plain shards (off by {distance:.2g} standard deviations); "
            "run it in one process."
        )
    return not any(isinstance(weight, DTensor) for weight in model.parameters())


@torch.inference_mode()
def _logits(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits


def _replace(model: nn.Module, name: str, module: nn.Module, style: str | None) -> None:
    """Puts the plain form of one sharded module in its place, if it has one."""
    plain: nn.Module | None = None
    if isinstance(module, nn.Embedding):
        _make_whole(module)
    elif type(module) is nn.Linear and style in _SPLIT:
        plain = _local_linear(module.weight, module.bias)
    elif type(module) is nn.Linear and style in _GATHERED:
        plain = GatheredLinear(_local_linear(module.weight, module.bias), module.weight.shape[0], _on_host(module))
    elif type(module) is nn.Linear and style in _SUMMED:
        plain = SummedLinear(_local_linear(module.weight, None), _local(module.bias))
    if plain is not None:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, plain)


def _local(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor


def _local_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    rows = _local(weight)
    assert rows is not None
    with torch.device("meta"):
        linear = nn.Linear(rows.shape[1], rows.shape[0], bias=bias is not None)
    linear.weight = nn.Parameter(rows, requires_grad=False)
    own = _local(bias)
    if own is not None:
        linear.bias = nn.Parameter(own, requires_grad=False)
    return linear


def _on_host(module: nn.Linear) -> torch.Tensor | None:
    """[out, in] the whole weight on rank 0, None on the others; all of them take part."""
    weight = module.weight
    whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
    return whole.detach().cpu() if dist.get_rank() == 0 else None


def _make_whole(module: nn.Embedding) -> None:
    """Every rank gets all rows; the module's class has its own forward, which transformers had wrapped, back."""
    weight = module.weight
    assert isinstance(weight, DTensor)
    module.weight = nn.Parameter(weight.full_tensor().detach(), requires_grad=False)
    module.__dict__.pop("forward", None)
