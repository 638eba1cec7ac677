"""Models of `transformers` behind our interface: what our decoder says is the argmax of their own full forwards."""

from __future__ import annotations

import itertools

import pytest
import theirs
import torch

from paradigms.decoding.autoregressive import Autoregressive
from paradigms.decoding.native import NativeParadigm
from paradigms.engines.transformers_generate import TransformersGenerate
from paradigms.measure.clock import HostClock
from paradigms.measure.timeline import record
from paradigms.models.transformers_model import NO_LIMIT, TransformersModel, transformers_config
from paradigms.paradigm import Request

V = theirs.SIZES["vocab_size"]
TOLERANCE = 1e-4  # of the largest logit
RAGGED = ((5, 7, 9, 11, 30, 8, 21), (6, 3), (40, 41, 42))
ELSEWHERE = ("rwkv", "recurrent_gemma", "blt")  # keep their state in a way of their own


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    """Models by type, each made once."""
    made: dict[str, TransformersModel] = {}

    def make(model_type: str) -> TransformersModel:
        if model_type not in made:
            folder = theirs.write_folder(tmp_path_factory.mktemp(model_type), model_type)
            made[model_type] = transformers_config(str(folder)).load().requires_grad_(False)
        return made[model_type]

    return make


def tokens(*shape):
    return torch.randint(3, V, shape, generator=torch.Generator().manual_seed(1))


def full(model, tokens_BT):
    """Their own forward over everything, nothing of ours."""
    return model.theirs(tokens_BT, use_cache=False).logits


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE * max(1.0, expected.abs().max().item()))


def run(model, decoder, prompts, **options):
    batch = [
        Request(id=str(i), prompt=prompt, max_new_tokens=10, seed=i, **options) for i, prompt in enumerate(prompts)
    ]
    return record(NativeParadigm(model, decoder, theirs.Vocabulary()), batch, clock=HostClock())


@pytest.mark.parametrize("model_type", theirs.ARCHITECTURES)
@torch.inference_mode()
def test_our_decoder_says_the_argmax_of_their_full_forwards(model_of, model_type):
    model = model_of(model_type)
    rows = run(model, Autoregressive(temperature=0.0), RAGGED).rows
    peers = run(model, TransformersGenerate(temperature=0.0), RAGGED).rows
    for prompt, row, peer in zip(RAGGED, rows, peers, strict=True):
        text = list(prompt)
        for token in row.token_ids:
            logits = full(model, torch.tensor([text]))[0, -1]
            best = logits.topk(2).values
            assert token == logits.argmax().item() or best[0] - best[1] < 1e-4
            text.append(token)
        assert peer.token_ids == row.token_ids
    assert len({token for row in rows for token in row.token_ids}) > 5, "texts that repeat one token tell nothing"


@pytest.mark.parametrize("model_type", theirs.ARCHITECTURES)
@torch.inference_mode()
def test_cached_is_full_by_token_in_chunks_and_padded(model_of, model_type):
    model = model_of(model_type)
    tokens_BT = tokens(3, 21)
    want = full(model, tokens_BT)
    assert want.std() > 0.05, "the logits hardly differ, so that anything would agree"
    assert_close(model(tokens_BT), want)
    for cuts in (range(22), (0, 7, 8, 16, 21), (0, 19, 20, 21)):
        state = model.new_state(3, 21)
        pieces = [model(tokens_BT[:, a:b], state) for a, b in itertools.pairwise(cuts)]
        assert_close(torch.cat(pieces, 1), want)
        assert state.lengths == [21] * 3
    lengths = [12, 5, 1]
    left_BT = torch.zeros(3, 12, dtype=torch.long)
    for row, length in enumerate(lengths):
        left_BT[row, 12 - length :] = tokens_BT[row, :length]
    state = model.new_state(3, 21)
    last = model(left_BT, state, num_tokens=lengths, logits_at=slice(-1, None))
    assert last.shape == (3, 1, V)
    for n in range(5):
        assert_close(last[:, -1], torch.stack([want[row, length - 1 + n] for row, length in enumerate(lengths)]))
        next_B1 = torch.stack([tokens_BT[row, length + n] for row, length in enumerate(lengths)])[:, None]
        looked = model(next_B1, state, write="none")
        last = model(next_B1, state)
        assert torch.equal(looked, last)
    wanted_BT = left_BT > 0
    rows = torch.cat([want[row, :length] for row, length in enumerate(lengths)])
    assert_close(model.logits_where(left_BT, wanted_BT, num_tokens=lengths), rows)


@pytest.mark.parametrize("model_type", theirs.ARCHITECTURES)
@torch.inference_mode()
def test_state_bytes_are_the_tensors(model_of, model_type):
    """Used = allocated without padding; what grows, grows by the column."""
    model = model_of(model_type)
    state, sizes = model.new_state(2, 20), []
    for _ in range(6):
        model(tokens(2, 3), state)
        held = [t for layer in state.cache.layers for t in _tensors(layer)]
        assert state.used_bytes == state.allocated_bytes == sum(tensor.nbytes for tensor in held)
        sizes.append(state.used_bytes)
    steps = {after - before for before, after in itertools.pairwise(sizes)}
    assert len(steps) == 1 and sizes[0] > 0
    assert (steps == {0}) == (model_type in ("mamba", "mamba2", "falcon_mamba"))
    event = list(TransformersGenerate(temperature=0.0).decode(model, _requests((4, 5, 6)), theirs.Vocabulary()))[-1]
    native = list(Autoregressive(temperature=0.0).decode(model, _requests((4, 5, 6)), theirs.Vocabulary()))[-1]
    assert event.state() == native.state()


