"""Folders of `transformers` in the native stack: the same logits, nothing read twice, errors of one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import theirs
import tiny
import torch
from safetensors.torch import load_file, save_file

from paradigms import bench, build, cli
from paradigms.models import checkpoint_files, pretrained
from paradigms.models.checkpoint_files import read_config, weights_sha256
from paradigms.models.families import FAMILIES, family_of
from paradigms.models.pretrained import load_native, native_config
from paradigms.models.transformers_model import TransformersConfig

NATIVE = [name for name in theirs.ARCHITECTURES if any(name in family.model_types for family in FAMILIES)]


@pytest.fixture(autouse=True)
def cache(folders):
    """A cache of the session's own."""
    _forget()


def _forget():
    for name in ("locate", "_read_config", "_sha256_of_state", "_fetched"):
        getattr(checkpoint_files, name).cache_clear()


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    return theirs.write_folder(tmp_path_factory.mktemp("llama"))


def tokens(*shape):
    return torch.randint(3, theirs.SIZES["vocab_size"], shape, generator=torch.Generator().manual_seed(1))


def assert_same_logits(path, *, atol=1e-4):
    config = native_config(str(path))
    native = load_native(str(path), config).eval()
    with torch.inference_mode():
        want = pretrained.transformers_model(str(path), dtype=torch.float32)(tokens(2, 20), use_cache=False).logits
        torch.testing.assert_close(native(tokens(2, 20)), want, rtol=0, atol=atol * max(1, want.abs().max().item()))
    return native


@pytest.mark.parametrize("model_type", NATIVE)
def test_logits_are_those_of_transformers(tmp_path, model_type):
    assert_same_logits(theirs.write_folder(tmp_path, model_type))


def test_a_sharded_checkpoint_in_bfloat16(tmp_path, llama):
    """Several files behind an index; the values are those of bfloat16, in float32."""
    model = pretrained.transformers_model(str(llama), dtype=torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    native = assert_same_logits(tmp_path)
    assert native.dtype == torch.float32
    (tmp_path / next(tmp_path.glob("*.safetensors")).name).unlink()
    with pytest.raises(ValueError, match=r"lacks model-0"):
        load_native(str(tmp_path), native_config(str(tmp_path)))


def test_tensors_that_do_not_fit_are_named(tmp_path, llama):
    theirs.write_folder(tmp_path)
    tensors = load_file(llama / "model.safetensors")

    def load(**changes):
        save_file({**tensors, **changes}, tmp_path / "model.safetensors", {"format": "pt"})
        return load_native(str(tmp_path), native_config(str(tmp_path)))

    load(**{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})  # old files have them
    with pytest.raises(ValueError, match=r"does not compute with: model\.extra"):
        load(**{"model.extra": torch.ones(4)})
    with pytest.raises(ValueError, match="does not fit"):
        load(**{"model.norm.weight": torch.ones(31)})


def test_an_opened_model_lets_its_tensors_go():
    released = pretrained._Released({"a": torch.ones(2), "b": torch.ones(2)}, {"a": 1, "b": 2})
    released["a"], released["b"]
    assert released.keys() - {"b"} == {"a"} and released._tensors.keys() == {"b"}
    released["b"]
    assert not released._tensors


def test_the_config_says_what_the_folder_says(llama):
    config = native_config(str(llama))
    assert (config.vocab_size, config.max_positions, config.d_model, config.layers) == (300, 576, 32, "AFAF")
    assert native_config(str(llama), max_positions=64).max_positions == 64
    assert config.num_parameters() == sum(t.numel() for t in load_file(llama / "model.safetensors").values())


def test_the_hash_is_that_of_the_files_and_read_once(tmp_path, monkeypatch):
    theirs.write_folder(tmp_path)
    reads = []
    digest = checkpoint_files.hashlib.file_digest

    def watched(file, kind):
        reads.append(file.name)
        return digest(file, kind)

    monkeypatch.setattr(checkpoint_files.hashlib, "file_digest", watched)
    first = weights_sha256(str(tmp_path))
    num_reads = len(reads)
    for _ in range(100):
        assert weights_sha256(str(tmp_path)) == first
    _forget()  # as another process would
    assert weights_sha256(str(tmp_path)) == first and len(reads) == num_reads == 2
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, weights, {"format": "pt"})
    os.utime(weights, ns=(1, 1))
    assert weights_sha256(str(tmp_path)) != first


