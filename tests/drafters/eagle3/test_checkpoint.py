"""Checkpoints of every layout in use, and what is refused: one line that names the thing."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from smartree.drafters.eagle3 import checkpoint as checkpoint_module
from smartree.drafters.eagle3.checkpoint import is_eagle3, read_checkpoint, write_checkpoint
from smartree.drafters.eagle3.spec import Eagle3Spec, read_spec, write_spec
from smartree.drafters.factory import head_folder
from smartree.errors import InputError
from smartree.policies.calibration import Calibration
from tests.drafters.eagle3.folders import (
    Weights,
    native,
    native_config,
    sglang,
    speculators_config,
    with_leftovers,
    with_prefix,
    with_vocabulary,
    write_folder,
    write_native,
)
from tests.drafters.eagle3.heads import LLAMA3, random_table, random_weights, same_tensors, tiny_spec
from tests.tiny import VOCAB

OWN = frozenset[str]()
SPECS: dict[str, Eagle3Spec] = {
    "draft vocabulary": tiny_spec(),
    "every token": tiny_spec(draft_vocab_size=VOCAB),
    "own embeddings": tiny_spec(borrowed=OWN),
    "another width": tiny_spec(hidden_size=24, borrowed=OWN),
    "norms": tiny_spec(fc_norm=True, norm_before_residual=True),
    "biases": tiny_spec(fc_bias=True, attention_bias=True, mlp_bias=True),
    "two layers of qwen3": tiny_spec(layers=2, qk_norm=True),
    "scaled rotations": tiny_spec(rope=LLAMA3),
    "standard layers": tiny_spec(feature_layers=()),
}
CONFIGS: dict[str, Callable[[Eagle3Spec], dict[str, Any]]] = {
    "native": native_config,
    "speculators": speculators_config,
}
NAMES: dict[str, Callable[[Weights], Weights]] = {
    "midlayer": native,
    "layers.0": dict,
    "model. and layers.0": with_prefix("model."),
    "model. and midlayer": with_prefix("model.", native),
    "draft_model. and midlayer": with_prefix("draft_model.", native),
    "leftovers": with_leftovers,
}


def refusal(folder: Path) -> str:
    """What is said about a head that cannot be used: one line."""
    with pytest.raises(InputError) as error:
        read_checkpoint(folder)
    message = str(error.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("config", CONFIGS)
def test_every_layout_gives_the_same_head(config: str, names: str, pickled: bool, tmp_path: Path) -> None:
    spec = tiny_spec(borrowed=OWN)
    weights = random_weights(spec)
    stored = NAMES[names](with_vocabulary(spec, weights))
    found = read_checkpoint(write_folder(tmp_path, CONFIGS[config](spec), stored, pickled))
    assert found.spec == spec
    assert same_tensors(found.weights, weights)
    assert found.token_ids is not None
    assert torch.equal(found.token_ids, random_table(spec))  # type: ignore[arg-type]
    assert is_eagle3(tmp_path)
    assert head_folder(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("config", CONFIGS)
def test_every_kind_of_head_is_read(config: str, kind: str, tmp_path: Path) -> None:
    spec = dataclasses.replace(SPECS[kind], fc_bias=SPECS[kind].fc_bias and config == "native")  # theirs has none
    weights = random_weights(spec)
    folder = write_folder(tmp_path, CONFIGS[config](spec), native(with_vocabulary(spec, weights)))
    found = read_checkpoint(folder)
    assert found.spec == spec  # embeddings that are not there are the target's
    assert same_tensors(found.weights, weights)
    assert (found.token_ids is None) == (kind == "every token")


@pytest.mark.parametrize("kind", SPECS)
def test_what_is_written_is_read_back(kind: str, tmp_path: Path) -> None:
    spec = SPECS[kind]
    weights, table = random_weights(spec), random_table(spec)
    write_checkpoint(tmp_path / "new" / "head", spec, weights, table, 512, {"tau": 2.5})
    found = read_checkpoint(tmp_path / "new" / "head")
    assert found.spec == spec
    assert same_tensors(found.weights, weights)
    assert (found.token_ids is None) == (table is None)
    if table is not None:
        assert torch.equal(found.token_ids, table)  # type: ignore[arg-type]
    assert json.loads((tmp_path / "new" / "head" / "config.json").read_text())["training"] == {"tau": 2.5}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["head"]  # nothing beside it


@pytest.mark.parametrize("switch", ["norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "qk_norm"])
@pytest.mark.parametrize("config", [write_spec, speculators_config])
def test_every_switch_survives_the_config(config: Any, switch: str) -> None:
    spec = tiny_spec(borrowed=OWN, **{switch: True})
    written = config(spec, 512) if config is write_spec else config(spec)
    assert read_spec(json.loads(json.dumps(written))) == spec


def test_borrowed_output_rows_are_not_written(tmp_path: Path) -> None:
    spec = tiny_spec(borrowed=frozenset({"embed_tokens", "lm_head"}))
    full = random_weights(dataclasses.replace(spec, borrowed=OWN))
    write_checkpoint(tmp_path / "head", spec, full, random_table(spec), 512)
    found = read_checkpoint(tmp_path / "head")
    assert found.spec == spec
    assert full.keys() - found.weights.keys() == {"embed_tokens.weight", "lm_head.weight"}


def test_the_layers_that_enter_and_those_that_are_left() -> None:
    """SpecForge's [1, 15, 28] are the outputs of these layers: the same as 2, 16, 29 of speculators."""
    native_form = native_config(tiny_spec()) | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}}
    other_form = speculators_config(tiny_spec()) | {"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}
    assert read_spec(native_form).feature_layers == read_spec(other_form).feature_layers == (2, 16, 29)
    assert tiny_spec(feature_layers=()).layers_of(32) == (2, 16, 29)


def test_older_sglang_names_of_the_norms(tmp_path: Path) -> None:
    spec = SPECS["norms"]
    weights = random_weights(spec)
    found = read_checkpoint(write_folder(tmp_path, native_config(spec), sglang(with_vocabulary(spec, weights))))
    assert same_tensors(found.weights, weights)


def test_a_head_in_several_files(tmp_path: Path) -> None:
    spec = tiny_spec()
    weights = list(native(with_vocabulary(spec, random_weights(spec))).items())
    write_folder(tmp_path, native_config(spec), dict(weights[:5]))
    shutil.move(tmp_path / "model.safetensors", tmp_path / "model-00001-of-00002.safetensors")
    write_folder(tmp_path, native_config(spec), dict(weights[5:]))
    assert same_tensors(read_checkpoint(tmp_path).weights, random_weights(spec))


def test_a_config_without_rotations_takes_base_10000() -> None:
    """Never the target's: published heads rely on it."""
    config = native_config(tiny_spec())
    del config["rope_theta"]
    assert read_spec(config).rope == {"rope_type": "default", "rope_theta": 10_000.0}
    assert read_spec(config | {"rope_scaling": None}).rope["rope_theta"] == 10_000.0
    older = config | {"rope_theta": 7.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert read_spec(older).rope == {"rope_type": "linear", "rope_theta": 7.0, "factor": 2.0}


def test_sizes_that_a_config_may_leave_out() -> None:
    config = native_config(tiny_spec())
    for name in ("num_key_value_heads", "head_dim", "num_hidden_layers", "rms_norm_eps", "hidden_act", "bias"):
        del config[name]
    for name in ("draft_vocab_size", "eagle_config", "fc_norm", "attention_bias", "mlp_bias", "model_type"):
        del config[name]
    assert read_spec(config) == tiny_spec(kv_heads=4, draft_vocab_size=VOCAB, feature_layers=(), borrowed=OWN)


def test_the_fingerprint_is_that_of_spec_and_weights(tmp_path: Path) -> None:
    spec = tiny_spec()

    def double(weights: Weights) -> Weights:
        return weights | {"fc.weight": 2 * weights["fc.weight"]}

    prints = [
        read_checkpoint(folder).fingerprint
        for folder in (
            write_native(tmp_path / "a", spec),
            write_native(tmp_path / "b", spec),
            write_native(tmp_path / "c", spec, double),
            write_native(tmp_path / "d", spec, rope_theta=77.0),
        )
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


# --- What is refused ---


@pytest.mark.parametrize(
    "name", ["fc.weight", "midlayer.self_attn.q_proj.weight", "midlayer.hidden_norm.weight", "lm_head.weight"]
)
def test_a_missing_weight_is_named(name: str, tmp_path: Path) -> None:
    write_native(tmp_path, tiny_spec(), lambda weights: {key: weights[key] for key in weights if key != name})
    assert f"lacks {name.replace('midlayer', 'layers.0')}" in refusal(tmp_path)


def test_a_weight_that_is_left_over_is_named(tmp_path: Path) -> None:
    write_native(tmp_path, tiny_spec(), lambda weights: weights | {"midlayer.self_attn.q_proj.bias": torch.ones(32)})
    assert "no use for layers.0.self_attn.q_proj.bias" in refusal(tmp_path)


def test_missing_and_left_over_weights_are_named_together(tmp_path: Path) -> None:
    write_native(tmp_path, tiny_spec(), lambda weights: weights | {"fc2.weight": weights.pop("fc.weight")})
    message = refusal(tmp_path)
    assert "lacks fc.weight" in message
    assert "no use for fc2.weight" in message


def test_embeddings_are_needed_where_the_target_is_wider(tmp_path: Path) -> None:
    spec = tiny_spec(hidden_size=24, borrowed=OWN)
    write_native(tmp_path, spec, lambda weights: {key: weights[key] for key in weights if "embed" not in key})
    assert "lacks embed_tokens.weight" in refusal(tmp_path)


def test_a_weight_that_comes_twice_is_named(tmp_path: Path) -> None:
    write_native(tmp_path, tiny_spec(), lambda weights: weights | {"model.fc.weight": weights["fc.weight"].clone()})
    assert "'fc.weight' twice" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "shape"), [("fc.weight", (32, 64)), ("lm_head.weight", (39, 32)), ("norm.weight", (32, 1))]
)
def test_a_weight_of_another_size_is_named(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    write_native(tmp_path, tiny_spec(), lambda weights: weights | {name: torch.ones(shape)})
    message = refusal(tmp_path)
    assert name in message
    assert str(list(shape)) in message


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_named(value: float, tmp_path: Path) -> None:
    """speculators leaves weights that were not loaded as NaN."""

    def damage(weights: Weights) -> Weights:
        weights["midlayer.mlp.up_proj.weight"][3, 4] = value
        return weights

    write_native(tmp_path, tiny_spec(), damage)
    assert "layers.0.mlp.up_proj.weight" in refusal(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
@pytest.mark.parametrize("pickled", [False, True])
def test_a_file_cut_short_is_named(pickled: bool, share: float, tmp_path: Path) -> None:
    spec = tiny_spec()
    write_folder(tmp_path, native_config(spec), native(with_vocabulary(spec, random_weights(spec))), pickled)
    file = tmp_path / ("pytorch_model.bin" if pickled else "model.safetensors")
    os.truncate(file, int(share * file.stat().st_size))
    message = refusal(tmp_path)
    assert str(tmp_path) in message
    assert "cut short or damaged" in message


@pytest.mark.parametrize("content", [b"version https://git-lfs.github.com/spec/v1\n", b"\x80\x02garbage", b"\x00" * 99])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_a_file_of_something_else_is_refused(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(native_config(tiny_spec())))
    (tmp_path / name).write_bytes(content)
    assert "cut short or damaged" in refusal(tmp_path)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "harmed",)

    write_folder(tmp_path, native_config(tiny_spec()), {"fc.weight": Harmful()}, pickled=True)  # type: ignore[dict-item]
    assert "cannot be read" in refusal(tmp_path)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("thing", [[1, 2], {"model": {"fc.weight": torch.ones(2)}}])
def test_a_pickle_of_something_else_is_refused(thing: Any, tmp_path: Path) -> None:
    write_folder(tmp_path, native_config(tiny_spec()), thing, pickled=True)
    assert str(tmp_path) in refusal(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(native_config(tiny_spec())))
    assert "neither model.safetensors nor pytorch_model.bin" in refusal(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "3"])
def test_a_config_that_is_no_object_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    assert "config.json" in refusal(tmp_path)
    assert not is_eagle3(tmp_path)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    assert "no readable config.json" in refusal(tmp_path)
    assert not is_eagle3(tmp_path)
    assert head_folder(str(tmp_path)) is None


@pytest.mark.parametrize("name", ["hidden_size", "num_attention_heads", "vocab_size", "intermediate_size"])
@pytest.mark.parametrize("config", CONFIGS)
def test_a_config_that_lacks_a_size_is_refused(config: str, name: str, tmp_path: Path) -> None:
    made = CONFIGS[config](tiny_spec())
    del made.get("transformer_layer_config", made)[name]
    write_folder(tmp_path, made, {})
    assert name in refusal(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": "wide"}, "wide"),
        ({"hidden_size": None}, "no size"),
        ({"hidden_size": 0, "head_dim": 8}, "below 1"),
        ({"num_attention_heads": 0, "head_dim": None}, "below 1"),
        ({"num_attention_heads": 3}, "multiple"),
        ({"draft_vocab_size": 98}, "larger"),
        ({"norm_before_fc": True, "fc_norm": True}, "only one"),
        ({"model_type": "mamba"}, "'mamba'"),
        ({"hidden_act": "warble"}, "'warble'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"partial_rotary_factor": 0.5}, "part"),
        ({"eagle_config": [1, 2, 3]}, "no size"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["low"]}}, "low"),
        ({"borrowed": ["norm"]}, "'norm'"),
        ({"borrowed": ["lm_head"], "target_hidden_size": 64}, "lm_head"),
        ({"speculators_config": {"proposal_methods": [{"verifier_accept_k": 2}]}}, "verifier_accept_k"),
    ],
)
def test_a_config_that_cannot_be_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_folder(tmp_path, native_config(tiny_spec()) | change, {})
    assert words in refusal(tmp_path)


