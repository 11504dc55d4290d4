"""The unrolled steps of training are the levels of drafting, and learn from the target's own distribution."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from smartree.drafters.eagle3.checkpoint import Eagle3Checkpoint
from smartree.drafters.eagle3.drafter import Eagle3Drafter
from smartree.drafters.eagle3.head import Eagle3Head, Rotary
from smartree.drafters.eagle3.runner import LoadedHead
from smartree.models.load import LoadedModel
from smartree.train.batches import Batch, make_batch
from smartree.train.beginning import teacher_of
from smartree.train.corpus import Text
from smartree.train.features import feature_runner, features_of
from smartree.train.unrolled import StepResult, Teacher, Unrolled, weighted_mean
from smartree.tree.forest import Candidates, Forest
from tests.drafters.eagle3.heads import LAYERS, LLAMA3, listening_drafter, random_weights, tiny_spec, tiny_target
from tests.drafters.grown import Text as Request
from tests.tiny import VOCAB, random_prompts, reference_model

STEPS = 4
TEXTS = [
    Text(f"t{place}", tuple(tokens[:cut]), tuple(tokens[cut:]))
    for place, (tokens, cut) in enumerate(zip(random_prompts([12, 7, 9, 3], seed=5), (3, 1, 6, 1), strict=True))
]
TABLE = torch.arange(0, VOCAB, 2)  # every other token can be proposed
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers": {"layers": 2, "norm_output": True},
    "qwen3": {"qk_norm": True, "norm_before_residual": True, "fc_norm": True, "rope": LLAMA3},
}


@cache
def target() -> LoadedModel:
    return tiny_target(dtype=torch.float32)


@cache
def features() -> tuple[torch.Tensor, ...]:
    """[rows, taps * hidden + hidden] of each text."""
    runner = feature_runner(target(), (*LAYERS, 2), 64)
    return tuple(features_of(runner, text.tokens) for text in TEXTS)


def a_batch(numbers: tuple[int, ...] = (0, 1, 2, 3)) -> Batch:
    return make_batch([TEXTS[number] for number in numbers], [features()[number] for number in numbers], 32)


def a_teacher(dtype: torch.dtype = torch.float32) -> Teacher:
    """Without bfloat16's rounding of the output rows, so that it can be compared with the target's own logits."""
    made = teacher_of(target(), TABLE)
    rows = reference_model(dtype=torch.float32).get_output_embeddings().weight.detach()[TABLE]
    return dataclasses.replace(made, rows=rows.to(dtype))


def a_head(kind: str = "plain") -> Eagle3Head:
    spec = tiny_spec(draft_vocab_size=len(TABLE), **KINDS[kind])
    head = Eagle3Head(spec)
    head.load_state_dict(random_weights(spec))
    return head


def unrolled(head: Eagle3Head) -> Unrolled:
    return Unrolled(head, a_teacher(), Rotary(head.spec, 64, torch.float32, torch.device("cpu")))


@pytest.mark.parametrize("kind", KINDS)
def test_step_k_is_the_k_th_level_along_the_true_path(kind: str) -> None:
    """The drafter itself is driven along a text's own tokens, from every place where a tree could begin."""
    head = a_head(kind)
    steps: list[torch.Tensor] = []
    head.register_forward_hook(lambda _module, _args, output: steps.append(output[1].detach()))
    unrolled(head)(a_batch(), STEPS)
    loaded = LoadedHead(Eagle3Checkpoint(head.spec, head.state_dict(), TABLE, ""), target(), "head")
    compared = 0
    for place, text in enumerate(TEXTS):
        tokens = list(text.tokens)
        for length in range(2, len(tokens) + 1):
            drafter, listener = listening_drafter(target(), loaded)
            heard = overheard(drafter)
            request = Request(0, tokens[:length])
            listener.hear([request])
            forest = Forest(np.array([tokens[length - 1]]))
            drafter.begin([request], forest)
            node = np.array([0])
            for step in range(STEPS):
                drafter.expand(forest, node)
                # Row j of step k has read token j + 1 + k behind the rows up to j.
                row = length - 2
                assert torch.allclose(heard[-1][0], steps[step][place, row], rtol=2e-4, atol=2e-4)
                compared += 1
                if length + step >= len(tokens):
                    break
                node = forest.append(child(node, tokens[length + step]))
    assert compared > 80


def overheard(drafter: Eagle3Drafter) -> list[torch.Tensor]:
    """A list that gets what every level's logits are read from."""
    heard: list[torch.Tensor] = []
    logits = drafter.runner.logits

    def listen(normed: torch.Tensor) -> torch.Tensor:
        heard.append(normed)
        return logits(normed)

    drafter.runner.logits = listen  # type: ignore[method-assign]
    return heard


def child(node: np.ndarray, token: int) -> Candidates:
    """The text's own next token below a node."""
    one = np.zeros(1, np.int64)
    return Candidates(node, one + token, np.ones(1), one, one - 1, np.zeros(1))


def target_chances(text: Text) -> torch.Tensor:
    """[tokens, draft vocabulary] what transformers says of the token after each, over the whole vocabulary."""
    with torch.no_grad():
        logits = reference_model(dtype=torch.float32)(input_ids=torch.tensor([text.tokens])).logits[0]
    return torch.softmax(logits[:, TABLE], -1)


def test_the_teacher_says_what_the_target_says() -> None:
    for text, states in zip(TEXTS, features(), strict=True):
        chances = a_teacher().chances(states[:, -32:])
        assert chances.dtype == torch.bfloat16
        assert torch.allclose(chances.float(), target_chances(text)[:-1], rtol=1e-2, atol=1e-3)


