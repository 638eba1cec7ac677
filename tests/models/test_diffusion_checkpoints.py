"""LLaDA, Dream, MDLM and BD3-LM: the native stack against a small reference of each, on tiny folders of their layout.

The references are written from the architectures, on the tensors as they are named in the files, head by head.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import their_denoisers
import theirs
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from their_denoisers import HEADS, LAYERS, TEXT, E, write_folder
from torch import Tensor

from paradigms.data.pretrained_tokenizer import PretrainedTokenizer
from paradigms.decoding.diffusion.caches.block import BlockCache
from paradigms.decoding.diffusion.caches.none import NoCache
from paradigms.decoding.diffusion.decoder import MaskedDiffusion
from paradigms.decoding.diffusion.samplers.low_confidence import LowConfidence
from paradigms.models import checkpoint_files
from paradigms.models.families import family_of, family_of_native, to_theirs
from paradigms.models.pretrained import load_native, native_config
from paradigms.models.transformers_model import transformers_config
from paradigms.paradigm import Request

D = E // HEADS
NO_TEXT: Any = None  # these tokenizers learn nothing from the corpus
BIASED = {"n_kv_heads": 2, "include_qkv_bias": True, "weight_tying": True, "rope_theta": 10_000.0}
VARIANTS: list[tuple[str, dict]] = [
    ("llada", {}),
    ("llada", BIASED),
    ("Dream", {}),
    ("mdlm", {}),
    ("mdlm", {"time_conditioning": True}),
    ("bd3lm", {}),
    ("bd3lm", {"block_size": 3, "adaln": False}),
    ("bd3lm", {"cross_attn": False}),
]


@pytest.fixture(autouse=True)
def cache(folders):
    """A cache of the session's own."""


