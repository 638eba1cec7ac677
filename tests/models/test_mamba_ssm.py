"""Checkpoints in mamba-ssm's own layout: read from disk, and held against `transformers` with the same weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from models.hf import check_equal_logits, random_transformers_model, tokens
from safetensors.torch import save_file

from paradigms.models import checkpoint_files, pretrained
from paradigms.models.families import mamba_ssm
from paradigms.models.layers import rms_norm

OURS = {"d_model": 64, "n_layer": 2, "vocab_size": 57, "rms_norm": True, "residual_in_fp32": True}
THEIRS = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "tie_word_embeddings": True}
MAMBA1 = THEIRS | {"model_type": "mamba", "state_size": 16, "conv_kernel": 4}
MAMBA2 = THEIRS | {"model_type": "mamba2", "state_size": 24, "num_heads": 8, "head_dim": 16, "n_groups": 1}
CASES = {
    "Mamba, oldest layout": (OURS | {"ssm_cfg": {}}, MAMBA1),
    "Mamba, named": (
        OURS | {"ssm_cfg": {"layer": "Mamba1", "d_state": 12, "dt_rank": 6, "bias": True, "dt_min": 0.01}},
        MAMBA1 | {"state_size": 12, "time_step_rank": 6, "use_bias": True},
    ),
    "Mamba-2": (OURS | {"ssm_cfg": {"layer": "Mamba2", "d_state": 24, "headdim": 16, "chunk_size": 64}}, MAMBA2),
    "Mamba-2, groups, untied": (
        OURS
        | {
            "ssm_cfg": {"layer": "Mamba2", "d_state": 24, "headdim": 16, "ngroups": 4, "conv_bias": False},
            "tie_embeddings": False,
            "pad_vocab_size_multiple": 16,
            "attn_layer_idx": [],
        },
        MAMBA2 | {"n_groups": 4, "use_conv_bias": False, "tie_word_embeddings": False},
    ),
}


def written(folder: Path, config: dict[str, Any], theirs: Any, *, safetensors: bool = False) -> Path:
    """A checkpoint as mamba-ssm saves it: its names differ from those of `transformers` in the embedding only."""
    tensors = {
        name.replace("backbone.embeddings.", "backbone.embedding."): value.clone()
        for name, value in theirs.state_dict().items()
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if safetensors:
        save_file(tensors, folder / "model.safetensors")
    else:
        torch.save(tensors, folder / mamba_ssm.WEIGHTS)
    return folder


@pytest.mark.parametrize("safetensors", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_is_the_same_function_as_in_transformers(case, safetensors, tmp_path):
    config, theirs_config = CASES[case]
    theirs = random_transformers_model(theirs_config)
    folder = written(tmp_path / "mine", config, theirs, safetensors=safetensors)
    native_config = pretrained.native_config(str(folder), max_positions=64)
    native = pretrained.load_native(str(folder), native_config).eval().requires_grad_(False)
    padded = not theirs_config.get("use_bias")  # a bias of padding reaches their first tokens
    check_equal_logits(theirs, native, padded=padded)
    assert len(checkpoint_files.weights_sha256(str(folder))) == 64


def test_a_feed_forward_behind_each_layer(tmp_path):
    """Its gate is the second half of fc1, and its width is rounded up to 128."""
    theirs = random_transformers_model(MAMBA2)
    folder = written(tmp_path / "mine", CASES["Mamba-2"][0] | {"d_intermediate": 100}, theirs)
    tensors = torch.load(folder / mamba_ssm.WEIGHTS)
    for i in range(2):
        tensors[f"backbone.layers.{i}.norm2.weight"] = torch.rand(64) + 0.5
        tensors[f"backbone.layers.{i}.mlp.fc1.weight"] = torch.randn(256, 64) * 0.2
        tensors[f"backbone.layers.{i}.mlp.fc2.weight"] = torch.randn(64, 128) * 0.2
    torch.save(tensors, folder / mamba_ssm.WEIGHTS)
    config = pretrained.native_config(str(folder), max_positions=64)
    assert config.layers == "MFMF" and config.part("F").width == 128
    native = pretrained.load_native(str(folder), config).eval().requires_grad_(False)
    tokens_BT = tokens(64, 2, 20)
    with torch.no_grad():
        x_BTE = theirs.backbone.embeddings(tokens_BT)
        for i, layer in enumerate(theirs.backbone.layers):
            x_BTE = layer(x_BTE)
            normed = rms_norm(x_BTE, tensors[f"backbone.layers.{i}.norm2.weight"])
            up, gate = F.linear(normed, tensors[f"backbone.layers.{i}.mlp.fc1.weight"]).chunk(2, -1)
            x_BTE = x_BTE + F.linear(up * F.silu(gate), tensors[f"backbone.layers.{i}.mlp.fc2.weight"])
        want = theirs.lm_head(theirs.backbone.norm_f(x_BTE))
        error = (native(tokens_BT) - want).abs().max()
    assert error <= 1e-4 * want.abs().max()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attn_layer_idx": [1]}, r"attn_layer_idx=\[1\]"),
        ({"rms_norm": False}, "rms_norm=False"),
        ({"ssm_cfg": {"layer": "Mamba3"}}, "Mamba1, Mamba2"),
        ({"ssm_cfg": {"layer": "Mamba2", "d_ssm": 64}}, "d_ssm=64"),
        ({"ssm_cfg": {"layer": "Mamba2", "D_has_hdim": True}}, "D_has_hdim=True"),
        ({"ssm_cfg": {"headdim": 16}}, "ssm_cfg.headdim=16 is not known for Mamba1"),
    ],
)
def test_what_is_not_computed_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        mamba_ssm.MambaSSM().from_transformers(mamba_ssm.filled_in(OURS | changes))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors: tensors | {"backbone.layers.0.mixer.more": torch.ones(1)}, r"layers\.0\.mixer\.more"),
        (lambda tensors: {name: tensors[name] for name in tensors if "A_log" not in name}, r"layers\.0\.mixer\.A_log"),
    ],
)
def test_missing_and_unknown_tensors_are_named(change, words, tmp_path):
    config, theirs_config = CASES["Mamba-2"]
    folder = written(tmp_path / "mine", config, random_transformers_model(theirs_config))
    torch.save(change(torch.load(folder / mamba_ssm.WEIGHTS)), folder / mamba_ssm.WEIGHTS)
    with pytest.raises(ValueError, match=words):
        pretrained.load_native(str(folder), pretrained.native_config(str(folder)))


def test_what_the_hub_has_is_fetched_with_its_weights(tmp_path, monkeypatch):
    config, theirs_config = CASES["Mamba-2"]
    whole = written(tmp_path / "hub", config, random_transformers_model(theirs_config))
    fetched = tmp_path / "fetched"

    def snapshot_download(name: str, *, allow_patterns: list[str], local_files_only: bool = False) -> str:
        if local_files_only:
            raise ValueError(f"{name} is not here")
        fetched.mkdir(exist_ok=True)
        for file in whole.iterdir():
            if any(file.match(pattern) for pattern in allow_patterns):
                shutil.copy(file, fetched)
        return str(fetched)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    model = pretrained.load_native("mine/tiny", pretrained.native_config("mine/tiny"))
    assert model.config.layers == "MM"