def test_the_teacher_of_a_target_with_another_norm() -> None:
    """Gemma adds 1 to the weights of its norms."""
    model, original = tiny_target("gemma3", torch.float32), reference_model("gemma3", dtype=torch.float32)
    runner = feature_runner(model, (2,), 64)
    tokens = TEXTS[0].tokens
    chances = teacher_of(model, torch.arange(VOCAB)).chances(features_of(runner, tokens))
    with torch.no_grad():
        logits = original(input_ids=torch.tensor([tokens])).logits[0, :-1]
    assert torch.allclose(chances.float(), torch.softmax(logits, -1), rtol=0, atol=0.1)  # its rows are bfloat16
    assert (chances.float() - torch.softmax(logits, -1)).abs().mean() < 2e-3


def test_losses_and_rows_are_those_of_the_definition() -> None:
    head = a_head()
    steps: list[torch.Tensor] = []
    head.register_forward_hook(lambda _module, _args, output: steps.append(output[1].detach()))
    results = unrolled(head)(a_batch(), STEPS, count_hits=True)
    rows_of_teacher = a_teacher().rows
    for step, result in enumerate(results):
        loss, rows, hits = 0.0, 0, 0
        for place, text in enumerate(TEXTS):
            wanted = target_chances(text)
            # A first root is the answer's first token; step k predicts the token k + 1 after the root.
            for root in range(len(text.prompt), len(text.tokens) - 1):
                predicted = root + 1 + step
                if predicted >= len(text.tokens) or text.tokens[predicted] not in TABLE.tolist():
                    continue
                logits = rows_of_teacher @ steps[step][place, root - 1]
                loss -= float((wanted[predicted - 1] * torch.log_softmax(logits, 0)).sum())
                rows += 1
                hits += int(TABLE[logits.argmax()] == text.tokens[predicted])
        assert (result.rows, result.hits) == (rows, hits)
        assert result.loss.item() == pytest.approx(loss, rel=1e-2)
    assert [result.rows for result in results] == sorted((result.rows for result in results), reverse=True)


def test_padding_and_company_do_not_matter() -> None:
    """Texts padded together have the losses of each alone."""
    head = a_head()
    together = unrolled(head)(a_batch(), STEPS, count_hits=True)
    alone = [unrolled(head)(a_batch((number,)), STEPS, count_hits=True) for number in range(len(TEXTS))]
    for step in range(STEPS):
        assert together[step].rows == sum(one[step].rows for one in alone)
        assert together[step].hits == sum(one[step].hits for one in alone)
        assert together[step].loss.item() == pytest.approx(sum(one[step].loss.item() for one in alone), rel=1e-4)


def test_the_future_has_no_say() -> None:
    """What a row says does not change with later tokens and states of its text."""
    head = a_head()
    steps: list[torch.Tensor] = []
    head.register_forward_hook(lambda _module, _args, output: steps.append(output[1].detach()))
    batch = a_batch((0,))
    unrolled(head)(batch, 3)
    before, row = list(steps), 5
    steps.clear()
    states, tokens = batch.states.clone(), batch.tokens.clone()
    states[:, row + 1 :] += 1
    tokens[:, row + 4 :] = 1  # step 2 of this row has read token row + 3
    unrolled(head)(dataclasses.replace(batch, states=states, tokens=tokens), 3)
    for old, new in zip(before, steps, strict=True):
        assert torch.equal(old[:, : row + 1], new[:, : row + 1])
        assert not torch.allclose(old[:, row + 1 :], new[:, row + 1 :])


@pytest.mark.parametrize("steps", [1, 3, 6, 9])
def test_texts_shorter_than_the_steps(steps: int) -> None:
    results = unrolled(a_head())(a_batch((3,)), steps)
    assert len(results) == steps
    assert all(torch.isfinite(result.loss) for result in results)
    assert all(result.rows == 0 for result in results[1:])


def test_every_step_teaches_the_weights() -> None:
    head = a_head()
    head.lm_head.weight.requires_grad_(False)
    results = unrolled(head)(a_batch(), 3)
    for step in range(3):
        head.zero_grad()
        results[step].loss.backward(retain_graph=True)
        for name, weight in head.named_parameters():
            if name != "lm_head.weight":
                assert weight.grad is not None, (step, name)
                assert float(weight.grad.abs().max()) > 0, (step, name)


def test_the_gradient_is_that_of_the_loss() -> None:
    """A small step along the gradient lowers the loss by what the gradient says."""
    head = a_head()
    head.lm_head.weight.requires_grad_(False)

    def loss() -> torch.Tensor:
        return weighted_mean(unrolled(head)(a_batch(), 3), 0.8)

    before = loss()
    before.backward()
    weights = [weight for weight in head.parameters() if weight.grad is not None]
    norm = sum(float((weight.grad**2).sum()) for weight in weights if weight.grad is not None)
    step = 1e-3 / norm**0.5
    with torch.no_grad():
        for weight in weights:
            assert weight.grad is not None
            weight.sub_(step * weight.grad)
    assert (before - loss()).item() == pytest.approx(step * norm, rel=0.1)


def test_later_steps_weigh_less() -> None:
    results = [StepResult(torch.tensor(value), rows, 0) for value, rows in ((8.0, 4), (9.0, 3), (0.0, 0))]
    expected = (2 + 0.5 * 3 + 0.25 * 0) / (1 + 0.5 + 0.25)
    assert float(weighted_mean(results, 0.5)) == pytest.approx(expected)
    assert float(weighted_mean(results[:1], 0.5)) == 2