def rms(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def layer_norm(x, weight):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def turned(x_TD: Tensor, theta: float) -> Tensor:
    """Pairs (j, j + D/2) of a head, turned by position / theta^(2j/D)."""
    T, half = x_TD.shape[0], D // 2
    out_TD = x_TD.clone()
    for j in range(half):
        angle_T = torch.arange(T, dtype=torch.float64) / theta ** (2 * j / D)
        a_T, b_T = x_TD[:, j], x_TD[:, j + half]
        out_TD[:, j] = a_T * angle_T.cos() - b_T * angle_T.sin()
        out_TD[:, j + half] = b_T * angle_T.cos() + a_T * angle_T.sin()
    return out_TD


def attended(q: Tensor, k: Tensor, v: Tensor, theta: float, sees_TT: Tensor) -> Tensor:
    """All heads of one text, [T, E]; neighbouring query heads share a head of keys."""
    heads = []
    for h in range(HEADS):
        g = h * (k.shape[1] // D) // HEADS
        q_TD, k_TD, v_TD = q[:, h * D : (h + 1) * D], k[:, g * D : (g + 1) * D], v[:, g * D : (g + 1) * D]
        scores_TT = turned(q_TD, theta) @ turned(k_TD, theta).T / math.sqrt(D)
        heads.append(scores_TT.masked_fill(~sees_TT, -math.inf).softmax(-1) @ v_TD)
    return torch.cat(heads, -1)


def linear(x, w, name):
    bias = w.get(f"{name}.bias")
    return x @ w[f"{name}.weight"].T + (0 if bias is None else bias)


def llama_like(tokens_T, w, names, *, theta, eps):
    """LLaDA and Dream: RMS norms, rotary attention without a mask, SwiGLU."""
    x, sees_TT = w[names["embedding"]][tokens_T], torch.ones(len(tokens_T), len(tokens_T), dtype=torch.bool)
    for i in range(LAYERS):
        at = {part: f"{names['layers']}.{i}.{name}" for part, name in names["parts"].items()}
        y = rms(x, w[f"{at['norm1']}.weight"], eps)
        q, k, v = (linear(y, w, at[part]) for part in "qkv")
        x = x + linear(attended(q, k, v, theta, sees_TT), w, at["o"])
        y = rms(x, w[f"{at['norm2']}.weight"], eps)
        x = x + linear(F.silu(linear(y, w, at["gate"])) * linear(y, w, at["up"]), w, at["down"])
    head = w.get(names["head"], w[names["embedding"]])
    return rms(x, w[names["norm"]], eps) @ head.T


LLADA = {
    **{"embedding": "model.transformer.wte.weight", "norm": "model.transformer.ln_f.weight"},
    **{"head": "model.transformer.ff_out.weight", "layers": "model.transformer.blocks"},
    "parts": {
        **{"norm1": "attn_norm", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "attn_out"},
        **{"norm2": "ff_norm", "gate": "ff_proj", "up": "up_proj", "down": "ff_out"},
    },
}
DREAM = {
    **{"embedding": "model.embed_tokens.weight", "norm": "model.norm.weight"},
    **{"head": "lm_head.weight", "layers": "model.layers"},
    "parts": {
        **{part: f"self_attn.{part}_proj" for part in "qkvo"},
        **{part: f"mlp.{part}_proj" for part in ("gate", "up", "down")},
        **{"norm1": "input_layernorm", "norm2": "post_attention_layernorm"},
    },
}


def dit(tokens_T, w, sigma, block_size):
    """MDLM; with a block size BD3-LM: a token sees its own block and those before."""
    place_T = torch.arange(len(tokens_T)) // (block_size or len(tokens_T))
    sees_TT = place_T[None, :] <= place_T[:, None]
    told = "backbone.sigma_map.mlp.0.weight" in w
    if told:
        frequency = torch.tensor([10_000 ** (-i / 128) for i in range(128)], dtype=torch.float64)
        waves = torch.cat(((sigma * frequency).cos(), (sigma * frequency).sin()))
        inner = F.silu(linear(waves, w, "backbone.sigma_map.mlp.0"))
        c = F.silu(linear(inner, w, "backbone.sigma_map.mlp.2"))

    def numbers(place, count):
        if told:
            return linear(c, w, f"backbone.{place}.adaLN_modulation").view(count, E)
        return torch.tensor([0.0, 0.0, 1.0] * 2)[:count, None].double()  # no shift, no scale, an open gate

    x = w["backbone.vocab_embed.embedding"][tokens_T]
    for i in range(LAYERS):
        at = f"backbone.blocks.{i}"
        shift1, scale1, gate1, shift2, scale2, gate2 = numbers(f"blocks.{i}", 6)
        y = layer_norm(x, w[f"{at}.norm1.weight"]) * (1 + scale1) + shift1
        q, k, v = linear(y, w, f"{at}.attn_qkv").split(E, -1)
        x = x + gate1 * linear(attended(q, k, v, 10_000.0, sees_TT), w, f"{at}.attn_out")
        y = linear(layer_norm(x, w[f"{at}.norm2.weight"]) * (1 + scale2) + shift2, w, f"{at}.mlp.0")
        y = 0.5 * y * (1 + (math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)).tanh())
        x = x + gate2 * linear(y, w, f"{at}.mlp.2")
    shift, scale = numbers("output_layer", 2)
    y = layer_norm(x, w["backbone.output_layer.norm_final.weight"]) * (1 + scale) + shift
    return linear(y, w, "backbone.output_layer.linear")


def reference(config: dict, w: dict[str, Tensor], tokens_BT: Tensor, time_B: Tensor) -> Tensor:
    """Logits [B, T, V] column by column, as their networks give them (Dream's are one column to the left)."""
    if config["model_type"] == "llada":
        more = {"theta": config["rope_theta"], "eps": config["rms_norm_eps"]}
        return torch.stack([llama_like(row, w, LLADA, **more) for row in tokens_BT])
    if config["model_type"] == "Dream":
        more = {"theta": config["rope_theta"], "eps": config["rms_norm_eps"]}
        return torch.stack([llama_like(row, w, DREAM, **more) for row in tokens_BT])
    sigma_B = -(1 - (1 - 1e-3) * time_B).log() if config["time_conditioning"] else torch.zeros_like(time_B)
    block_size = config.get("block_size") if config.get("cross_attn") else None
    return torch.stack([dit(row, w, sigma, block_size) for row, sigma in zip(tokens_BT, sigma_B, strict=True)])


@pytest.mark.parametrize(("kind", "changes"), VARIANTS, ids=str)
def test_a_folder_is_the_same_network_and_goes_back(tmp_path, kind, changes):
    folder = write_folder(tmp_path, kind, **changes)
    config = native_config(str(folder))
    native = load_native(str(folder), config).requires_grad_(False)
    stored = load_file(folder / "model.safetensors")
    assert config.num_parameters() == sum(parameter.numel() for parameter in native.parameters())

    tokens_BT = torch.randint(0, config.vocab_size, (2, 11), generator=torch.Generator().manual_seed(1))
    time_B = torch.tensor([0.3, 1.0], dtype=torch.float64)
    w = {name: tensor.double() for name, tensor in stored.items()}
    want = reference(json.loads((folder / "config.json").read_text()), w, tokens_BT, time_B)
    assert want.std() > 0.05 and (want[:, 0] - want[:, 1]).abs().max() > 0.05
    columns = slice(None, -1) if kind == "Dream" else slice(None)
    got = native.double()(tokens_BT, time_B=time_B)[:, 1 if kind == "Dream" else 0 :]
    torch.testing.assert_close(got, want[:, columns], atol=1e-9, rtol=0)

    family = family_of({"model_type": kind})
    assert family is not None
    back = to_theirs(family, config, native.float().state_dict())
    left = {name for name in stored if "inv_freq" in name or name.startswith("sampling_eps")}
    assert back.keys() == stored.keys() - left
    assert all(torch.equal(back[name], stored[name]) for name in back)
    assert family_of_native(config) is None, "transformers has no such model to hand it to"


@pytest.mark.parametrize("kind", their_denoisers.CONFIGS)
def test_a_folder_generates(tmp_path, kind):
    """The mask lies beyond the tokenizer's own ids; it is nowhere in what comes out."""
    folder = write_folder(tmp_path, kind)
    vocabulary: Any = PretrainedTokenizer(path=str(folder)).load(NO_TEXT)
    config = native_config(str(folder))
    assert vocabulary.mask_id == (TEXT + 1 if kind == "llada" else TEXT)
    assert vocabulary.vocab_size == config.vocab_size
    cache = BlockCache() if kind == "bd3lm" else NoCache()
    decoder = MaskedDiffusion(sampler=LowConfidence(steps="L"), cache=cache)
    decoder.check(config, output_len=9)
    model = load_native(str(folder), config).eval()
    batch = [Request(id=str(i), prompt=(1, *vocabulary.encode("the c"[:i])), max_new_tokens=9, seed=i) for i in (2, 5)]
    written: list[dict[int, int]] = [{}, {}]
    for event in decoder.decode(model, batch, vocabulary):
        assert event.positions_K is not None and event.token_ids_BK is not None
        for k, position in enumerate(event.positions_K):
            for row in range(2):
                if event.final_BK is None or event.final_BK[row, k]:
                    written[row][position] = int(event.token_ids_BK[row, k])
    for row in written:
        assert sorted(row) == list(range(9)) and vocabulary.mask_id not in row.values()
        assert isinstance(vocabulary.decode(row.values()), str)


def test_sizes_of_the_published_ones():
    """From the values of their config.json: 8.02 and 7.62 billion parameters, as the hub counts their tensors."""
    llada = {
        "model_type": "llada",
        **their_denoisers.CONFIGS["llada"],
        "d_model": 4096,
        "n_heads": 32,
        "n_kv_heads": 32,
    }
    llada |= {"n_layers": 32, "mlp_hidden_size": 12_288, "vocab_size": 126_464, "embedding_size": 126_464}
    llada |= {"max_sequence_length": 4096, "mask_token_id": 126_336}
    dream = {"model_type": "Dream", **their_denoisers.CONFIGS["Dream"], "hidden_size": 3584, "num_attention_heads": 28}
    dream |= {"num_key_value_heads": 4, "num_hidden_layers": 28, "intermediate_size": 18_944, "vocab_size": 152_064}
    dream |= {"max_position_embeddings": 131_072, "mask_token_id": 151_666}
    for config, billions in ((llada, 8.02), (dream, 7.62)):
        family = family_of(config)
        assert family is not None
        native = family.from_transformers(checkpoint_files.OWN[config["model_type"]](config))
        assert round(native.num_parameters() / 1e9, 2) == billions
        assert not native.causal and native.noise == "absorbing"


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("llada", {"block_type": "sequential"}, "block_type='sequential'"),
        ("llada", {"attention_layer_norm": True}, "attention_layer_norm"),
        ("llada", {"rope": False}, "rope=False"),
        ("llada", {"scale_logits": True}, "scale_logits"),
        ("Dream", {"use_sliding_window": True}, "use_sliding_window"),
        ("Dream", {"block_size": 32}, "block_size=32"),
        ("bd3lm", {"causal": True}, "causal"),
        ("bd3lm", {"time_conditioning": True}, "time_conditioning"),
    ],
    ids=str,
)
def test_what_is_not_computed_is_refused(tmp_path, kind, changes, words):
    folder = write_folder(tmp_path, kind, **changes) if kind != "llada" else tmp_path
    if kind == "llada":
        (folder / "config.json").write_text(
            json.dumps({"model_type": kind, **their_denoisers.CONFIGS[kind], **changes})
        )
    with pytest.raises(ValueError, match=words):
        native_config(str(folder))


