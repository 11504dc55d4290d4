"""Drafters by name."""

from __future__ import annotations

from smartree.drafters.base import Drafter
from smartree.drafters.model import ModelDrafter
from smartree.drafters.ngram import NgramDrafter
from smartree.errors import InputError
from smartree.models.load import LoadedModel, load_model


def make_drafter(name: str, target: LoadedModel, slots: int, window: int) -> Drafter | None:
    """ "auto" and "ngram" look the text up; "none" drafts nothing; anything else is a model's folder or id.

    Raises:
        InputError: the draft model cannot be loaded or has another vocabulary.
    """
    if name == "none":
        return None
    if name in ("auto", "ngram"):
        return NgramDrafter()
    dtype = str(target.dtype).removeprefix("torch.")
    return model_drafter(load_model(name, dtype=dtype, device=str(target.device)), target, slots, window)


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