@pytest.mark.parametrize("kind", ["dflash", "mtp", "peagle"])
def test_other_kinds_of_speculators_are_refused(kind: str, tmp_path: Path) -> None:
    write_folder(tmp_path, speculators_config(tiny_spec()) | {"speculators_model_type": kind}, {})
    assert is_eagle3(tmp_path)  # so that it is not taken for a model
    assert kind in refusal(tmp_path)


@pytest.mark.parametrize("k", [2, 10])
def test_lossy_verification_is_refused(k: int, tmp_path: Path) -> None:
    config = speculators_config(tiny_spec())
    config["speculators_config"]["proposal_methods"][0]["verifier_accept_k"] = k
    assert "verifier_accept_k" in refusal(write_folder(tmp_path, config, {}))


def test_speculators_without_a_layer_are_refused(tmp_path: Path) -> None:
    config = speculators_config(tiny_spec()) | {"transformer_layer_config": None}
    assert "transformer_layer_config" in refusal(write_folder(tmp_path, config, {}))


def offsets(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Weights], Weights]:
    """Changes the absolute ids before they are stored as offsets."""

    def changed(weights: Weights) -> Weights:
        places = torch.arange(len(weights["d2t"]))
        ids = change(weights["d2t"] + places)
        return weights | {"d2t": ids - torch.arange(len(ids))}

    return changed


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda ids: torch.cat([ids[:1], ids[:-1]]), "twice"),
        (lambda ids: torch.cat([ids[:-1], ids.new_tensor([VOCAB])]), "beyond"),
        (lambda ids: torch.cat([ids[:-1], ids.new_tensor([-1])]), "beyond"),
        (lambda ids: ids[:-1], "maps 39"),
    ],
)
def test_a_table_that_maps_wrongly_is_refused(change: Any, words: str, tmp_path: Path) -> None:
    assert words in refusal(write_native(tmp_path, tiny_spec(), offsets(change)))


