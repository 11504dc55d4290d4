"""Plain modules on shards; a world of one process, as tests/engine/test_tensor_parallel.py has the one of two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from transformers import GPT2Config, LlamaConfig

from smartree.errors import InputError
from smartree.models.shards import GatheredLinear, SummedLinear, localize, own_device, require_shardable
from smartree.models.surgery import weight_of
from tests.tiny import tiny_model


@pytest.fixture
def world(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'world'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("world")
def test_a_sum_adds_the_bias_once_and_a_gathering_cuts_padding() -> None:
    linear, inputs = nn.Linear(6, 5), torch.randn(2, 6)
    with torch.inference_mode():
        expected = linear(inputs)
        part = nn.Linear(6, 5, bias=False)
        part.weight = linear.weight
        summed = SummedLinear(part, linear.bias.detach())(inputs)
        torch.testing.assert_close(summed, expected)
        # Two ranks of a layer of 7 rows would hold 4 and 3: a part of 5 here stands for the last, shorter one of 8.
        assert torch.equal(GatheredLinear(linear, 5)(inputs), expected)
        longer = GatheredLinear(linear, 8)(inputs)
    assert torch.equal(longer[:, :5], expected)
    assert torch.equal(longer[:, 5:], torch.zeros(2, 3))


@pytest.mark.usefixtures("world")
def test_a_shard_is_never_taken_for_the_output_layer() -> None:
    whole = torch.randn(7, 6)
    assert torch.equal(weight_of(GatheredLinear(nn.Linear(6, 4), 7, whole)), whole)
    with pytest.raises(InputError, match="rank 0"):
        weight_of(GatheredLinear(nn.Linear(6, 4), 7))


@pytest.mark.usefixtures("world")
def test_a_model_that_is_not_sharded_is_left_alone() -> None:
    model = tiny_model()
    before = list(model.modules())
    assert localize(model)
    assert [id(module) for module in model.modules()] == [id(module) for module in before]


def test_heads_must_be_dealt_out_evenly() -> None:
    config = LlamaConfig(hidden_size=96, num_attention_heads=12, num_key_value_heads=4)
    require_shardable(config, "twelve", 4)
    with pytest.raises(InputError, match=r"'twelve' has 12 query and 4 key/value heads.* 8 processes.*one of 1, 2, 4"):
        require_shardable(config, "twelve", 8)


def test_a_model_without_a_plan_is_refused() -> None:
    with pytest.raises(InputError, match="no plan for tensor parallelism"):
        require_shardable(GPT2Config(), "gpt", 2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without a GPU")
def test_every_process_takes_its_own_device() -> None:
    assert own_device("auto") == own_device("cpu") == torch.device("cpu")
    for one in ("cuda", "cuda:1"):
        with pytest.raises(InputError, match="each takes its own"):
            own_device(one)
