"""A step in parts has the gradient of the whole; half precision and compilation change how it is computed, not what."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from paradigms.data.tokenizers import ByteTokenizer, Tokenizer
from paradigms.models.conditioning import ConditioningConfig
from paradigms.models.config import ModelConfig
from paradigms.models.experts import ExpertsConfig
from paradigms.models.mamba2 import Mamba2Config
from paradigms.models.stack import Model
from paradigms.training import loop
from paradigms.training.loop import Trained, train
from paradigms.training.objectives import balance_loss, masked_loss, next_token_loss
from paradigms.training.recipe import Recipe
from paradigms.weights import TrainedHere, Wanted

V, MASK, ROWS, LENGTH = 11, 2, 5, 12
SIZES: dict[str, Any] = {"vocab_size": V, "d_model": 32, "num_blocks": 1, "max_positions": 64}
DENOISER: dict[str, Any] = {**SIZES, "causal": False, "noise": "absorbing", "shift_logits": True}
EXPERTS = ExpertsConfig(num_experts=4, width=16, balance_loss=0.0)
MODELS = {
    "AF": ModelConfig(**SIZES),
    "M": ModelConfig(**SIZES, block="M", mamba2=Mamba2Config(head_dim=16, d_state=8, chunk_len=4)),
    "AE": ModelConfig(**SIZES, block="AE", experts=EXPERTS),
    "canvas": ModelConfig(**DENOISER),
    "canvas, told the time": ModelConfig(**DENOISER, conditioning=ConditioningConfig(width=16, frequency_dim=8)),
    "blocks": ModelConfig(**DENOISER, canvas_block=4),
}


@pytest.fixture(autouse=True)
def _folders(folders: Path) -> None:
    """Caches of the session."""


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Bit-equal means equal order of additions."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def step_recipe(micro_batches: int, **more: Any) -> Recipe:
    sizes: dict[str, Any] = {"num_tokens": 10_000, "batch_tokens": ROWS * LENGTH, "lengths": (LENGTH,)}
    return Recipe(**sizes, micro_batches=micro_batches, **more)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and a scored mask with another number of columns in each row."""
    tokens_BT = torch.randint(3, V, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    tokens_BT[:, 0] = 0
    return tokens_BT, torch.arange(LENGTH) >= torch.tensor([1, 11, 4, 8, 6])[:, None]


def ready(config: ModelConfig) -> Model:
    """A model whose every weight matters: modulations start at zero, where the time changes nothing."""
    model = tiny.random_model(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "modulation" in name:
                parameter += 0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return model


def gradient_of(model: Model) -> torch.Tensor:
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([grad.flatten() for grad in grads])


def gradient(
    config: ModelConfig, micro_batches: int, *, scored: bool, step: int = 3, **recipe: Any
) -> tuple[float, torch.Tensor]:
    model, (tokens_BT, scored_BT) = ready(config), batch()
    chosen = step_recipe(micro_batches, **recipe)
    nats = loop._backward(model, tokens_BT, scored_BT if scored else None, MASK, chosen, step)
    return nats, gradient_of(model)


def by_definition(config: ModelConfig, *, scored: bool, step: int = 3) -> tuple[float, torch.Tensor]:
    """The loss of the whole batch, without the loop."""
    model, (tokens_BT, scored_BT) = ready(config), batch()
    of_answers = scored_BT if scored else None
    if config.noise is None:
        loss = next_token_loss(model, tokens_BT, scored_BT=of_answers)
    else:
        generator = torch.Generator().manual_seed(step)  # of seed 0
        loss = masked_loss(model, tokens_BT, mask_id=MASK, generator=generator, scored_BT=of_answers)
    loss.backward()
    return loss.item(), gradient_of(model)


@pytest.mark.parametrize("scored", [False, True], ids=["all", "answers"])
@pytest.mark.parametrize("name", MODELS)
def test_parts_have_the_gradient_of_the_whole(name: str, scored: bool) -> None:
    nats, whole = by_definition(MODELS[name], scored=scored)
    assert math.isfinite(nats) and whole.abs().max() > 1e-3
    for micro_batches in (1, 2, 3, 5):  # of five rows: all; 3 and 2; 2, 2 and 1; each alone
        of_parts, parts = gradient(MODELS[name], micro_batches, scored=scored)
        assert of_parts == pytest.approx(nats, rel=1e-12)
        torch.testing.assert_close(parts, whole, atol=1e-10, rtol=0)
    _, other = gradient(MODELS[name], 2, scored=scored, seed=1)
    if MODELS[name].noise is not None:
        assert (other - whole).abs().max() > 1e-4, "masks are those of the seed, whatever the parts"


def test_an_attention_that_is_half_open_is_so_in_every_part() -> None:
    annealed = {"anneal_tokens": 400, "scored": False}
    _, whole = gradient(MODELS["canvas"], 1, **annealed)
    _, parts = gradient(MODELS["canvas"], 3, **annealed)
    torch.testing.assert_close(parts, whole, atol=1e-10, rtol=0)
    _, open_ = gradient(MODELS["canvas"], 1, scored=False)
    assert (open_ - whole).abs().max() > 1e-4


def test_a_mean_of_means_would_be_another_gradient() -> None:
    """Or the test above would hold of parts that count alike whatever is scored in them."""
    tokens_BT, scored_BT = batch()
    nats, _ = gradient(MODELS["AF"], 1, scored=True)
    model = tiny.random_model(MODELS["AF"])
    parts = [
        next_token_loss(model, tokens_BT[part], scored_BT=scored_BT[part]).item() for part in (slice(0, 3), slice(3, 5))
    ]
    assert abs(sum(parts) / 2 - nats) > 1e-3


def test_experts_balance_is_a_figure_of_the_whole_batch_and_refused_in_parts() -> None:
    config = dataclasses.replace(MODELS["AE"], experts=dataclasses.replace(EXPERTS, balance_loss=0.5))
    tokens_BT, _ = batch()
    model = tiny.random_model(config)

    def balance(part: slice) -> float:
        next_token_loss(model, tokens_BT[part])
        return torch.as_tensor(balance_loss(model)).item()

    assert abs(balance(slice(0, 5)) - (3 * balance(slice(0, 3)) + 2 * balance(slice(3, 5))) / 5) > 1e-6
    wanted = Wanted(dataclasses.replace(config, vocab_size=tiny.VOCAB_SIZE), tiny.TinyText(), ByteTokenizer())
    recipe = {**tiny.RECIPE, "lengths": (32,), "batch_tokens": 64}
    with pytest.raises(ValueError, match=r"train\.micro_batches=2 with model\.experts\.balance_loss=0\.5: .* whole ba"):
        TrainedHere(**recipe, micro_batches=2).trained_len(wanted)
    TrainedHere(**recipe).trained_len(wanted)
    without = dataclasses.replace(wanted.native, experts=EXPERTS)
    TrainedHere(**recipe, micro_batches=2).trained_len(dataclasses.replace(wanted, model=without))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"micro_batches": 0}, r"train\.micro_batches=0 must be at least 1"),
        ({"micro_batches": 6}, r"train\.micro_batches=6 is more than the 5 rows of a step of 12 tokens; make it less"),
        ({"dtype": "float16"}, r"train\.dtype='float16' is unknown; it is one of float32, bfloat16"),
        ({"trial_seed": -1}, r"train\.trial_seed=-1 must be at least 0, or null"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        step_recipe(**{"micro_batches": 1, **changes})


# ---------------------------------------------------------------- whole trainings

TRAINED: dict[str, ModelConfig] = {
    **tiny.MODELS,
    "blocks": dataclasses.replace(tiny.MODELS["diffusion"], canvas_block=8),
}


def recipe(num_steps: int = 12, **changes: Any) -> Recipe:
    """Steps of 96 tokens, in rows of 16 and of 48."""
    fixed = {"num_tokens": 96 * num_steps, "batch_tokens": 96, "lengths": (16, 48), "warmup_steps": 3}
    return Recipe(**{**fixed, "num_validations": 4, "validation_windows": 4, "validation_len": 32, **changes})


def run(name: str, chosen: Recipe, **more: Any) -> Trained:
    tokenizer = Tokenizer()
    return train(
        TRAINED[name],
        chosen,
        tiny.streams(tokenizer),
        tokenizer,
        num_tokens=chosen.num_tokens,
        learning_rate=4e-3,
        device=torch.device("cpu"),
        **more,
    )


def curve(trained: Trained, key: str) -> list[float]:
    return [point[key] for point in trained.curve]


@pytest.mark.parametrize("options", [{"micro_batches": 2}, {"dtype": "bfloat16"}], ids=str)
@pytest.mark.parametrize("name", TRAINED)
def test_an_interruption_changes_no_bit(name: str, options: dict[str, Any], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(loop, "SAVE_EVERY_S", 0.0)
    chosen = recipe(**options)
    straight = run(name, chosen)
    unfinished = tmp_path / "unfinished.safetensors"
    with pytest.raises(KeyboardInterrupt):
        run(name, chosen, resume_from=unfinished, report=tiny.Reports(interrupt_at=7))
    resumed = run(name, chosen, resume_from=unfinished)
    assert curve(resumed, "train_nats") == curve(straight, "train_nats")
    assert curve(resumed, "val_bits_per_byte") == curve(straight, "val_bits_per_byte")
    assert all(torch.equal(tensor, resumed.best[key]) for key, tensor in straight.best.items())


@pytest.mark.parametrize("name", TRAINED)
def test_parts_change_a_training_by_rounding_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    backward = torch.Tensor.backward

    def spy(self: torch.Tensor, *args: Any, **more: Any) -> None:
        sizes.append(1)
        backward(self, *args, **more)

    monkeypatch.setattr(torch.Tensor, "backward", spy)
    whole = run(name, recipe(4))
    assert len(sizes) == 4
    parts = run(name, recipe(4, micro_batches=2))
    assert len(sizes) == 4 + 8
    for key in ("train_nats", "val_bits_per_byte"):
        assert curve(parts, key) == pytest.approx(curve(whole, key), rel=2e-3)


@pytest.mark.parametrize("name", TRAINED)
def test_half_precision_learns_as_much_and_leaves_whole_weights(name: str) -> None:
    long = recipe(num_steps=40, lengths=(48,), batch_tokens=288, num_tokens=288 * 40)
    half, whole = run(name, dataclasses.replace(long, dtype="bfloat16")), run(name, long)
    assert curve(half, "val_bits_per_byte")[-1] < 0.9 * curve(half, "val_bits_per_byte")[0]
    assert curve(half, "val_bits_per_byte")[-1] == pytest.approx(curve(whole, "val_bits_per_byte")[-1], rel=0.05)
    assert curve(half, "train_nats") != curve(whole, "train_nats"), "it has an effect"
    assert {tensor.dtype for tensor in half.best.values()} == {torch.float32}


def test_matrix_products_are_half_precise_and_the_loss_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.dtype] = []
    logits_where = Model.logits_where

    def spy(self: Model, *args: Any, **more: Any) -> torch.Tensor:
        logits_MV = logits_where(self, *args, **more)
        if torch.is_grad_enabled():
            seen.append(logits_MV.dtype)
        return logits_MV

    monkeypatch.setattr(Model, "logits_where", spy)
    half = run("diffusion", recipe(2, num_validations=1, dtype="bfloat16"))
    assert set(seen) == {torch.bfloat16}
    seen.clear()
    run("diffusion", recipe(2, num_validations=1))
    assert set(seen) == {torch.float32}
    assert half.curve[0]["train_nats"] != float(torch.tensor(half.curve[0]["train_nats"]).bfloat16())


def compiled_like_eager(name: str, how: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """A compiled training has the curve of an eager one, and was compiled; `how` compiles."""
    from torch._dynamo.utils import counters

    chosen = recipe(6, num_validations=2, **options)
    eager = run(name, chosen)
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(torch, "compile", how)
    compiled = run(name, dataclasses.replace(chosen, compile=True))
    assert counters["stats"]["unique_graphs"] > 0 and counters["stats"]["calls_captured"] > 0
    assert not counters["graph_break"], counters["graph_break"]
    assert compiled.best.keys() == eager.best.keys()
    tolerance = 0.02 if options else 2e-3
    for key in ("train_nats", "val_bits_per_byte"):
        assert curve(compiled, key) == pytest.approx(curve(eager, key), rel=tolerance)
    torch._dynamo.reset()


@pytest.mark.parametrize("name", TRAINED)
def test_layers_are_traced_whole_and_train_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without generating code, which takes longer: what is traced is what compiling compiles."""
    compiled_like_eager(name, partial(torch.compile, backend="eager"), monkeypatch)


def test_scans_are_not_compiled_on_a_cpu() -> None:
    """Where the process would abort (torch 2.13, vectorised kernels of the gradient)."""
    asked = {name: Wanted(config, tiny.TinyText(), ByteTokenizer(), device="cpu") for name, config in TRAINED.items()}
    recipe = {**tiny.RECIPE, "lengths": (32,), "batch_tokens": 64}
    with pytest.raises(
        ValueError, match=r"train\.compile=true with model\.block=M on a CPU: .*train\.compile=false, or"
    ):
        TrainedHere(**recipe, compile=True).trained_len(asked["ssm"])
    for name in ("ar", "diffusion", "blocks"):
        assert TrainedHere(**recipe, compile=True).trained_len(asked[name]) == 32
    on_a_gpu = dataclasses.replace(asked["ssm"], device="cuda")
    assert TrainedHere(**recipe, compile=True).trained_len(on_a_gpu) == TrainedHere(**recipe).trained_len(asked["ssm"])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16", "micro_batches": 2}], ids=str)
@pytest.mark.parametrize("name", [name for name, config in TRAINED.items() if not config.recurrent])
def test_a_compiled_training_has_the_same_curve(name: str, options: dict[str, Any], monkeypatch) -> None:
    compiled_like_eager(name, torch.compile, monkeypatch, **options)
