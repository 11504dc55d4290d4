"""Drafters by name, and vocabularies that must agree."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from smartree.drafters.factory import make_drafter, model_drafter
from smartree.drafters.joint import JointDrafter
from smartree.drafters.model import ModelDrafter
from smartree.drafters.ngram import NgramDrafter
from smartree.errors import InputError
from smartree.models.load import LoadedModel, prepare_model, quiet_transformers
from tests.tiny import CHARACTERS, character_tokenizer, tiny_model


def loaded(vocab: int = 97, order: list[str] | None = CHARACTERS, **tokenizer: bool) -> LoadedModel:
    made = None if order is None else character_tokenizer(order=order, **tokenizer)
    return prepare_model(tiny_model("llama", vocab=vocab), made, f"tiny-{vocab}")


@pytest.mark.parametrize("name", ["auto", "ngram"])
def test_lookup_by_name(name: str) -> None:
    assert isinstance(make_drafter(name, loaded(), 2, 100), NgramDrafter)


def test_lookup_joins_a_model_by_name(tmp_path: Path) -> None:
    with quiet_transformers():
        tiny_model("llama", seed=4, dtype=torch.float32).save_pretrained(tmp_path / "draft")
    character_tokenizer().save_pretrained(tmp_path / "draft")
    drafter = make_drafter(f"{tmp_path / 'draft'}+ngram", loaded(), 2, 100)
    assert isinstance(drafter, JointDrafter)
    assert isinstance(drafter.levels, ModelDrafter)
    assert isinstance(drafter.lookup, NgramDrafter)


def test_a_head_that_does_not_come_along_is_refused() -> None:
    with pytest.raises(InputError, match="smartree train"):
        make_drafter("head", loaded(), 2, 100)


def test_no_drafter_by_name() -> None:
    assert make_drafter("none", loaded(), 2, 100) is None


def test_a_folder_by_name_takes_the_targets_type(tmp_path: Path) -> None:
    with quiet_transformers():
        tiny_model("llama", seed=4, dtype=torch.float32).save_pretrained(tmp_path / "draft")
    character_tokenizer().save_pretrained(tmp_path / "draft")
    drafter = make_drafter(str(tmp_path / "draft"), loaded(), 2, 100)
    assert isinstance(drafter, ModelDrafter)
    assert drafter.loaded.dtype == torch.float64
    assert drafter.fingerprint == drafter.loaded.fingerprint


def test_an_unknown_folder_is_refused() -> None:
    with pytest.raises(InputError, match="does not exist"):
        make_drafter("./no/such/drafter", loaded(), 2, 100)


def test_a_permuted_vocabulary_is_refused_in_one_sentence() -> None:
    swapped = [CHARACTERS[1], CHARACTERS[0], *CHARACTERS[2:]]
    with pytest.raises(InputError, match="2 of its tokens differently") as error:
        model_drafter(loaded(order=swapped), loaded(), 2, 100)
    assert "\n" not in str(error.value)


def test_other_and_missing_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="differently"):
        model_drafter(loaded(order=["é", *CHARACTERS[1:]]), loaded(), 2, 100)
    with pytest.raises(InputError, match="differently"):
        model_drafter(loaded(order=CHARACTERS[:-1]), loaded(), 2, 100)


@pytest.mark.parametrize(("drafts", "target"), [(128, 97), (97, 128), (128, 112)])
def test_padded_vocabularies_are_accepted(drafts: int, target: int) -> None:
    drafter = model_drafter(loaded(drafts), loaded(target), 2, 100)
    assert isinstance(drafter, ModelDrafter)


def test_a_draft_model_with_fewer_rows_than_tokens_is_refused() -> None:
    with pytest.raises(InputError):
        model_drafter(loaded(60), loaded(), 2, 100)


def test_without_tokenizers_sizes_must_agree() -> None:
    assert isinstance(model_drafter(loaded(order=None), loaded(), 2, 100), ModelDrafter)
    with pytest.raises(InputError, match="128 tokens"):
        model_drafter(loaded(128, order=None), loaded(), 2, 100)
