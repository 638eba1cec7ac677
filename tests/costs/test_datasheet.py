"""Datasheet devices: the law by hand, groups of devices, operators counted again, what is refused."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paradigms.costs import law
from paradigms.costs.datasheet import DataSheet, datasheet
from paradigms.costs.law import Efficiency
from paradigms.costs.operators import EAGER, EAGER_AROUND, FUSED, eager, fused
from paradigms.costs.prediction import DeviceModel
from paradigms.costs.reference import derived
from paradigms.costs.sheets import SHEETS
from paradigms.models.attention import AttentionConfig
from paradigms.models.config import LAYERS, ModelConfig
from paradigms.models.experts import ExpertsConfig
from paradigms.models.feed_forward import FeedForwardConfig
from paradigms.models.sliding_attention import SlidingAttentionConfig
from paradigms.models.transformers_cache import cache_argument
from paradigms.models.transformers_model import TransformersConfig
from paradigms.work import ForwardShape

GPUS = [name for name, sheet in SHEETS.items() if sheet.kind == "gpu"]
MODEL = ModelConfig(vocab_size=1000, d_model=256, block="AF", num_blocks=4, max_positions=1 << 20)
PLAIN = Efficiency(products=1.0, bandwidth=1.0, source="none")
BF16 = {"dtype": "bfloat16", "execution": "eager"}


def step(length: int, rows: int = 1) -> ForwardShape:
    return ForwardShape(phase="decode", rows=rows, tokens=1, seen=length, kept=length - 1, written=1, logits=rows)


def prompt(length: int, rows: int = 1) -> ForwardShape:
    return ForwardShape(phase="prefill", rows=rows, tokens=length, seen=length, written=length, logits=rows)


def plain(name: str, num_devices: int = 1, **changes: float) -> DataSheet:
    efficiency = Efficiency(products=1.0, bandwidth=1.0, source="none", **changes)
    return DataSheet(sheet=SHEETS[name], efficiencies={"eager": efficiency}, num_devices=num_devices)


def test_a_step_by_hand():
    """Of a device that reaches its sheet: bytes over bandwidth, operations over peaks, attention at its own ratio."""
    sheet, shape = SHEETS["a100"], step(100)
    counts = MODEL.counts(shape, itemsize=2)
    attention = 4 * 256 * 100 * 4  # two products of all heads with 100 positions, in 4 layers
    dense = counts.matmul_flops - attention + attention / law.attention_ratio(100)
    expected = dense / 312e12 + counts.other_flops / 19.5e12 + counts.bytes_moved / 2039e9
    assert plain("a100").forward_s(MODEL, shape, **BF16) == pytest.approx(expected)
    waiting = plain("a100", operator_s=1e-5).forward_s(MODEL, shape, **BF16)
    assert waiting == pytest.approx(1e-5 * eager(MODEL))  # the host is slower
    assert sheet.bytes_per_s == 2039e9


def test_masked_half_of_attention_is_not_computed():
    shape = prompt(1024)
    counts, attention = law.work(MODEL, shape, 2)
    assert counts.hidden_flops + attention == 4 * 256 * 1024 * 1024 * 4
    assert attention == 4 * 256 * (1024 * 1025 // 2) * 4


def test_attention_of_a_window_and_beside_a_scan():
    """Of a window the last positions alone; what padding and chunks of a scan hide is none of attention's."""
    window = SlidingAttentionConfig(num_heads=4, window=64)
    sliding = ModelConfig(vocab_size=1000, d_model=256, block="W", num_blocks=2, sliding_attention=window)
    visible = 64 * 65 // 2 + (200 - 64) * 64
    assert law.work(sliding, prompt(200), 2)[1] == 4 * 256 * visible * 2
    attention, mamba2, both = (ModelConfig(vocab_size=1000, d_model=256, block=block) for block in ("A", "M", "AM"))
    assert law.work(mamba2, prompt(200), 2)[1] == 0 < mamba2.counts(prompt(200), itemsize=2).hidden_flops
    assert law.work(both, prompt(200), 2)[1] == law.work(attention, prompt(200), 2)[1] > 0


def test_attention_ratio_reaches_both_published_ends():
    assert law.attention_ratio(512) == pytest.approx(0.50 / 0.85)
    assert law.attention_ratio(16_384) == pytest.approx(0.73 / 0.85)


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("num_devices", [2, 4, 8])
def test_tensor_parallel_arithmetic(name, num_devices):
    """Bytes and operations divided; two all-reduces a Transformer layer: latency, and 2 (N-1)/N of the bytes."""
    shape, sheet = prompt(512), SHEETS[name]
    one, group = (plain(name, N).parts(MODEL, shape, **BF16) for N in (1, num_devices))
    assert group.compute == pytest.approx(one.compute / num_devices)
    assert group.bandwidth == pytest.approx(one.bandwidth / num_devices)
    sent = 2 * (num_devices - 1) / num_devices * 512 * 256 * 2
    each = sheet.link_latency_s + sent / sheet.link_bytes_per_s
    assert one.links == 0 and group.links == pytest.approx(2 * MODEL.num_blocks * each)
    assert plain(name, num_devices).memory_bytes == num_devices * sheet.memory_bytes


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("execution", ["eager", "compile", "cuda_graph"])
def test_more_work_is_never_faster(name, execution):
    device = datasheet(name)

    def seconds(shape, model=MODEL):
        return device.forward_s(model, shape, dtype="bfloat16", execution=execution)

    for grow in (
        [seconds(step(length)) for length in (1, 64, 1000, 30_000, 500_000)],
        [seconds(step(1000, rows)) for rows in (1, 2, 7, 64, 1024)],
        [seconds(prompt(length)) for length in (1, 2, 64, 4096, 65_536)],
        [seconds(step(64), ModelConfig(vocab_size=1000, d_model=256, num_blocks=n)) for n in (1, 2, 8, 64)],
    ):
        assert grow == sorted(grow)