def _tensors(layer):
    for name in ("keys", "values", "conv_states", "recurrent_states"):
        value = getattr(layer, name, None)
        yield from (t for t in (value.values() if isinstance(value, dict) else [value]) if t is not None)


def _requests(*prompts):
    return [Request(id=str(i), prompt=prompt, max_new_tokens=5) for i, prompt in enumerate(prompts)]


@pytest.mark.parametrize("model_type", ["llama", "mamba2", "falcon_h1"])
@torch.inference_mode()
def test_rows_can_be_chosen(model_of, model_type):
    model = model_of(model_type)
    tokens_BT = tokens(3, 10)
    state = model.new_state(3, 12)
    model(tokens_BT, state)
    state.select_rows([2, 0, 2])
    expected = full(model, torch.cat((tokens_BT, tokens_BT[:, :1]), 1))[[2, 0, 2], -1]
    assert_close(model(tokens_BT[[2, 0, 2], :1], state)[:, 0], expected)


@pytest.mark.parametrize("model_type", ["llama", "deepseek_v3", "mamba2"])
def test_bfloat16_keeps_what_the_library_keeps_wide(model_of, model_type):
    model = TransformersModel(model_of(model_type).config.load().theirs, model_of(model_type).config)
    model.to(dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    for name, buffer in model.named_buffers():
        if "inv_freq" in name:
            assert buffer.dtype == torch.float32
    gates = {p.dtype for name, p in model.named_parameters() if name.endswith("mlp.gate.weight")}
    wide = "gate.weight" in model.theirs._keep_in_fp32_modules_strict  # as of transformers 5.24
    assert gates == ({torch.float32 if wide else torch.bfloat16} if model_type == "deepseek_v3" else set())
    assert model(tokens(1, 5)).isfinite().all()


@pytest.mark.parametrize("model_type", ELSEWHERE)
@torch.inference_mode()
def test_a_state_of_its_own_kind_is_refused_and_decoding_without_works(tmp_path, model_type):
    sizes = {
        "rwkv": {"context_length": 64},
        "recurrent_gemma": {"num_hidden_layers": 3, "num_key_value_heads": 1, "lru_width": 32},
        "blt": BLT,
    }[model_type]
    model = transformers_config(str(theirs.write_folder(tmp_path, model_type, weights=False, **sizes))).build()
    assert not model.config.has_state
    for decoder in (Autoregressive(), TransformersGenerate()):
        with pytest.raises(ValueError, match="keeps its state in a way of its own"):
            decoder.check(model.config, output_len=8)
    with pytest.raises(ValueError, match="keeps its state in a way of its own"):
        model.new_state(1, 8)
    decoder = Autoregressive(cache="none", temperature=0.0)
    decoder.check(model.config, output_len=8)
    prompt = RAGGED[0]
    (row,) = run(model, decoder, [prompt]).rows
    text = list(prompt)
    for token in row.token_ids:
        assert token == full(model, torch.tensor([text]))[0, -1].argmax().item()
        text.append(token)


_PART = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 48,
    "vocab_size": V,
}
BLT = {
    "vocab_size": V,
    "encoder_hash_byte_group_vocab": 64,
    "encoder_hash_byte_group_size": [2, 3],
    "cross_attn_k": 1,
    "patcher_config": {**_PART, "num_hidden_layers": 1},
    "encoder_config": {**_PART, "num_hidden_layers": 1, "hidden_size_global": 32, "cross_attn_k": 1},
    "decoder_config": {**_PART, "num_hidden_layers": 1, "hidden_size_global": 32, "cross_attn_k": 1},
    "global_config": {**_PART, "num_hidden_layers": 1},
}


def test_what_it_cannot_do_is_said(model_of, tmp_path):
    model = model_of("llama")
    state = model.new_state(2, 12)
    model(tokens(2, 4), state)
    for call, words in (
        (lambda: model(tokens(2, 3), state, num_tokens=[3, 1]), "different numbers of tokens"),
        (lambda: model(tokens(2, 3), state, among_BTT=torch.ones(3, 3, dtype=torch.bool)), "trees"),
        (lambda: model(tokens(2, 9), state), "13 positions asked for, 12"),
        (lambda: model.new_state(2, 12, form="static"), "form=static"),
        (lambda: model.new_state(2, 577), "max_positions=576"),
        (state.mark, "cannot go back"),
        (lambda: state.insert(state), "takes no new rows"),
        (lambda: model.config.check_kv_dtype("int8"), "decoder.kv_dtype=int8"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    theirs.write_folder(tmp_path / "bert", "bert", weights=False)
    theirs.write_folder(tmp_path / "decoder", "bert", weights=False, is_decoder=True)
    assert transformers_config(str(tmp_path / "decoder")).causal
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text('{"model_type": "no_such_model"}')
    for name, words in (
        ("odd", "transformers cannot read its config"),
        ("none", "does not exist"),
        ("bert", "an encoder that sees both ways"),
    ):
        with pytest.raises(ValueError, match=words):
            transformers_config(str(tmp_path / name))


def test_a_config_alone_is_enough_for_random_weights(tmp_path):
    config = transformers_config(str(theirs.write_folder(tmp_path, "mamba", weights=False, tokenizer=None)))
    assert (config.vocab_size, config.max_positions) == (V, NO_LIMIT)
    assert config.build().dtype == torch.float32
    with pytest.raises(ValueError, match=r"lacks model\.safetensors.*train=random"):
        config.load()