def test_a_draft_vocabulary_without_a_table_is_refused(tmp_path: Path) -> None:
    folder = write_native(tmp_path, tiny_spec(), lambda weights: {key: weights[key] for key in weights if key != "d2t"})
    assert "d2t" in refusal(folder)


@pytest.mark.parametrize("kind", ["a language model", "a list", "nothing"])
def test_what_is_no_head_is_not_taken_for_one(kind: str, tmp_path: Path) -> None:
    configs = {"a language model": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "a list": [1]}
    if kind in configs:
        (tmp_path / "config.json").write_text(json.dumps(configs[kind]))
    assert not is_eagle3(tmp_path)


# --- Writing never loses the old head ---


def written(folder: Path, seed: int) -> Weights:
    """Writes a head of some seed."""
    spec = tiny_spec()
    weights = random_weights(spec, seed)
    write_checkpoint(folder, spec, weights, random_table(spec), 64)
    return weights


def test_a_new_head_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    written(tmp_path / "head", 0)
    (tmp_path / "head" / "stale").touch()
    weights = written(tmp_path / "head", 1)
    assert same_tensors(read_checkpoint(tmp_path / "head").weights, weights)
    assert sorted(path.name for path in (tmp_path / "head").iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["head"]


NO_SPACE = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("save_file", NO_SPACE),
        ("save_file", SafetensorError("I/O error: No space left on device (os error 28)")),
        ("tempfile.mkdtemp", NO_SPACE),
        ("os.chmod", NO_SPACE),
    ],
)
def test_a_full_disk_keeps_the_old_head(
    place: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = written(tmp_path / "head", 0)

    def fail(*_args: Any, **_settings: Any) -> None:
        raise error

    monkeypatch.setattr(f"{checkpoint_module.__name__}.{place}", fail)
    with pytest.raises(InputError, match=r"cannot be written.*No space left") as message:
        written(tmp_path / "head", 1)
    assert "\n" not in str(message.value)
    monkeypatch.undo()
    assert same_tensors(read_checkpoint(tmp_path / "head").weights, old)
    assert [path.name for path in tmp_path.iterdir()] == ["head"]


@pytest.mark.parametrize("failing", [1, 2])
def test_a_failed_exchange_keeps_the_old_head(failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = written(tmp_path / "head", 0)
    replace, calls = os.replace, []

    def fail_once(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == failing:
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_once)
    with pytest.raises(InputError, match="Input/output error"):
        written(tmp_path / "head", 1)
    monkeypatch.undo()
    assert same_tensors(read_checkpoint(tmp_path / "head").weights, old)
    assert [path.name for path in tmp_path.iterdir()] == ["head"]


def test_an_interruption_keeps_the_old_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = written(tmp_path / "head", 0)

    def interrupt(*_args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint_module, "_swap", interrupt)
    with pytest.raises(KeyboardInterrupt):
        written(tmp_path / "head", 1)
    assert same_tensors(read_checkpoint(tmp_path / "head").weights, old)
    assert [path.name for path in tmp_path.iterdir()] == ["head"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file.*cannot be written"):
        written(tmp_path / "file" / "head", 0)


def test_how_often_drafts_were_accepted_comes_with_a_head(tmp_path: Path) -> None:
    spec, known = SPECS["every token"], Calibration().to_json()
    weights, table = random_weights(spec), random_table(spec)
    write_checkpoint(tmp_path / "head", spec, weights, table, 512, calibration=known)
    with_it = read_checkpoint(tmp_path / "head")
    assert with_it.calibration == known
    write_checkpoint(tmp_path / "head", spec, weights, table, 512)
    assert read_checkpoint(tmp_path / "head").calibration is None
    assert read_checkpoint(tmp_path / "head").fingerprint == with_it.fingerprint  # the same profile fits


@pytest.mark.parametrize("text", ["{", "[]", '{"shape": [1]}', "\xff"])
def test_a_damaged_calibration_is_refused(text: str, tmp_path: Path) -> None:
    spec = SPECS["every token"]
    write_checkpoint(tmp_path / "head", spec, random_weights(spec), random_table(spec), 512)
    (tmp_path / "head" / "calibration.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"calibration\.json is damaged; delete it"):
        read_checkpoint(tmp_path / "head")
