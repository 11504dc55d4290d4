"""A head before training: its sizes, its draft vocabulary, what it takes over from the target."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
import torch

from smartree.drafters.eagle3.checkpoint import expected_shapes, read_checkpoint, write_checkpoint
from smartree.drafters.eagle3.runner import LoadedHead
from smartree.models.load import LoadedModel
from smartree.train.beginning import draft_tokens, new_head, spec_for, tapped_layers, teacher_of
from smartree.train.config import TrainConfig
from smartree.train.corpus import Text
from tests.drafters.eagle3.heads import same_tensors, tiny_target
from tests.tiny import ARCHITECTURES, HIDDEN, VOCAB, reference_model

TEXTS = [Text("a", (90, 91), (5, 5, 5, 7)), Text("b", (90,), (7, 3, 5)), Text("c", (91,), (8,))]


@cache
def target(architecture: str = "llama") -> LoadedModel:
    return tiny_target(architecture, torch.float32)


def ending(*tokens: int) -> LoadedModel:
    """A target with these end tokens."""
    return dataclasses.replace(target(), eos_ids=frozenset(tokens))


def test_the_most_frequent_answer_tokens_ascending() -> None:
    assert draft_tokens(TEXTS, target(), 2).tolist() == [5, 7]
    assert draft_tokens(TEXTS, target(), 3).tolist() == [3, 5, 7]  # 3 and 8 are equally frequent
    assert draft_tokens(TEXTS, target(), 4).tolist() == [3, 5, 7, 8]


@pytest.mark.parametrize("count", [2, 3, 10, VOCAB])
def test_end_tokens_are_always_there(count: int) -> None:
    """Even if no answer holds them, as answers that were cut do not."""
    ids = draft_tokens(TEXTS, ending(60, 2), count)
    assert len(ids) == count
    assert {2, 60} <= set(ids.tolist())
    assert ids.tolist() == sorted(set(ids.tolist()))


def test_a_small_corpus_is_filled_up() -> None:
    assert draft_tokens(TEXTS, target(), 8).tolist() == [0, 1, 2, 3, 4, 5, 7, 8]
    assert draft_tokens([], target(), 3).tolist() == [0, 1, 2]
    assert draft_tokens(TEXTS, target(), VOCAB).tolist() == list(range(VOCAB))


def test_tokens_of_prompts_are_not_counted() -> None:
    assert not {90, 91} & set(draft_tokens(TEXTS, target(), 4).tolist())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_head_has_the_sizes_of_its_target(architecture: str) -> None:
    spec = spec_for(target(architecture), TrainConfig(draft_vocab=50))
    assert (spec.hidden_size, spec.target_hidden_size, spec.vocab_size) == (HIDDEN, HIDDEN, VOCAB)
    assert (spec.heads, spec.kv_heads, spec.head_dim, spec.intermediate_size) == (4, 2, 8, 48)
    assert spec.draft_vocab_size == 50
    assert spec.feature_layers == tapped_layers(target(architecture)) == (2, 1, 0)
    assert spec.borrowed == {"embed_tokens", "lm_head"}
    head = new_head(spec, target(architecture), 0)
    borrowed = {"embed_tokens.weight"}
    assert {name: weight.shape for name, weight in head.state_dict().items()} == {
        name: shape for name, shape in expected_shapes(spec).items() if name not in borrowed
    }
    assert all(torch.isfinite(weight).all() for weight in head.state_dict().values())


def test_settings_change_the_sizes() -> None:
    spec = spec_for(target(), TrainConfig(draft_vocab=10**6, intermediate_size=24))
    assert (spec.draft_vocab_size, spec.intermediate_size) == (VOCAB, 24)
    assert not spec.maps_vocabulary
    new_head(spec, target(), 0)  # what does not fit of the target is left out


def test_the_same_seed_gives_the_same_head() -> None:
    spec = spec_for(target(), TrainConfig(draft_vocab=50))
    one, again, other = (dict(new_head(spec, target(), seed).state_dict()) for seed in (1, 1, 2))
    assert same_tensors(one, again)
    assert not same_tensors(one, other)


def test_a_head_starts_as_the_targets_last_layer() -> None:
    spec = spec_for(target(), TrainConfig(draft_vocab=50))
    head = new_head(spec, target(), 0).state_dict()
    theirs = reference_model(dtype=torch.float32).state_dict()
    for part in ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm"):
        assert torch.equal(head[f"layers.0.{part}.weight"], theirs[f"model.layers.1.{part}.weight"])
    for part in ("q_proj", "k_proj", "v_proj"):
        mine = head[f"layers.0.self_attn.{part}.weight"]
        assert torch.equal(mine[:, HIDDEN:], theirs[f"model.layers.1.self_attn.{part}.weight"])
        assert mine[:, :HIDDEN].abs().max() < 0.2  # the embedding's part begins at nearly nothing
    assert torch.equal(head["layers.0.hidden_norm.weight"], theirs["model.layers.1.input_layernorm.weight"])
    assert torch.equal(head["norm.weight"], theirs["model.norm.weight"])
    states = torch.randn(5, 3 * HIDDEN)
    late = states[:, -HIDDEN:]  # the last tap passes unchanged
    assert torch.equal(states @ head["fc.weight"].T, late)


def test_a_head_may_start_at_random() -> None:
    spec = spec_for(target(), TrainConfig(draft_vocab=50))
    head = new_head(spec, target(), 0, from_target=False).state_dict()
    assert head["fc.weight"].std() == pytest.approx(0.02, rel=0.1)
    assert head["layers.0.mlp.up_proj.weight"].std() == pytest.approx(0.02, rel=0.1)


def test_only_output_rows_stand_still() -> None:
    head = new_head(spec_for(target(), TrainConfig(draft_vocab=50)), target(), 0)
    assert [name for name, weight in head.named_parameters() if not weight.requires_grad] == ["lm_head.weight"]
    assert {weight.dtype for weight in head.parameters()} == {torch.float32}


def test_a_teacher_knows_the_draft_vocabulary() -> None:
    ids = torch.tensor([3, 10, 96])
    teacher = teacher_of(target(), ids)
    original = reference_model(dtype=torch.float32)
    assert torch.equal(teacher.rows, original.get_output_embeddings().weight[ids].to(torch.bfloat16))
    assert torch.equal(teacher.embeddings, original.get_input_embeddings().weight)
    assert teacher.draft_ids[ids].tolist() == [0, 1, 2]
    assert int((teacher.draft_ids == -1).sum()) == VOCAB - 3
    assert teacher.eps == original.config.rms_norm_eps


def test_a_new_head_can_be_written_read_and_used(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("head") / "head"
    spec = spec_for(target(), TrainConfig(draft_vocab=50))
    head, ids = new_head(spec, target(), 0), draft_tokens(TEXTS, target(), 50)
    write_checkpoint(folder, spec, head.state_dict(), ids, 64)
    found = read_checkpoint(folder)
    assert found.spec == spec
    loaded = LoadedHead(found, target(), "new")
    assert loaded.feature_layers == (2, 1, 0)
    assert loaded.token_ids is not None
    assert loaded.token_ids.tolist() == ids.tolist()
