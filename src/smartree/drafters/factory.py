"""Drafters by name."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from smartree.drafters.base import Drafter
from smartree.drafters.eagle3.checkpoint import is_eagle3, read_checkpoint
from smartree.drafters.eagle3.drafter import Eagle3Drafter
from smartree.drafters.eagle3.runner import LoadedHead
from smartree.drafters.joint import JointDrafter
from smartree.drafters.model import ModelDrafter
from smartree.drafters.ngram import NgramDrafter
from smartree.drafters.shipped import shipped_head
from smartree.errors import InputError
from smartree.models.load import LoadedModel, load_model

_AND_LOOKUP = "+ngram"


def make_drafter(name: str, target: LoadedModel, slots: int, window: int) -> Drafter | None:
    """ "auto" takes the head that comes with the package for this very model and joins lookup to it; for other models
    it is "ngram", which looks the text up. "head" is the head that comes with the package alone.

    "none" drafts nothing; anything else is the folder or id of a model or an EAGLE-3 head, with "+ngram" behind it if
    lookup is to join.

    Raises:
        InputError: the draft model cannot be loaded or has another vocabulary, or there is no head for the target.
    """
    if name == "none":
        return None
    if name.endswith(_AND_LOOKUP):
        levels = make_drafter(name.removesuffix(_AND_LOOKUP), target, slots, window)
        if isinstance(levels, JointDrafter):
            return levels
        if levels is None:
            raise InputError(f"{name!r} names no drafter for lookup to join; ngram alone is --drafter ngram.")
        return JointDrafter(levels)
    if name in ("auto", "head"):
        folder = shipped_head(target)
        if folder is not None:
            head = Eagle3Drafter(LoadedHead(read_checkpoint(folder), target, folder.name), slots, window)
            return JointDrafter(head) if name == "auto" else head
        if name == "head":
            raise InputError(f"No head for {target.name!r} comes with smartree; train one with `smartree train`.")
    if name in ("auto", "ngram"):
        return NgramDrafter()
    folder = head_folder(name)
    if folder is not None:
        return Eagle3Drafter(LoadedHead(read_checkpoint(folder), target, name), slots, window)
    dtype = str(target.dtype).removeprefix("torch.")
    return model_drafter(load_model(name, dtype=dtype, device=str(target.device)), target, slots, window)


def head_folder(name: str) -> Path | None:
    """The folder of a head, fetched from the hub if need be; None if the name is not one of a head."""
    folder = Path(name)
    if folder.is_dir():
        return folder if is_eagle3(folder) else None
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        return None
    try:
        config = Path(hf_hub_download(name, "config.json"))
        if not is_eagle3(config.parent):
            return None
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.bin"]))
    except (OSError, ValueError, HfHubHTTPError):
        return None  # loading it as a model says what is wrong with the name or the network


def model_drafter(loaded: LoadedModel, target: LoadedModel, slots: int, window: int) -> ModelDrafter:
    """A drafter from a loaded model.

    Raises:
        InputError: its vocabulary is not the target's.
    """
    require_same_vocabulary(loaded, target)
    return ModelDrafter(loaded, target.vocab_size, slots, window)


def require_same_vocabulary(drafter: LoadedModel, target: LoadedModel) -> None:
    """Raises:
    InputError: a token means different things to the two models; sizes may be padded differently.
    """
    if drafter.tokenizer is None or target.tokenizer is None:
        if drafter.vocab_size != target.vocab_size:
            raise InputError(
                f"The drafter {drafter.name!r} has {drafter.vocab_size} tokens and the target {target.name!r} has "
                f"{target.vocab_size}; use a drafter with the target's vocabulary."
            )
        return
    mine, theirs = drafter.tokenizer.get_vocab(), target.tokenizer.get_vocab()
    differing = sum(mine.get(token) != index for token, index in theirs.items()) + len(mine.keys() - theirs.keys())
    if differing or drafter.vocab_size < len(theirs):
        raise InputError(
            f"The drafter {drafter.name!r} numbers {differing} of its tokens differently from the target "
            f"{target.name!r}; use a drafter with the target's tokenizer."
        )
