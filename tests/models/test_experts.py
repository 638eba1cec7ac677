"""Experts: routing by hand, four ways to compute one sum, the balance loss, and what is counted."""

from __future__ import annotations

import copy
import dataclasses
import itertools

import pytest
import tiny
import torch
from models.hf import check_equal_logits, check_there_and_back, native_of, random_transformers_model
from models.test_exactness import GROUPED, LATENT, SIZES, assert_close, random_model, tokens
from models.test_state import read

from paradigms.models import expert_products
from paradigms.models.config import ModelConfig
from paradigms.models.experts import Experts, ExpertsConfig, balance_loss, count_touched
from paradigms.models.families import family_of
from paradigms.models.feed_forward import FeedForwardConfig
from paradigms.models.latent_attention import FORMS
from paradigms.models.span import device_span
from paradigms.training import objectives
from paradigms.training.optimizer import Optimizer


def layer_of(config: ExpertsConfig, dtype: torch.dtype = torch.float64) -> Experts:
    model = random_model(ModelConfig(**SIZES, block="AE", experts=config), dtype)
    return model.layers[1].mixer


def rows(count: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(count, 64, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize(
    ("way", "dtypes"),
    [
        (expert_products.by_row, [torch.float64, torch.float32]),
        (expert_products.by_group, [torch.float32, torch.bfloat16]),
        (expert_products.by_gather, [torch.float64, torch.float32]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_way_is_the_loop(way, dtypes):
    sizes = (1,) if way is expert_products.by_row else (1, 2, 40)
    for dtype, num_rows in itertools.product(dtypes, sizes):
        layer = layer_of(ExpertsConfig(width=40, top_k=3), dtype)
        x = rows(num_rows, dtype)
        with torch.no_grad():
            arguments = (x, *layer.route(x), layer.gate_up, layer.down)
            want, got = expert_products.by_loop(*arguments), way(*arguments)
        if dtype == torch.bfloat16:
            assert torch.allclose(got, want, rtol=0.05, atol=0.02)
        else:
            assert_close(got, want)


def test_experts_that_no_row_chose_change_nothing():
    layer = layer_of(ExpertsConfig(width=40, num_experts=16, top_k=1), torch.float32)
    x = rows(3, torch.float32)
    with torch.no_grad():
        chosen, weight = torch.tensor([[0], [15], [0]]), torch.ones(3, 1)
        arguments = (x, chosen, weight, layer.gate_up, layer.down)
        assert_close(expert_products.by_group(*arguments), expert_products.by_loop(*arguments))


def test_which_way_is_taken():
    x, gate_up = rows(2, torch.float32), torch.zeros(4, 64, 32)

    def taken(x, **options):
        return expert_products.choose(x, gate_up.to(x.dtype), **{"on_device": False, **options})

    assert taken(x[:1]) is expert_products.by_row
    assert taken(x) is expert_products.by_group
    assert taken(x.double()) is expert_products.by_loop
    assert taken(x.double(), on_device=True) is expert_products.by_loop, "a CPU is the host"
    odd = torch.zeros(4, 64, 2 * 15)  # rows of 60 bytes
    assert expert_products.choose(x, odd, on_device=False) is expert_products.by_loop
    assert taken(x.clone().requires_grad_()) is expert_products.by_loop


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_compiled_code_calls_is_the_loop(dtype):
    layer, x = layer_of(ExpertsConfig(width=40, top_k=3), dtype), rows(5, dtype)
    with torch.no_grad():
        arguments = (x, *layer.route(x), layer.gate_up, layer.down)
        assert_close(expert_products._eagerly(*arguments), expert_products.by_loop(*arguments))
        torch.library.opcheck(expert_products._eagerly, arguments)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_step_placed_on_the_device_is_the_step(dtype):
    config = ModelConfig(**SIZES, block="LE", latent_attention=LATENT, experts=GROUPED)
    for form in FORMS:
        latent = dataclasses.replace(LATENT, form=form)
        model = random_model(dataclasses.replace(config, latent_attention=latent), dtype)
        text, before = tokens(model, 3, 40), [2, 5, 23]
        ours, reference = (model.new_state(3, 40, form="static") for _ in range(2))
        for state in (ours, reference):
            read(model, [text[row, :length] for row, length in enumerate(before)], state)
        for step in range(4):
            token_B1 = torch.stack([text[row, length + step] for row, length in enumerate(before)])[:, None]
            hidden = model.through_layers(token_B1, device_span(model.tables, ours.lengths_B, 40), ours.layers)
            looked = model.through_layers(token_B1, model.span_of(token_B1, reference), reference.layers)
            assert_close(hidden, looked)
            for state in (ours, reference):
                state.advance([1, 1, 1])


@pytest.mark.parametrize(
    "config",
    [
        ExpertsConfig(width=24, num_shared=2, shared_width=16, normalise_top_k=False, routed_scale=0.5),
        ExpertsConfig(width=24, num_shared=1, shared_gate=True),
        dataclasses.replace(GROUPED, routing_bias=True),
        dataclasses.replace(GROUPED, scoring="softmax", group_best=1, normalise_top_k=False),
    ],
    ids=["plain", "shared gate", "groups and bias", "groups"],
)
def test_a_layer_by_hand(config):
    """Per token, from the papers' equations: DeepSeek-V2 (2405.04434, 20 to 22), V3 (2412.19437, 12 to 16)."""
    layer = layer_of(config)
    if config.routing_bias:
        layer.routing_bias.copy_(torch.linspace(-0.3, 0.3, config.num_experts))
    x = rows(9)
    with torch.no_grad():
        got = layer(x, _span(x), None)
    size = config.num_experts // config.num_groups
    for row in range(9):
        logits = x[row] @ layer.router
        scores = logits.softmax(0) if config.scoring == "softmax" else 1 / (1 + torch.exp(-logits))
        ranks = (scores + layer.routing_bias if config.routing_bias else scores).tolist()
        groups = [ranks[group * size : (group + 1) * size] for group in range(config.num_groups)]
        worth = [sum(sorted(group)[-config.group_best :]) for group in groups]
        best = sorted(range(config.num_groups), key=lambda g: worth[g])[-config.top_groups :]
        allowed = [expert for expert in range(config.num_experts) if expert // size in best]
        chosen = sorted(allowed, key=lambda expert: ranks[expert])[-config.top_k :]
        total = sum(scores[expert] for expert in chosen) if config.normalise_top_k else 1.0
        want = torch.zeros(64, dtype=torch.float64)
        for expert in chosen:
            gate, up = (x[row] @ layer.gate_up[expert]).chunk(2)
            value = (gate * torch.sigmoid(gate) * up) @ layer.down[expert]
            want += config.routed_scale * scores[expert] / total * value
        if config.num_shared:
            gate, up = (x[row] @ layer.shared.gate_up).chunk(2)
            value = (gate * torch.sigmoid(gate) * up) @ layer.shared.down
            want += value * (torch.sigmoid(x[row] @ layer.shared_gate) if config.shared_gate else 1.0)
        assert_close(got[row], want)


def _span(x):
    model = ModelConfig(**SIZES).build()
    return model._span((1, len(x)), None, None, None, None, "none", None)


def test_the_balance_loss_is_1_when_all_are_used_alike_and_grows_with_the_difference():
    scores = torch.full((8, 4), 0.25)
    even = torch.tensor([[0, 1], [2, 3]] * 4)
    assert balance_loss(scores, even).item() == pytest.approx(1)
    skewed = torch.tensor([[0.7, 0.1, 0.1, 0.1]] * 8)
    assert balance_loss(skewed, torch.zeros(8, 1, dtype=torch.long)).item() == pytest.approx(4 * 0.7)
    halves = torch.tensor([[0, 1]] * 8)
    assert balance_loss(skewed, halves).item() == pytest.approx(4 * (0.5 * 0.7 + 0.5 * 0.1))


def small(**changes) -> ModelConfig:
    experts = ExpertsConfig(**{"num_experts": 4, "width": 24, **changes})
    return ModelConfig(vocab_size=tiny.VOCAB_SIZE, d_model=32, num_blocks=2, block="AE", experts=experts)


def test_the_balance_loss_is_beside_the_loss_of_the_text():
    torch.manual_seed(0)
    model = small().build()
    text = tokens(model, 3, 20)
    loss = objectives.next_token_loss(model, text)
    layers = [layer.mixer for layer in model.layers if isinstance(layer.mixer, Experts)]
    parts = [layer._balance for layer in layers]
    extra = objectives.balance_loss(model)
    assert extra.item() == pytest.approx(0.01 * sum(part.item() for part in parts)) and len(parts) == 2
    assert objectives.balance_loss(model) == 0, "taken"
    extra.backward()
    assert layers[1].router.grad.abs().sum() > 0 and layers[1].gate_up.grad is None
    with torch.no_grad():
        assert objectives.next_token_loss(model, text).item() == pytest.approx(loss.item())
    assert objectives.balance_loss(model) == 0, "nothing without gradients"
    assert objectives.balance_loss(tiny.MODELS["ar"].build()) == 0


def test_training_with_the_balance_loss_uses_experts_more_evenly():
    """Two trainings that differ in the coefficient alone; what is minimised is seen to fall."""
    losses = {}
    for coefficient in (0.0, 1.0):
        torch.manual_seed(0)
        model = small(balance_loss=coefficient).build()
        optimizer = Optimizer(model, weight_decay=0.0)
        text = tokens(model, 8, 24)
        for _ in range(20):
            (objectives.next_token_loss(model, text) + objectives.balance_loss(model)).backward()
            optimizer.step(1e-2)
        layer, used = model.layers[1].mixer, []
        layer.register_forward_pre_hook(lambda _, inputs, used=used: used.append(inputs[0]))
        with torch.no_grad():
            model(text)
            chosen, _ = layer.route(used[0])
            losses[coefficient] = balance_loss((used[0] @ layer.router).softmax(-1), chosen).item()
    assert losses[1.0] < losses[0.0]


def test_each_expert_is_stepped_as_a_matrix_of_its_own():
    """Muon on a stack equals Muon on its matrices, gate and up apart, and its state is taken up again exactly."""
    torch.manual_seed(0)
    model = small().build()
    before = model.layers[1].mixer.gate_up.detach().clone()
    optimizer = Optimizer(model, weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    gradients = {name: torch.randn(p.shape, generator=generator) for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name].clone()
    optimizer.step(1e-2)
    for expert in range(4):
        halves = [torch.nn.Parameter(half.clone()) for half in before[expert].chunk(2, -1)]
        for half, grad in zip(halves, gradients["layers.1.mixer.gate_up"][expert].chunk(2, -1), strict=True):
            half.grad = grad
        torch.optim.Muon(halves, lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw").step()
        assert torch.equal(model.layers[1].mixer.gate_up[expert], torch.cat(halves, -1))
    assert all(parameter.grad is None for parameter in model.parameters())
    kept = {name: tensor.clone() for name, tensor in optimizer.tensors().items()}
    other = Optimizer(model, weight_decay=0.1)
    other.load(kept)
    assert kept.keys() == other.tensors().keys() and "layers.1.mixer.down.3/momentum_buffer" in kept


def test_touched_experts_are_counted_only_when_asked():
    model = random_model(ModelConfig(**SIZES, block="AE", experts=ExpertsConfig(width=24, top_k=2)), torch.float32)
    with torch.no_grad(), count_touched() as touched:
        state = model.new_state(1, 30)
        model(tokens(model, 1, 20), state)
        distinct, num_layers = touched.take()
        assert num_layers == 2 and 4 <= distinct <= 16
        model(tokens(model, 1, 1), state)
        assert touched.take() == (2 * 2, 2), "one token touches its top_k"
        assert touched.take() == (0, 0)
    model(tokens(model, 1, 3))
    assert touched.take() == (0, 0)


def test_widths_that_are_left_out_are_those_of_the_feed_forward():
    config = ModelConfig(**SIZES, block="AFAE", feed_forward=FeedForwardConfig(width=48), experts=ExpertsConfig())
    assert config.part("E").width == 48 and config.experts.width is None
    solved = ModelConfig(vocab_size=2048, block="AFAE", num_blocks=2, target_parameters=1_520_000)
    assert solved.part("E").width == solved.feed_forward.width
    assert abs(solved.num_parameters() - 1_520_000) < 15_200
    alone = ModelConfig(vocab_size=2048, block="AE", experts=ExpertsConfig(width=8), target_parameters=1_215_000)
    assert abs(alone.num_parameters() - 1_215_000) < 12_150 and alone.experts.width == 56


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": None}, ["width", "no feed-forward"]),
        ({"scoring": "tanh"}, ["scoring='tanh'", "softmax, sigmoid"]),
        ({"num_groups": 3}, ["num_groups=3", "num_experts=8"]),
        ({"num_groups": 4, "top_groups": 1, "top_k": 3}, ["top_k=3", "1 groups of 2"]),
        ({"top_k": 9}, ["top_k=9"]),
        ({"group_best": 2}, ["group_best=2", "leave it at 1"]),
        ({"shared_gate": True}, ["num_shared=0"]),
        ({"num_experts": 0}, ["num_experts=0", "at least 1"]),
        ({"balance_loss": -1.0}, ["balance_loss=-1.0"]),
    ],
    ids=str,
)
def test_impossible_layers_say_why(changes, words):
    with pytest.raises(ValueError) as error:
        ModelConfig(**SIZES, block="AE", experts=ExpertsConfig(**{"width": 16, **changes}))
    assert all(word in str(error.value) for word in words)


SPARSE = {
    "vocab_size": 60,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
}
MODELS = {
    "mixtral": {"model_type": "mixtral", "num_local_experts": 6},
    "mixtral, wide heads": {
        "model_type": "mixtral",
        "num_local_experts": 4,
        "head_dim": 24,
        "tie_word_embeddings": True,
    },
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        "num_experts": 6,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 40,
    },
    "qwen2_moe, some dense": {
        "model_type": "qwen2_moe",
        "num_experts": 6,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 40,
        "norm_topk_prob": True,
        "num_hidden_layers": 3,
        "decoder_sparse_step": 2,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "num_experts": 6,
        "moe_intermediate_size": 32,
        "head_dim": 20,
        "norm_topk_prob": True,
        "mlp_only_layers": [0],
    },
}


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_logits_are_those_of_transformers(config):
    theirs = random_transformers_model({**SPARSE, **config})
    native = native_of(theirs)
    with torch.no_grad():
        check_equal_logits(theirs, native)
    check_there_and_back(theirs, native)


def test_windows_of_sparse_models_are_refused():
    config = random_transformers_model({**SPARSE, **MODELS["mixtral"]}).config.to_dict()
    with pytest.raises(ValueError, match="sliding_window=8 of a mixtral"):
        family_of(config).from_transformers({**config, "sliding_window": 8})


def test_a_model_can_be_copied_between_a_training_forward_and_its_step():
    model = ModelConfig(vocab_size=50, d_model=32, block="E", num_blocks=1, experts=ExpertsConfig(width=8)).build()
    model(torch.tensor([[1, 2, 3]])).sum().backward()
    copied = copy.deepcopy(model)
    assert torch.equal(copied(torch.tensor([[4, 5]])), model(torch.tensor([[4, 5]])))
