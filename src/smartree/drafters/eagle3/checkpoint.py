"""Reads and writes EAGLE-3 checkpoints; every weight must be there and none may be left over."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from smartree.drafters.eagle3.head import Eagle3Head
from smartree.drafters.eagle3.spec import Eagle3Spec, read_spec, write_spec
from smartree.errors import InputError
from smartree.policies.calibration import Calibration

_CONFIG, _WEIGHTS, _PICKLED = "config.json", "model.safetensors", "pytorch_model.bin"
_CALIBRATION = "calibration.json"  # how often its drafts were accepted; of heads made by `smartree train`
# Prefixes as written by trainers and engines, and what they are called here (the speculators names).
_RENAMES = (
    ("draft_model.", ""),
    ("model.", ""),
    ("midlayer.", "layers.0."),
    ("aux_norm_low.", "fc_norm.0."),
    ("aux_norm_mid.", "fc_norm.1."),
    ("aux_norm_high.", "fc_norm.2."),
)
_UNUSED = ("verifier_", "t2d")  # the target's own weights, and the inverse of d2t
_UNUSED_ENDS = ("rotary_emb.inv_freq",)


@dataclass(frozen=True, slots=True)
class Eagle3Checkpoint:
    """A head as it lies in a folder.

    Attributes:
        spec: its sizes and switches.
        weights: by canonical name; `lm_head.weight` and `embed_tokens.weight` may be lacking if the spec borrows them.
        token_ids: [draft vocabulary] the target's id of each draft token; None if they are the same.
        fingerprint: short hash of spec and weights.
        calibration: how often its drafts were accepted on held-out prompts, as `Calibration.to_json` writes it; None if
            the head does not say.
    """

    spec: Eagle3Spec
    weights: Mapping[str, torch.Tensor]
    token_ids: torch.Tensor | None
    fingerprint: str
    calibration: Mapping[str, Any] | None = None


def is_eagle3(folder: Path) -> bool:
    """True if a folder's config.json describes an EAGLE-3 head rather than a model of its own."""
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if not isinstance(config, dict):
        return False
    names = [str(name).lower() for name in config.get("architectures") or ()]
    return "speculators_model_type" in config or "draft_vocab_size" in config or any("eagle3" in name for name in names)


def read_checkpoint(folder: Path) -> Eagle3Checkpoint:
    """Reads a head.

    Raises:
        InputError: files are missing, cut short or damaged; a weight is missing, left over or of the wrong size.
    """
    config = _read_config(folder)
    spec = read_spec(config)
    weights, token_ids = _canonical(_read_weights(folder), spec, folder)
    spec = _borrowing(spec, weights)
    _check(spec, weights, folder)
    if spec.maps_vocabulary:
        if token_ids is None:
            raise InputError(f"The head {folder} has a draft vocabulary but no table d2t that maps it.")
        _check_table(token_ids, spec, folder)
    table = token_ids if spec.maps_vocabulary else None
    return Eagle3Checkpoint(spec, weights, table, _fingerprint(spec, weights), _read_calibration(folder))


def write_checkpoint(
    folder: Path,
    spec: Eagle3Spec,
    weights: Mapping[str, torch.Tensor],
    token_ids: torch.Tensor | None,
    window: int,
    extra: Mapping[str, Any] | None = None,
    calibration: Mapping[str, Any] | None = None,
) -> None:
    """Writes a head in the native format beside its place, then renames: an interruption leaves the old one whole.

    Args:
        folder: where it goes; an older head there is replaced.
        spec: its sizes; what it borrows is left out.
        weights: by canonical name.
        token_ids: [draft vocabulary] the target's ids; None if draft tokens have the target's numbers.
        window: longest text it was trained on.
        extra: written into config.json under "training".
        calibration: see `Eagle3Checkpoint`.

    Raises:
        InputError: it cannot be written, above all because the disk is full.
    """
    stored = {
        name.replace("layers.0.", "midlayer.", 1): tensor.detach().cpu().contiguous()
        for name, tensor in weights.items()
        if name.partition(".")[0] not in spec.borrowed
    }
    if token_ids is not None:
        stored["d2t"] = (token_ids - torch.arange(len(token_ids))).to(torch.int64)
        t2d = torch.zeros(spec.vocab_size, dtype=torch.bool)
        t2d[token_ids] = True
        stored["t2d"] = t2d
    config = write_spec(spec, window) | ({"training": dict(extra)} if extra else {})
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}.") from error
    try:
        save_file(stored, work / _WEIGHTS)
        os.chmod(work / _WEIGHTS, 0o644)  # safetensors writes a file that only its owner can read
        (work / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        if calibration is not None:
            (work / _CALIBRATION).write_text(json.dumps(dict(calibration)) + "\n", encoding="utf-8")
        _swap(work, folder)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{folder} cannot be written: {getattr(error, 'strerror', None) or error}.") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _swap(work: Path, folder: Path) -> None:
    os.chmod(work, 0o755)  # temporary folders are private
    if folder.exists():
        old = folder.with_name(f".{folder.name}-old")
        shutil.rmtree(old, ignore_errors=True)
        os.replace(folder, old)
        try:
            os.replace(work, folder)
        except OSError:
            os.replace(old, folder)
            raise
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.replace(work, folder)


def _read_calibration(folder: Path) -> dict[str, Any] | None:
    path = folder / _CALIBRATION
    if not path.is_file():
        return None
    try:
        calibration = json.loads(path.read_text(encoding="utf-8"))
        Calibration.rates_of(calibration)  # looks at all of it; an engine that takes it over fits the curves
    except (OSError, ValueError, InputError) as error:
        raise InputError(f"{path} is damaged; delete it, and acceptance is learned from the start.") from error
    return dict(calibration)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"The head {folder} has no readable config.json: {error.strerror}.") from error
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(config, dict):
        raise InputError(f"{path} holds no JSON object.")
    return config


