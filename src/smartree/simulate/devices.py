"""Devices by their data sheets, and the free parameters that no data sheet states."""

from __future__ import annotations

from dataclasses import dataclass, fields

from smartree.errors import InputError


@dataclass(frozen=True, slots=True)
class Device:
    """Peaks of one device, as its vendor states them.

    Attributes:
        name: as given on the command line.
        tflops: dense bfloat16 tensor throughput with float32 accumulation, 10^12 FLOP/s; half of what data sheets print
            "with sparsity".
        bandwidth: memory bandwidth, 10^9 byte/s.
        memory: memory, 10^9 byte.
        link: bandwidth to its peers in one direction, 10^9 byte/s.
        source: the document of these numbers.
    """

    name: str
    tflops: float
    bandwidth: float
    memory: float
    link: float
    source: str

    def __post_init__(self) -> None:
        if min(self.tflops, self.bandwidth, self.memory, self.link) <= 0:
            raise InputError(f"Device {self.name!r} needs positive peaks.")


@dataclass(frozen=True, slots=True)
class Overheads:
    """What a roofline needs beside the peaks. Free parameters: stated here, fitted in benchmarks/simulate/published.py.

    Attributes:
        compute_fraction: share of the tensor peak that matrix products of a pass reach.
        memory_fraction: share of the memory bandwidth that a pass reaches.
        pass_seconds: time of every pass of the target whatever it carries (sampling, scheduling), s.
        launch_seconds: host time to launch a layer, s: no pass is shorter than that times its layers. 0 for captured
            graphs; eager PyTorch takes hundreds of microseconds.
        layer_seconds: small kernels (norms, rotary, residuals) of a layer, s; 10 kernels of a graph, 1 us each.
        row_seconds: time of a row outside matrix products and attention, s: float32 logits of a 128k vocabulary
            written and read are 1 MB, 0.6 us at 1.8 TB/s.
        level_seconds: host and top-k time of a draft level, s.
        all_reduce_seconds: latency of an all-reduce, s; two a layer under tensor parallelism.
        tile_rows: matrix products compute whole tiles of this many rows (NVIDIA, "Matrix Multiplication Background
            User's Guide" DU-09799-001, section 3.1 "Tile Quantization"; 64 is the smallest tile height of its cuBLAS
            table, section 2.3). 1 switches the steps off.
    """

    compute_fraction: float = 0.7
    memory_fraction: float = 0.85
    pass_seconds: float = 2e-4
    launch_seconds: float = 0.0
    layer_seconds: float = 1e-5
    row_seconds: float = 1e-6
    level_seconds: float = 1.5e-4
    all_reduce_seconds: float = 1e-5
    tile_rows: int = 64

    def __post_init__(self) -> None:
        for name in ("compute_fraction", "memory_fraction"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be in (0, 1].")
        times = [field.name for field in fields(self) if field.name.endswith("_seconds")]
        if any(not 0 <= getattr(self, name) < float("inf") for name in times) or self.tile_rows < 1:
            raise InputError(f"Overheads must be finite and not negative, tile_rows at least 1; got {self}.")


_WHITE_PAPER = "dense: 1/8 of the FP4-with-sparsity figure, as in NVIDIA's RTX Blackwell PRO architecture paper"

DEVICES = {
    device.name: device
    for device in (
        Device(
            "rtx-pro-6000",
            tflops=503.8,
            bandwidth=1792,
            memory=96,
            link=64,
            source=f"NVIDIA RTX PRO 6000 Blackwell Workstation Edition data sheet (4000 AI TOPS, 1792 GB/s, 96 GB, "
            f"PCIe 5.0 x16); {_WHITE_PAPER}",
        ),
        Device(
            "rtx-pro-6000-server",
            tflops=503.8,
            bandwidth=1597,
            memory=96,
            link=64,
            source=f"NVIDIA RTX PRO 6000 Blackwell Server Edition data sheet (4 PFLOPS FP4, 1597 GB/s, 96 GB, "
            f"PCIe 5.0 x16; from memory); {_WHITE_PAPER}",
        ),
        Device(
            "l40s",
            tflops=362.05,
            bandwidth=864,
            memory=48,
            link=32,
            source="NVIDIA L40S data sheet (BFLOAT16 tensor 362.05 | 733 with sparsity, 864 GB/s, 48 GB, PCIe 4.0 x16)",
        ),
        Device(
            "a100-80gb",
            tflops=312,
            bandwidth=2039,
            memory=80,
            link=300,
            source="NVIDIA A100 data sheet, A100 80GB SXM (BFLOAT16 tensor 312 | 624 with sparsity, 2039 GB/s, NVLink "
            "600 GB/s both directions)",
        ),
        Device(
            "h100-sxm",
            tflops=989.5,
            bandwidth=3350,
            memory=80,
            link=450,
            source="NVIDIA H100 data sheet, H100 SXM (BFLOAT16 tensor 1979 with sparsity, 3.35 TB/s, 80 GB, NVLink "
            "900 GB/s both directions)",
        ),
        Device(
            "h200-sxm",
            tflops=989.5,
            bandwidth=4800,
            memory=141,
            link=450,
            source="NVIDIA H200 data sheet, H200 SXM (BFLOAT16 tensor 1979 with sparsity, 4.8 TB/s, 141 GB, NVLink "
            "900 GB/s both directions)",
        ),
    )
}


def device_named(name: str) -> Device:
    """Raises:
    InputError: there is no such device.
    """
    if name not in DEVICES:
        raise InputError(f"Device {name!r} is unknown; choose one of {', '.join(DEVICES)}, all, or a profile's file.")
    return DEVICES[name]
