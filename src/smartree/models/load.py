"""Loads a Hugging Face causal LM for the engine, and says clearly why it cannot."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.distributed import DistributedConfig
from transformers.utils import logging as transformers_logging

from smartree.errors import InputError
from smartree.models.attention import register_attention
from smartree.models.cache import CacheShape
from smartree.models.crew import Crew
from smartree.models.demo import DEMO_NAME, demo_folder
from smartree.models.native.decoder import NativeDecoder
from smartree.models.native.recognise import native_refusal
from smartree.models.shards import localize, own_device, require_shardable
from smartree.models.surgery import fuse_norms, merge_linears, prepack_linears


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal LM ready for packed passes.

    Attributes:
        name: as the user gave it.
        model: the model, its attention replaced by the packed one.
        tokenizer: None if the folder has none; then only token ids can be used.
        device: where it runs.
        dtype: of weights and cache.
        window: most positions.
        vocab_size: rows of the logits.
        eos_ids: end-of-sequence tokens.
        fingerprint: short hash of the configuration, for profile keys.
        cache_shape: sizes of its cache on this device.
        native: its layers as the native kernels run them; None if torch runs the model's own code.
        kernels: "native", or "torch" and why.
        crew: the processes that share it, if there are several and this is the one that decides.
        number: what the crew calls it.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    device: torch.device
    dtype: torch.dtype
    window: int
    vocab_size: int
    eos_ids: frozenset[int]
    fingerprint: str
    cache_shape: CacheShape
    native: NativeDecoder | None = None
    kernels: str = "torch"
    crew: Crew | None = None
    number: int = 0

    @property
    def shards(self) -> int:
        """Devices that hold a part of the model each."""
        return self.crew.size if self.crew is not None else 1


def pick_device(name: str) -> torch.device:
    """Raises:
    InputError: the device is unknown or absent.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(f"Device {name!r} is unknown; use cpu, cuda or cuda:N.") from None
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise InputError(f"Device {name!r} is not available here; use --device cpu, or install a CUDA build of torch.")
    return device


def pick_dtype(name: str, config: Any, device: torch.device) -> torch.dtype:
    """The element type to run with; "auto" is the checkpoint's on CUDA and bfloat16 on a CPU."""
    if name != "auto":
        dtype = getattr(torch, name)
        assert isinstance(dtype, torch.dtype)
        return dtype
    stored = getattr(config, "dtype", None)
    if device.type == "cpu":
        return torch.bfloat16 if stored in (torch.bfloat16, torch.float16, None) else stored
    return stored or torch.bfloat16


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keeps transformers' own progress bars and warnings off the terminal."""
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def load_model(name: str, dtype: str = "auto", device: str = "auto", shards: int = 1) -> LoadedModel:
    """Loads "demo", a folder or a Hugging Face id.

    Args:
        name: which.
        dtype: element type.
        device: where; with several shards the kind of device only, as each process has its own.
        shards: processes that hold a part each; all of them call this.

    Raises:
        InputError: the name is unknown, files are missing, or the architecture does not fit.
    """
    where = pick_device(device) if shards == 1 else own_device(device)
    source = str(demo_folder()) if name == DEMO_NAME else name
    with quiet_transformers():
        config = _load_config(name, source)
        if shards > 1:
            require_shardable(config, name, shards)
        model = _load_weights(name, source, pick_dtype(dtype, config, where), shards)
        tokenizer = _load_tokenizer(source)
        if shards == 1:  # transformers puts shards where they belong
            torch.nn.Module.to(model, where)
        return prepare_model(model, tokenizer, name, shards)