def _read_weights(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    try:
        if files:
            found: dict[str, torch.Tensor] = {}
            for file in files:
                found.update(load_file(file))
            return found
        if (folder / _PICKLED).is_file():  # how the first heads were published; weights_only runs no code
            return dict(torch.load(folder / _PICKLED, map_location="cpu", weights_only=True))
    except (OSError, SafetensorError, UnpicklingError, RuntimeError, ValueError, TypeError, EOFError) as error:
        raise InputError(
            f"The weights of the head {folder} cannot be read, they are cut short or damaged "
            f"({str(error).partition(chr(10))[0][:120] or type(error).__name__}); fetch them again."
        ) from error
    raise InputError(f"The head {folder} has neither {_WEIGHTS} nor {_PICKLED}.")


def _canonical(
    stored: Mapping[str, torch.Tensor], spec: Eagle3Spec, folder: Path
) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
    """Weights by canonical name, and the absolute ids of the draft tokens."""
    weights: dict[str, torch.Tensor] = {}
    table = None
    for key, tensor in stored.items():
        name = key
        for old, new in _RENAMES:
            if name.startswith(old):
                name = new + name[len(old) :]
        if name == "d2t":
            table = tensor.to(torch.int64) + torch.arange(len(tensor))  # stored as an offset, not as an id
        elif not name.startswith(_UNUSED) and not name.endswith(_UNUSED_ENDS):
            if name in weights:
                raise InputError(f"The head {folder} holds the weight {name!r} twice, the second time as {key!r}.")
            weights[name] = tensor
    return weights, table


def _borrowing(spec: Eagle3Spec, weights: Mapping[str, torch.Tensor]) -> Eagle3Spec:
    """Embeddings that are not in the file are the target's; output rows only if the config says so."""
    borrowed = set(spec.borrowed)
    if "embed_tokens.weight" not in weights and spec.target_hidden_size == spec.hidden_size:
        borrowed.add("embed_tokens")
    return replace(spec, borrowed=frozenset(borrowed))


def expected_shapes(spec: Eagle3Spec) -> dict[str, torch.Size]:
    """Shapes of all weights of a head, by canonical name, borrowed ones included."""
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Eagle3Head(spec).state_dict().items()}
    shapes["embed_tokens.weight"] = torch.Size((spec.vocab_size, spec.hidden_size))
    return shapes


def _check(spec: Eagle3Spec, weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    expected = expected_shapes(spec)
    optional = {f"{name}.weight" for name in spec.borrowed}
    missing = sorted(expected.keys() - weights.keys() - optional)
    unexpected = sorted(weights.keys() - expected.keys())
    if missing or unexpected:
        parts = [f"lacks {', '.join(missing)}"] if missing else []
        parts += [f"has no use for {', '.join(unexpected)}"] if unexpected else []
        raise InputError(f"The head {folder} does not fit its config.json: it {' and '.join(parts)}.")
    for name, tensor in weights.items():
        if tensor.shape != expected[name]:
            raise InputError(
                f"The head {folder} does not fit its config.json: {name} is {list(tensor.shape)}, expected "
                f"{list(expected[name])}."
            )
        if not torch.isfinite(tensor.float()).all():
            raise InputError(f"The head {folder} is damaged: {name} holds numbers that are not finite.")


def _check_table(table: torch.Tensor, spec: Eagle3Spec, folder: Path) -> None:
    if len(table) != spec.draft_vocab_size:
        raise InputError(
            f"The head {folder} maps {len(table)} draft tokens, its config.json says {spec.draft_vocab_size}."
        )
    if int(table.min()) < 0 or int(table.max()) >= spec.vocab_size or len(table.unique()) != len(table):
        raise InputError(f"The head {folder} maps draft tokens twice or beyond the vocabulary of {spec.vocab_size}.")


def _fingerprint(spec: Eagle3Spec, weights: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(write_spec(spec, 0), sort_keys=True).encode())
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]
