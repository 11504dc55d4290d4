"""Loading: what fits is loaded with its facts right, what does not is refused in one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from transformers import BertConfig, BertModel
from transformers.utils import logging as transformers_logging

from smartree.errors import InputError
from smartree.models.load import load_model, pick_device, pick_dtype, prepare_model, quiet_transformers
from smartree.models.surgery import FusedRMSNorm
from tests.tiny import ARCHITECTURES, character_tokenizer, tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny LLaMA with its tokenizer, as transformers saves it."""
    where = tmp_path_factory.mktemp("models") / "tiny"
    with quiet_transformers():
        tiny_model("llama", dtype=torch.float32, eos=1).save_pretrained(where)
    character_tokenizer().save_pretrained(where)
    return where


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """The same, to be damaged."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def refusal(name: str | Path, dtype: str = "float32", device: str = "cpu") -> str:
    """The sentence with which a model is refused."""
    with pytest.raises(InputError) as error:
        load_model(str(name), dtype, device)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_folder_is_loaded_with_its_facts(folder: Path) -> None:
    loaded = load_model(str(folder), "float32")
    assert loaded.name == str(folder)
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.decode(loaded.tokenizer("So, what?")["input_ids"]) == "So, what?"
    assert (loaded.window, loaded.vocab_size, loaded.eos_ids) == (256, 97, frozenset({1}))
    assert (loaded.dtype, loaded.device.type) == (torch.float32, "cpu")
    assert not loaded.model.training
    assert any(isinstance(module, FusedRMSNorm) for module in loaded.model.modules())
    weights, saved = loaded.model.state_dict(), tiny_model("llama", dtype=torch.float32).state_dict()
    for name in ("model.embed_tokens.weight", "model.layers.1.self_attn.o_proj.weight", "lm_head.weight"):
        assert torch.equal(weights[name], saved[name])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_cache_has_the_models_shape(architecture: str) -> None:
    shape = prepare_model(tiny_model(architecture), None, "tiny").cache_shape
    assert (shape.layers, shape.kv_heads, shape.head_dim) == (2, 2, 8)


def test_the_fingerprint_tells_models_apart_but_not_their_element_types(folder: Path) -> None:
    one = load_model(str(folder), "float32").fingerprint
    assert load_model(str(folder), "bfloat16").fingerprint == one
    assert prepare_model(tiny_model("llama", window=128), None, "other").fingerprint != one
    assert prepare_model(tiny_model("qwen2"), None, "other").fingerprint != one


def test_end_of_sequence_tokens_of_all_sources_count(copied: Path) -> None:
    path = copied / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [5, 9]}))
    change_config(copied, eos_token_id=7)
    assert load_model(str(copied), "float32").eos_ids == {1, 5, 7, 9}  # 1 is the tokenizer's


def test_a_folder_without_tokenizer_takes_token_ids(copied: Path) -> None:
    for file in copied.glob("*tokenizer*"):
        file.unlink()
    assert load_model(str(copied), "float32").tokenizer is None


@pytest.mark.parametrize("name", ["auto", "float64", "float32", "bfloat16", "float16"])
def test_element_types(name: str) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")

    def picked(stored: torch.dtype | None, device: torch.device) -> torch.dtype:
        return pick_dtype(name, type("Config", (), {"dtype": stored})(), device)

    if name != "auto":
        assert picked(torch.bfloat16, cpu) == picked(None, cuda) == getattr(torch, name)
        return
    assert picked(torch.float16, cpu) == torch.bfloat16  # a CPU multiplies bfloat16, not float16
    assert picked(None, cpu) == torch.bfloat16
    assert picked(torch.float32, cpu) == torch.float32
    assert picked(torch.float16, cuda) == torch.float16
    assert picked(None, cuda) == torch.bfloat16


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("auto") == torch.device("cuda")
    assert pick_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(InputError, match="not available"):
        pick_device("cuda:2")


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_cuda_asked_for_and_absent(device: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "--device cpu" in refusal(folder, device=device)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "", "mps", "meta", "xpu"])
def test_devices_that_smartree_does_not_know(device: str) -> None:
    with pytest.raises(InputError, match="use cpu, cuda or cuda:N"):
        pick_device(device)


def test_an_unknown_hub_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # no network, no waiting
    message = refusal("nobody/no-such-model")
    assert "nobody/no-such-model" in message
    assert "network" in message


@pytest.mark.parametrize("name", ["./no/such/folder", "/no/such/folder", "one/two/three"])
def test_a_folder_that_does_not_exist(name: str) -> None:
    assert "does not exist" in refusal(name)


def test_a_folder_without_configuration(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no model here")
    assert "no config.json" in refusal(tmp_path)


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def other_vocabulary_size(folder: Path) -> None:
    change_config(folder, vocab_size=50)


def more_layers(folder: Path) -> None:
    change_config(folder, num_hidden_layers=3)


def broken_configuration(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def unknown_type(folder: Path) -> None:
    change_config(folder, model_type="nonsense")


@pytest.mark.parametrize(
    "damage", [without_weights, truncated, other_vocabulary_size, more_layers, broken_configuration, unknown_type]
)
def test_a_damaged_folder_is_refused(damage: Callable[[Path], None], copied: Path) -> None:
    # `more_layers` is the treacherous one: weights that are missing must not be filled with random numbers.
    damage(copied)
    assert str(copied) in refusal(copied)


def test_a_file_is_no_model(folder: Path) -> None:
    assert str(folder) in refusal(folder / "config.json")


def test_a_model_that_is_no_causal_one(tmp_path: Path) -> None:
    config = BertConfig(vocab_size=97, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48)
    with quiet_transformers():
        BertModel(config).save_pretrained(tmp_path / "bert")
    refusal(tmp_path / "bert")


def test_transformers_gets_its_voice_back() -> None:
    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    with quiet_transformers():
        assert not transformers_logging.is_progress_bar_enabled()
        assert transformers_logging.get_verbosity() == transformers_logging.ERROR
    assert (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()) == before