def test_more_bandwidth_and_memory_help_a_step():
    large = ModelConfig(
        vocab_size=32_000,
        d_model=8192,
        num_blocks=80,
        attention=AttentionConfig(num_heads=64),
        feed_forward=FeedForwardConfig(width=28_672),
    )
    times = [datasheet(name).forward_s(large, step(64), **BF16) for name in ("a6000", "a100", "h100", "h200")]
    assert times == sorted(times, reverse=True)
    assert datasheet("h200").bound_by(large, step(64), dtype="bfloat16", execution="cuda_graph") == "bandwidth"
    assert datasheet("a6000").bound_by(large, step(64), **BF16) == "bandwidth"
    assert datasheet("h200").bound_by(large, prompt(8192), **BF16) == "compute"
    assert datasheet("h200").bound_by(MODEL, step(64), **BF16) == "overhead"


@pytest.mark.parametrize("name", SHEETS)
def test_every_sheet_is_a_device_with_a_source(name):
    sheet = SHEETS[name]
    device: DeviceModel = datasheet(name)
    assert sheet.source and sheet.dtype in sheet.flops_per_s and device.memory_bytes > 1e10
    assert device.forward_s(MODEL, step(64), dtype=sheet.dtype, execution="eager") > 0
    assert device.decoder_s(None, 1000, step(64), None) > 0  # type: ignore[arg-type]
    assert (device.spread is None) == (sheet.kind != "gpu")


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: datasheet("h20"), "device=h20 is on no datasheet.*did you mean h200"),
        (lambda: datasheet("cpu-sheet", num_devices=2), "no link"),
        (lambda: datasheet("h200", num_devices=0), "num_devices=0"),
        (lambda: datasheet("cpu-sheet").forward_s(MODEL, step(4), **BF16), "dtype=bfloat16.*float32"),
        (
            lambda: datasheet("cpu-sheet").forward_s(MODEL, step(4), dtype="float32", execution="cuda_graph"),
            "execution=cuda_graph.*use eager",
        ),
        (
            lambda: datasheet("h200").forward_s(
                TransformersConfig(path="x", max_positions=4, vocab_size=4), step(4), **BF16  # type: ignore[arg-type]
            ),
            "operators are not counted",
        ),
    ],
    ids=["unknown", "no link", "no devices", "dtype", "execution", "not native"],
)  # fmt: skip
def test_refused_with_what_is_allowed(act, message):
    with pytest.raises(ValueError, match=message):
        act()


VIEWS = {
    "view", "_unsafe_view", "transpose", "t", "permute", "slice", "select", "unsqueeze", "squeeze", "expand", "split",
    "split_with_sizes", "alias", "detach", "as_strided", "narrow", "unbind", "chunk", "reshape", "flatten", "unfold",
    "empty", "empty_like", "new_empty", "promote_types",
}  # fmt: skip


class _Counted(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    @property
    def operators(self):
        return sum(number for name, number in self.calls.items() if name not in VIEWS)


def operators_of_a_step(block: str, num_blocks: int) -> int:
    experts = ExpertsConfig(width=32) if block == "E" else None
    model = ModelConfig(vocab_size=64, d_model=64, block=block, num_blocks=num_blocks, experts=experts).build().eval()
    tokens = torch.randint(0, 64, (2, 5))
    with torch.inference_mode():
        state = model.new_state(2, 40)
        model(tokens, state, logits_at=slice(-1, None))
        with _Counted() as counted:
            model(tokens[:, :1], state, logits_at=slice(-1, None))
    return counted.operators


@pytest.mark.parametrize("letter", LAYERS)
def test_operators_of_a_layer_are_those_that_run(letter):
    """The difference of three layers and two, and what is around them."""
    two, three = (operators_of_a_step(letter, number) for number in (2, 3))
    assert three - two == EAGER[LAYERS[letter].key]
    assert two - 2 * (three - two) == EAGER_AROUND
    assert FUSED[LAYERS[letter].key] <= three - two


def test_operators_add_up():
    assert eager(MODEL) == EAGER_AROUND + 4 * (EAGER["attention"] + EAGER["feed_forward"])
    assert fused(MODEL) == 3 + 4 * 10


def test_operators_of_transformers_are_about_those_that_are_stated():
    """A token of Qwen2 as the library computes it; other versions of it call a few more or less."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    def operators(layers: int) -> int:
        config = Qwen2Config(
            vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4,
            num_key_value_heads=2,
        )  # fmt: skip
        model, tokens = Qwen2ForCausalLM(config).eval(), torch.randint(0, 64, (1, 5))
        name = cache_argument(model)
        with torch.inference_mode():
            cache = model(tokens, use_cache=True).past_key_values
            with _Counted() as counted:
                model(tokens[:, :1], use_cache=True, **{name: cache})
        return counted.operators

    two, three = operators(2), operators(3)
    assert three - two == pytest.approx(derived.THEIR_OPERATORS, abs=5)
    assert 3 * two - 2 * three == pytest.approx(derived.THEIR_OPERATORS_AROUND, abs=6)
