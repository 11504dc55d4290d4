"""Shapes of target models and of their draft heads: what a pass reads and computes.

Sources: the `config.json` of each checkpoint on Hugging Face; the layouts of the draft heads from the module
definitions of EAGLE, EAGLE-3 and MSD. Norms and rotary embeddings are too small to count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smartree.errors import InputError

HeadKind = Literal["eagle", "eagle3"]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One decoder layer with grouped-query attention and a gated MLP.

    Attributes:
        hidden: width of the residual stream.
        intermediate: width of the MLP.
        heads: query heads.
        kv_heads: key/value heads.
        head_dim: numbers per head.
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int = 128

    def __post_init__(self) -> None:
        if min(self.hidden, self.intermediate, self.heads, self.kv_heads, self.head_dim) < 1:
            raise InputError(f"A layer shape needs positive sizes; got {self}.")

    def parameters(self, inputs: int = 1) -> int:
        """Weights of a layer whose attention reads `inputs` vectors of the hidden width side by side."""
        read = inputs * self.hidden * (self.heads + 2 * self.kv_heads) * self.head_dim
        write = self.heads * self.head_dim * self.hidden
        return read + write + 3 * self.hidden * self.intermediate

    @property
    def kv_numbers(self) -> int:
        """Numbers cached of one token."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def attention_flops(self) -> int:
        """FLOPs of one query row over one cached token: q k^T and the weighted sum, 2 FLOPs a product."""
        return 4 * self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class HeadShape:
    """A draft head that runs level by level: one decoder layer and a vocabulary projection.

    Attributes:
        kind: "eagle" (EAGLE-1/2, MSD: fc [H, 2H] before the layer in every pass) or "eagle3" (attention reads 2H; its
            fc over target features runs only once a step and is left out).
        layer: the layer.
        vocabulary: rows of the projection that every pass reads.
    """

    kind: HeadKind
    layer: LayerShape
    vocabulary: int

    def __post_init__(self) -> None:
        if self.vocabulary < 1:
            raise InputError(f"A draft head needs a vocabulary; got {self.vocabulary}.")

    @property
    def parameters(self) -> int:
        """Weights that a pass over one level reads."""
        hidden = self.layer.hidden
        projection = self.vocabulary * hidden
        if self.kind == "eagle3":
            return self.layer.parameters(inputs=2) + projection
        return self.layer.parameters() + 2 * hidden * hidden + projection


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A target model and its draft head.

    Attributes:
        name: as given on the command line.
        layer: its decoder layer.
        layers: how many.
        vocabulary: rows of the output projection.
        head: its draft head.
        acceptance: the preset of smartree.simulate.acceptance that describes this head.
        context: cached tokens per request assumed in simulations; a LLaVA-1.5 image alone is 576.
        tensor_parallel: devices that share a layer.
        bytes_per_number: of weights and cache; 2 for bfloat16.
    """

    name: str
    layer: LayerShape
    layers: int
    vocabulary: int
    head: HeadShape
    acceptance: str
    context: int = 512
    tensor_parallel: int = 1
    bytes_per_number: int = 2

    def __post_init__(self) -> None:
        if min(self.layers, self.vocabulary, self.context, self.tensor_parallel, self.bytes_per_number) < 1:
            raise InputError(f"Model {self.name!r} needs positive sizes.")
        if self.layer.kv_heads % self.tensor_parallel:
            raise InputError(
                f"Model {self.name!r} has {self.layer.kv_heads} key/value heads, which "
                f"{self.tensor_parallel} devices cannot share; choose a divisor."
            )

    @property
    def parameters(self) -> int:
        """Weights that a pass reads: all layers and the output projection (an embedding row is nothing beside them)."""
        return self.layers * self.layer.parameters() + self.vocabulary * self.layer.hidden

    @property
    def weight_bytes(self) -> int:
        """Bytes of these weights."""
        return self.parameters * self.bytes_per_number

    @property
    def flops_per_row(self) -> int:
        """FLOPs of one row outside attention, 2 a weight."""
        return 2 * self.parameters

    @property
    def kv_bytes(self) -> int:
        """Bytes cached of one token."""
        return self.layers * self.layer.kv_numbers * self.bytes_per_number

    def memory_bytes(self, batch: int) -> float:
        """Bytes that target, embeddings, draft head and the cache of `batch` requests take on all devices together."""
        embeddings = self.vocabulary * self.layer.hidden
        weights = self.parameters + embeddings + self.head.parameters
        return float(weights * self.bytes_per_number + batch * self.context * self.kv_bytes)


_LLAMA_8B = LayerShape(4096, 14336, heads=32, kv_heads=8)
_LLAMA_70B = LayerShape(8192, 28672, heads=64, kv_heads=8)
_VICUNA_7B = LayerShape(4096, 11008, heads=32, kv_heads=32)
_VICUNA_13B = LayerShape(5120, 13824, heads=40, kv_heads=40)
_QWEN2_7B = LayerShape(3584, 18944, heads=28, kv_heads=4)

_EAGLE3_8B = HeadShape("eagle3", _LLAMA_8B, 32000)
# The published head of the 70B is narrower than its target; width and MLP from memory of its config.
_EAGLE3_70B = HeadShape("eagle3", LayerShape(6144, 16384, heads=48, kv_heads=8), 32000)
_MSD_7B = HeadShape("eagle", _VICUNA_7B, 32000)
_MSD_13B = HeadShape("eagle", _VICUNA_13B, 32000)
_MSD_QWEN = HeadShape("eagle", _QWEN2_7B, 152064)


def _llama_70b(devices: int) -> ModelShape:
    name = f"llama-3.3-70b-tp{devices}"
    return ModelShape(name, _LLAMA_70B, 80, 128256, _EAGLE3_70B, "eagle3-70b", tensor_parallel=devices)


MODELS = {
    model.name: model
    for model in (
        ModelShape("llama-3.1-8b", _LLAMA_8B, 32, 128256, _EAGLE3_8B, "eagle3-8b"),
        _llama_70b(2),
        _llama_70b(4),
        ModelShape("deepseek-r1-8b", _LLAMA_8B, 32, 128256, _EAGLE3_8B, "eagle3-r1", context=1024),
        ModelShape("llava-1.5-7b", _VICUNA_7B, 32, 32000, _MSD_7B, "msd-llava", context=704),
        ModelShape("llava-1.5-13b", _VICUNA_13B, 40, 32000, _MSD_13B, "msd-llava", context=704),
        ModelShape("qwen2-vl-7b", _QWEN2_7B, 28, 152064, _MSD_QWEN, "msd-qwen", context=1024),
    )
}


def model_named(name: str) -> ModelShape:
    """Raises:
    InputError: there is no such model.
    """
    if name not in MODELS:
        raise InputError(f"Model {name!r} is unknown; choose one of {', '.join(MODELS)}.")
    return MODELS[name]