def test_planning_imports_transformers_at_most_once(llama, monkeypatch):
    first = read_config(str(llama))
    _forget()
    monkeypatch.setattr(checkpoint_files, "_filled_in", lambda place: pytest.fail("not cached"))
    assert read_config(str(llama)) == first


def test_what_is_not_there_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").touch()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    cases = {
        str(checkpoint_files.SMOLLM2): "`make smollm2`",
        "no/such/folder": "does not exist; give a folder",
        "file.txt": "neither a folder nor a .gguf file",
        "empty": "has no config.json",
        "somebody/some-model-that-nobody-has": "no folder here, and the Hugging Face hub did not give it",
    }
    for path, words in cases.items():
        with pytest.raises(ValueError, match=words) as caught:
            native_config(path)
        assert len(str(caught.value).splitlines()) == 1 and path in str(caught.value)


def test_an_architecture_that_is_not_native_names_the_way(tmp_path):
    model_type = next(name for name in ("gpt2", "qwen3_next") if family_of({"model_type": name}) is None)
    theirs.write_folder(tmp_path, model_type, weights=False)
    with pytest.raises(ValueError, match=f"is a '{model_type}'.*model=transformers model.path="):
        native_config(str(tmp_path))


@pytest.fixture
def cell_of(llama, monkeypatch):
    def make(*overrides, path=llama):
        config = cli.compose(["paradigm=ar", f"model.path={path}", "measure=smoke", *overrides])
        config["corpus"] = {"_target_": "tiny.TinyText"}
        config["workload"] |= {"prompt_len": 8, "output_len": 8}
        return build.build(config)

    return make


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=pretrained"],
        ["model=transformers"],
        ["model=pretrained", "decoder=transformers_generate"],
        ["model=transformers", "decoder=transformers_generate"],
        ["model=transformers", "train=random", "measure=latency", "workload=random_prompts"],
        ["model=pretrained", "train=random", "measure=latency", "workload=random_prompts"],
    ],
    ids=" ".join,
)
def test_a_cell_runs(cell_of, overrides):
    cell = cell_of(*overrides, "decoder.temperature=0")
    cell.check()
    assert isinstance(cell.model, TransformersConfig) == ("model=transformers" in overrides)
    run, tables = bench.run_unit(cell, 0)
    json.dumps([run, tables])
    assert (
        run["state_used_bytes"] == 2 * 2 * 2 * 8 * 4 * 15
    )  # layers, keys and values, KV heads, width, bytes, positions
    assert run["state_formula_bytes"] == (None if "model=transformers" in overrides else run["state_used_bytes"])
    assert ("bits_per_byte" in run) == cell.measure.quality
    if cell.train.source == "pretrained":
        assert cell.checkpoint_id() == weights_sha256(str(cell.train.path))[:16]


def test_the_same_weights_say_and_score_the_same_either_way(cell_of):
    found = []
    ways = (["model=pretrained"], ["model=transformers"], ["model=pretrained", "decoder=transformers_generate"])
    for overrides in ways:
        run, tables = bench.run_unit(cell_of(*overrides, "decoder.temperature=0"), 0)
        found.append(([sample["token_ids"] for sample in tables["samples"]], round(run["bits_per_byte"], 4)))
    assert found[0] == found[1] == found[2]


PEER = ("model=pretrained", "decoder=transformers_generate")


def test_cells_that_cannot_be_are_refused(cell_of, llama):
    for overrides, words in (
        (["model=pretrained", "train=zoo"], "the zoo has no model of this config"),
        (["model=transformers", "train=zoo"], "another library's network"),
        (["model=transformers", "train=quick"], "another library's network"),
        (["model=pretrained", "tokenizer=byte"], "does not fit tokenizer.vocab_size=259"),
        (["model=pretrained", "model.max_positions=600"], "more than the 576"),
        (["model=transformers", "train.path=elsewhere"], "leave train.path out"),
        (["model=transformers", "device.execution=compile"], "device.execution=compile is not possible"),
        ([*PEER, "decoder.use_cache=false", "device.execution=compile"], "device.execution=compile is not possible"),
    ):
        with pytest.raises(ValueError, match=words):
            cell = cell_of(*overrides)
            cell.check()
            cell.checkpoint_id()


def test_tokens_of_the_tiny_text_are_scored(cell_of):
    """Bits per byte by hand: the mean over windows of −log2 p, over the bytes of the held-out text."""
    run, _ = bench.run_unit(cell_of("model=pretrained"), 0)
    assert run["heldout_bytes"] == tiny.corpus().num_bytes["heldout"]