def test_another_network_of_the_same_name_says_what_it_lacks(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llada", "hidden_size": 2048, "num_experts": 64}))
    with pytest.raises(ValueError, match=r"has no d_model, .*LLaDA-MoE is not"):
        native_config(str(tmp_path))


def test_transformers_is_not_asked_for_what_it_does_not_have(tmp_path):
    """Nor is the code beside the files run: the folder's would raise."""
    folder = write_folder(tmp_path, "llada")
    with pytest.raises(ValueError, match="'llada', no causal language model"):
        transformers_config(str(folder))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"lacks model\.safetensors"):
        load_native(str(folder), native_config(str(folder)))


# ---------------------------------------------------------------- masks and text


def test_text_may_lie_elsewhere_and_the_mask_be_said(tmp_path):
    """As MDLM reads GPT-2's text, which has no mask."""
    folder = write_folder(tmp_path / "mdlm", "mdlm", tokenizer=False)
    text = theirs.write_folder(tmp_path / "gpt2", weights=False)
    with pytest.raises(ValueError, match=r"no tokenizer.*tokenizer\.text_path"):
        PretrainedTokenizer(path=str(folder)).check(needs_text=True, needs_bytes=False)
    there = PretrainedTokenizer(path=str(folder), text_path=str(text))
    there.check(needs_text=True, needs_bytes=True)
    tokenizer = there.load(NO_TEXT)
    assert (tokenizer.vocab_size, tokenizer.mask_id) == (TEXT + 1, TEXT)
    assert tokenizer.decode(tokenizer.encode("the cache keeps")) == "the cache keeps"
    assert tokenizer.token_bytes[TEXT] == b"" and TEXT not in tokenizer.plain_ids
    said = PretrainedTokenizer(path=str(folder), text_path=str(text), mask_id=290).load(NO_TEXT)
    assert said.mask_id == 290 and 290 not in said.plain_ids and said.sha256 != tokenizer.sha256
    with pytest.raises(ValueError, match=r"mask_id=301 is no id of the model, which has 301; give 0 to 300"):
        PretrainedTokenizer(path=str(folder), text_path=str(text), mask_id=301).load(NO_TEXT)
    with pytest.raises(ValueError, match=r"text_path=.* has no tokenizer"):
        PretrainedTokenizer(path=str(folder), text_path=str(folder)).load(NO_TEXT)
    with pytest.raises(ValueError, match=r"tokenizer\.text_path=nowhere is no folder"):
        PretrainedTokenizer(path=str(folder), text_path="nowhere").load(NO_TEXT)


def test_dreams_text_is_that_of_qwen2(tmp_path):
    """vocab.json and merges.txt, and a class of its own that `transformers` does not have."""
    folder = write_folder(tmp_path, "Dream", tokenizer=False, vocab_size=310, mask_token_id=304)
    library = json.loads(theirs.library_json("byte level"))["model"]
    plain = [token for token in library["vocab"] if token not in theirs.SPECIAL]
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|beginoftext|>", "<|mask|>"]
    first = 300
    added = {str(first + i): {"content": name, "special": True, "normalized": False} for i, name in enumerate(names)}
    fill = {f"<unused{i}>": len(plain) + i for i in range(first - len(plain))}
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(plain)} | fill))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in library["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    card = {"added_tokens_decoder": added, "tokenizer_class": "DreamTokenizer", "mask_token": "<|mask|>"}
    card |= {"bos_token": "<|beginoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    card |= {"auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(card))
    tokenizer = PretrainedTokenizer(path=str(folder)).load(NO_TEXT)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id) == (303, 300, 304)
    text = "It's 2024: the cache\n\n  keeps <|mask|> 日本"
    assert tokenizer.decode_bytes(tokenizer.encode(text)) == text.encode()
    assert max(tokenizer.encode(text)) < first, "text never turns into a special token"