def prepare_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, name: str, shards: int = 1
) -> LoadedModel:
    """Makes a model in memory ready for packed passes; the model is changed in place.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        name: what to call it.
        shards: processes that hold a part of it each.

    Raises:
        InputError: its architecture does not fit.
    """
    model.eval()
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_attention_heads", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    if not heads or getattr(config, "attention_chunk_size", None) or kinds - {"full_attention", "sliding_attention"}:
        raise InputError(
            f"{type(model).__name__} is not supported: it uses something besides softmax attention over the whole "
            "prefix or a sliding window."
        )
    shape = CacheShape(
        config.num_hidden_layers,
        (getattr(config, "num_key_value_heads", None) or heads) // shards,
        getattr(config, "head_dim", None) or config.hidden_size // heads,
    )
    register_attention()
    plain = shards == 1 or localize(model)
    loaded = LoadedModel(
        name=name,
        model=model,
        tokenizer=tokenizer,
        device=next(model.parameters()).device,
        dtype=next(model.parameters()).dtype,
        window=_window(config),
        vocab_size=int(config.vocab_size),
        eos_ids=_eos_ids(model, tokenizer),
        fingerprint=_fingerprint(config),
        cache_shape=shape,
    )
    from smartree.models.probe import check_native, check_packed_attention  # they run passes, so they import the runner

    check_packed_attention(loaded)
    if not plain:
        return replace(loaded, kernels="torch (layers that transformers has sharded)")
    fuse_norms(model)
    refusal = native_refusal(model, shape) if shards == 1 else "shards of several processes"
    if refusal is None:
        native = check_native(loaded)
        if native is not None:
            return replace(loaded, native=native, kernels="native")
        refusal = "its layers are put together in another way than LLaMA's"
    else:
        merge_linears(model)
        if loaded.device.type == "cpu":
            prepack_linears(model)
    return replace(loaded, kernels=f"torch ({refusal})")


def _window(config: Any) -> int:
    """Most positions of a request.

    Rotations that depend on the longest position of a pass (dynamic and long RoPE) would make requests of a batch
    depend on each other, so these models are kept within the window whose rotations are fixed.
    """
    positions = int(getattr(config, "max_position_embeddings", None) or 2**20)
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope] if "rope_type" in rope else [kind for kind in rope.values() if isinstance(kind, dict)]
    if any(kind.get("rope_type") in ("dynamic", "longrope") for kind in kinds):
        fixed = [kind.get("original_max_position_embeddings") for kind in kinds]
        fixed.append(getattr(config, "original_max_position_embeddings", None))
        positions = min([positions, *(int(one) for one in fixed if one)])
    return positions


def _load_config(name: str, source: str) -> Any:
    path = Path(source)
    if path.is_dir() and not (path / "config.json").is_file():
        raise InputError(f"The folder {name!r} holds no config.json, so it is no Hugging Face model.")
    if path.is_file():
        raise InputError(f"{name!r} is a file; give the folder that holds the model's config.json.")
    if not path.exists() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise InputError(f"The folder {name!r} does not exist.")
    try:
        return AutoConfig.from_pretrained(source)
    except (OSError, ValueError) as error:
        if path.is_dir():
            raise InputError(f"Model {name!r} cannot be read: {_first_line(error)}") from error
        raise InputError(
            f"Model {name!r} is neither a folder here nor reachable on the Hugging Face hub; check the name and the "
            'network, or use "demo".'
        ) from error


def _load_weights(name: str, source: str, dtype: torch.dtype, shards: int) -> PreTrainedModel:
    """The model itself; a checkpoint that does not fill it is refused, as transformers would only warn."""
    plan = {"distributed_config": DistributedConfig(tp_size=shards)} if shards > 1 else {}
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, output_loading_info=True, **plan)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise InputError(f"Model {name!r} cannot be loaded: {_first_line(error)}") from error
    model, report = loaded
    lacking = sorted(str(key) for key in [*report["missing_keys"], *report["mismatched_keys"]])
    if lacking:
        raise InputError(
            f"Model {name!r} cannot be loaded: its files lack {len(lacking)} of its weights or hold them in another "
            f"size, {lacking[0]} first."
        )
    assert isinstance(model, PreTrainedModel)
    return model


def _load_tokenizer(source: str) -> PreTrainedTokenizerBase | None:
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None  # a model without one still takes token ids; text asks for it in one clear sentence
    return tokenizer if len(tokenizer) else None


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> frozenset[int]:
    ids: set[int] = set()
    generation = getattr(model, "generation_config", None)
    for source in (generation, model.config, tokenizer):
        eos = getattr(source, "eos_token_id", None)
        ids.update(eos if isinstance(eos, list | tuple) else [] if eos is None else [eos])
    return frozenset(int(token) for token in ids)


def _fingerprint(config: Any) -> str:
    beside = ("transformers_version", "dtype", "architectures", "distributed_config")
    described = {key: value for key, value in config.to_dict().items() if not key.startswith("_") and key not in beside}
    return hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:300]


def library_versions() -> tuple[str, str]:
    """Versions of torch and transformers."""
    return str(torch.__version__), str(transformers.__version__)
