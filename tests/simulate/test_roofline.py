"""Rooflines: the formula at sampled points, monotone everywhere, and shapes that add up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from smartree.errors import InputError
from smartree.simulate.devices import DEVICES, Device, Overheads, device_named
from smartree.simulate.models import MODELS, LayerShape, model_named
from smartree.simulate.roofline import cost_model, fits, sampled_rows

LLAMA, L40S, PRO = MODELS["llama-3.1-8b"], DEVICES["l40s"], DEVICES["rtx-pro-6000"]


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3.1-8b", 8.03),
        ("llama-3.3-70b-tp2", 70.55),
        ("llava-1.5-7b", 6.74),  # Vicuna 7B
        ("llava-1.5-13b", 13.02),  # Vicuna 13B
        ("qwen2-vl-7b", 7.61),  # Qwen2 7B
    ],
)
def test_shapes_have_the_published_number_of_parameters(name: str, billions: float) -> None:
    model = MODELS[name]
    with_embeddings = model.parameters + model.vocabulary * model.layer.hidden
    assert with_embeddings / 1e9 == pytest.approx(billions, rel=2e-3)


def test_llama_8b_by_hand() -> None:
    # A layer: q and o 4096 x 4096, k and v 4096 x 1024, gate, up, down 4096 x 14336; 32 of them; head 128256 x 4096.
    assert LLAMA.parameters == 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096
    assert LLAMA.kv_bytes == 32 * 2 * 8 * 128 * 2
    # EAGLE-3: q [H, 2H], k and v [1024, 2H], o [H, H], MLP, head 32000 x H.
    assert LLAMA.head.parameters == 4096 * 8192 + 2 * 1024 * 8192 + 4096**2 + 3 * 4096 * 14336 + 32000 * 4096
    # MSD on Vicuna 7B: fc [H, 2H] besides.
    msd = MODELS["llava-1.5-7b"].head
    assert msd.parameters == 2 * 4096**2 + 4 * 4096**2 + 3 * 4096 * 11008 + 32000 * 4096


@pytest.mark.parametrize("batch", [1, 8, 64])
@pytest.mark.parametrize("rows_per_request", [1, 7, 60])
def test_the_table_is_the_formula_at_sampled_points(batch: int, rows_per_request: int) -> None:
    rows, context = batch * rows_per_request, LLAMA.context
    cost = cost_model(L40S, LLAMA, batches=(batch,))
    assert rows in sampled_rows(batch, 64)
    bandwidth, flops = 0.85 * 864e9, 0.7 * 362.05e12
    center = context // 64 * 64 + 32  # the table answers for buckets of 64 tokens of context
    products = max(2 * LLAMA.parameters / bandwidth, 2 * LLAMA.parameters * 64 * np.ceil(rows / 64) / flops)
    cache = batch * center * 131072 / bandwidth
    attention = max(cache, rows * center * 4 * 32 * 128 * 32 / flops)
    expected = products + attention + 32 * 1e-5 + rows * 1e-6 + 2e-4
    assert float(cost.verify(batch, rows, context)) == pytest.approx(expected, rel=1e-9)


def test_draft_levels_are_the_formula() -> None:
    cost = cost_model(PRO, LLAMA, batches=(8,))
    head, bandwidth, flops = LLAMA.head.parameters, 0.85 * 1792e9, 0.7 * 503.8e12
    for width in (8, 80):
        products = max(2 * head / bandwidth, 2 * head * 64 * np.ceil(width / 64) / flops)
        attention = max(8 * 512 * 2 * 8 * 128 * 2 / bandwidth, width * 512 * 4 * 32 * 128 / flops)
        expected = products + attention + 1e-5 + width * 1e-6 + 1.5e-4
        assert cost.draft.level_seconds(8, width) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", MODELS)
def test_costs_never_fall_with_rows_context_or_batch(device: str, model: str) -> None:
    shape = MODELS[model]
    batches = [batch for batch in (1, 4, 16) if fits(DEVICES[device], shape, batch)]
    if not batches:
        pytest.skip("does not fit into memory")
    cost = cost_model(DEVICES[device], shape, batches=batches)
    for batch in batches:
        seconds = cost.verify(batch, np.arange(batch, 80 * batch), shape.context)
        assert np.all(np.diff(seconds) >= 0)
        longer = cost.verify(batch, np.arange(batch, 80 * batch), 3 * shape.context)
        assert np.all(longer >= seconds)
        levels = [cost.draft.level_seconds(batch, width) for width in range(1, 12 * batch)]
        assert np.all(np.diff(levels) >= 0)
    plain = [cost.autoregressive(batch, shape.context) for batch in batches]
    assert np.all(np.diff(plain) > 0)


def test_compute_steps_at_tile_edges_and_nowhere_else() -> None:
    seconds = cost_model(L40S, LLAMA, batches=(32,)).verify(32, np.arange(960, 1090), LLAMA.context)
    steps = np.diff(seconds)
    big = np.flatnonzero(steps > 1e-3) + 960
    assert big.tolist() == [960, 1024, 1088]  # 961, 1025 and 1089 rows begin a tile of 64
    assert np.delete(steps, big - 960).max() < 1e-5


def test_without_tiles_the_compute_bound_part_is_a_line() -> None:
    cost = cost_model(L40S, LLAMA, batches=(32,), overheads=replace(Overheads(), tile_rows=1))
    slopes = np.diff(cost.verify(32, np.arange(1200, 1900), LLAMA.context))
    assert slopes.max() == pytest.approx(slopes.min(), rel=1e-6)


def test_two_devices_halve_the_work_and_pay_for_talking() -> None:
    alone = replace(LLAMA, tensor_parallel=1)
    shared = replace(LLAMA, tensor_parallel=2)
    free = Overheads(pass_seconds=0, layer_seconds=0, row_seconds=0, all_reduce_seconds=0)
    fast = replace(DEVICES["h100-sxm"], link=1e9)
    one, two = (float(cost_model(fast, m, batches=(1,), overheads=free).verify(1, 1, 512)) for m in (alone, shared))
    assert two == pytest.approx(one / 2, rel=1e-6)
    talking = cost_model(fast, shared, batches=(1,), overheads=replace(free, all_reduce_seconds=1e-5))
    assert float(talking.verify(1, 1, 512)) == pytest.approx(two + 64e-5, rel=1e-6)


def test_no_pass_is_faster_than_the_host_launches_it() -> None:
    eager = cost_model(PRO, LLAMA, batches=(1,), overheads=Overheads(launch_seconds=1e-3))
    assert float(eager.verify(1, 1, 512)) == pytest.approx(32e-3 + 2e-4)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="does not fit"):
        cost_model(L40S, MODELS["llama-3.3-70b-tp2"], batches=(1,))
    assert fits(L40S, MODELS["llama-3.3-70b-tp4"], 8)


def test_bad_names_and_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="choose one of rtx-pro-6000"):
        device_named("tpu")
    with pytest.raises(InputError, match="choose one of llama"):
        model_named("gpt")
    with pytest.raises(InputError):
        Device("x", 0, 1, 1, 1, "")
    with pytest.raises(InputError):
        LayerShape(0, 1, 1, 1)
    with pytest.raises(InputError, match="cannot share"):
        replace(MODELS["qwen2-vl-7b"], tensor_parallel=8)
    for bad in ({"compute_fraction": 0.0}, {"memory_fraction": 1.1}, {"row_seconds": -1.0}, {"tile_rows": 0}):
        with pytest.raises(InputError):
            replace(Overheads(), **bad)  # type: ignore[arg-type]


def test_every_device_names_the_document_of_its_numbers() -> None:
    assert all("data sheet" in device.source for device in DEVICES.values())
