"""What passes cost on a device by its roofline, as the same kind of table that a measured profile gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smartree.cost import CostModel, CostPoint, CostTable, DraftCost, DraftPoint
from smartree.errors import InputError
from smartree.simulate.devices import Device, Overheads
from smartree.simulate.models import ModelShape

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

BATCHES = (1, 2, 4, 8, 16, 32, 64)
_ROWS_PER_REQUEST = (*range(1, 17), *range(18, 33, 2), *range(36, 65, 4))
_FEWEST_ROWS = 320  # even one request may get a tree of 300 nodes
_DRAFT_WIDTH = 16
_USABLE_MEMORY = 0.95


@dataclass(frozen=True, slots=True)
class PassWork:
    """What one pass of a network reads and computes, over all its devices.

    Attributes:
        parameters: weights read.
        number_bytes: bytes a number.
        layers: decoder layers.
        kv_bytes: cache bytes read per cached token of a request.
        attention_flops: FLOPs of one row over one cached token.
        hidden: width of the residual stream, for all-reduces.
        devices: that share the pass.
    """

    parameters: int
    number_bytes: int
    layers: int
    kv_bytes: int
    attention_flops: int
    hidden: int
    devices: int

    @staticmethod
    def of_target(model: ModelShape) -> PassWork:
        """A pass of the target."""
        return PassWork(
            model.parameters,
            model.bytes_per_number,
            model.layers,
            model.kv_bytes,
            model.layers * model.layer.attention_flops,
            model.layer.hidden,
            model.tensor_parallel,
        )

    @staticmethod
    def of_head(model: ModelShape) -> PassWork:
        """A pass of the draft head over one level; shared by the same devices as its target."""
        layer, size = model.head.layer, model.bytes_per_number
        return PassWork(
            model.head.parameters,
            size,
            1,
            layer.kv_numbers * size,
            layer.attention_flops,
            layer.hidden,
            model.tensor_parallel,
        )


def pass_seconds(
    device: Device, overheads: Overheads, work: PassWork, batch: int, rows: Ints | int, context: int
) -> Floats:
    """Seconds of passes that carry `rows` rows in all, for `batch` requests with `context` cached tokens each.

    Products and attention run one after the other, so each has a roofline of its own, max(memory, compute); weights and
    cache are read once a pass, whatever the rows. Products compute whole tiles of rows. The host that launches the
    layers works beside the device; a pass takes as long as the slower of the two.
    """
    rows = np.asarray(rows, np.int64)
    flops = device.tflops * 1e12 * overheads.compute_fraction * work.devices
    bandwidth = device.bandwidth * 1e9 * overheads.memory_fraction * work.devices
    tiled = -(-rows // overheads.tile_rows) * overheads.tile_rows
    products = np.maximum(work.parameters * work.number_bytes / bandwidth, 2.0 * work.parameters * tiled / flops)
    attention = np.maximum(
        float(batch) * context * work.kv_bytes / bandwidth, rows * (float(context) * work.attention_flops) / flops
    )
    small = work.layers * overheads.layer_seconds + rows * overheads.row_seconds
    on_device = products + attention + small + _all_reduce_seconds(device, overheads, work, rows)
    return np.asarray(np.maximum(on_device, work.layers * overheads.launch_seconds))


def _all_reduce_seconds(device: Device, overheads: Overheads, work: PassWork, rows: Ints) -> Floats:
    """Two ring all-reduces of the residual stream a layer; each sends 2 (D - 1) / D of it."""
    if work.devices == 1:
        return np.zeros(rows.shape)
    sent = 2 * (work.devices - 1) / work.devices * rows * work.hidden * work.number_bytes
    return np.asarray(2 * work.layers * (overheads.all_reduce_seconds + sent / (device.link * 1e9)))


def fits(device: Device, model: ModelShape, batch: int) -> bool:
    """True if target, head and the cache of `batch` requests fit into 95% of the devices' memory."""
    room = _USABLE_MEMORY * device.memory * 1e9 * model.tensor_parallel
    return model.memory_bytes(batch) <= room


def sampled_rows(batch: int, tile_rows: int) -> Ints:
    """Row counts that a table holds for a batch size: 1 to 64 rows a request, and both sides of every tile's edge."""
    most = max(64 * batch, _FEWEST_ROWS)
    per_request = batch * np.array(_ROWS_PER_REQUEST)
    edges = np.arange(tile_rows, most + 1, tile_rows) if tile_rows > 1 else np.arange(32, most + 1, 32)
    rows = np.unique(np.concatenate([per_request, edges, edges + 1, [most]]))
    return rows[(rows >= batch) & (rows <= most)].astype(np.int64)


def cost_model(
    device: Device,
    model: ModelShape,
    *,
    batches: Sequence[int] = BATCHES,
    context: int | None = None,
    overheads: Overheads | None = None,
) -> CostModel:
    """The cost model that policies would have measured on this device.

    Args:
        device: where.
        model: what; its `tensor_parallel` devices share every pass.
        batches: batch sizes of the table.
        context: shortest cached length of the table, tokens; the model's own if not given. Rooflines are linear in it,
            so two lengths say everything.
        overheads: the free parameters.

    Raises:
        InputError: a batch does not fit into memory.
    """
    overheads = overheads or Overheads()
    context = context or model.context
    for batch in batches:
        if not fits(device, model, batch):
            raise InputError(
                f"{model.name} with {batch} requests needs {model.memory_bytes(batch) / 1e9:.0f} GB and does not fit "
                f"on {model.tensor_parallel} x {device.name}; choose a smaller batch or another device."
            )
    work = PassWork.of_target(model)
    points = []
    for batch in batches:
        rows = sampled_rows(batch, overheads.tile_rows)
        for length in (context, 4 * context):
            seconds = pass_seconds(device, overheads, work, batch, rows, length) + overheads.pass_seconds
            points += [CostPoint(batch, n, length, s) for n, s in zip(rows.tolist(), seconds.tolist(), strict=True)]
    draft = DraftCost(levels=_draft_points(device, overheads, model, batches, context))
    return CostModel(CostTable(points), draft)


def _draft_points(
    device: Device, overheads: Overheads, model: ModelShape, batches: Sequence[int], context: int
) -> tuple[DraftPoint, ...]:
    """Draft levels of 1 to 16 rows a request, and both sides of the tiles' edges, at one context."""
    work, points = PassWork.of_head(model), []
    for batch in batches:
        most = _DRAFT_WIDTH * batch
        edges = np.arange(overheads.tile_rows, most, overheads.tile_rows) if overheads.tile_rows > 1 else np.array([])
        widths = np.unique(np.concatenate([[1], batch * np.arange(1, _DRAFT_WIDTH + 1), edges, edges + 1]))
        widths = widths[widths <= most].astype(np.int64)
        seconds = pass_seconds(device, overheads, work, batch, widths, context) + overheads.level_seconds
        points += [DraftPoint(batch, w, s) for w, s in zip(widths.tolist(), seconds.tolist(), strict=True)]
    return tuple(points)
