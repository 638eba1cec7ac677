"""A device of known law, timed by nobody: the cells say what it says, and predictions must say the same elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from paradigms.build import build
from paradigms.cli import CONF, compose
from paradigms.costs import decoder_cells, layer_cells
from paradigms.costs.calibrate import described
from paradigms.costs.calibrated import CalibratedDevice
from paradigms.costs.layer_laws import ENDS, OF_MODE, Surroundings, ends_features, layer_features
from paradigms.costs.prediction import predict
from paradigms.measure.calibration import BandwidthPoint, Calibration, MatmulPoint
from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.forward_pass import ForwardPass
from paradigms.work import BatchShape, ForwardShape

EAGER = {"dtype": "float32", "execution": "eager"}
FACTORS = {  # of every kind; each kind is slower than the one before by a part
    "overhead": 3e-5,
    "steps": 2e-6,
    "products": 1.2,
    "weights": 1.4,
    "state": 2.0,
    "inner": 1.5,
    "hidden": 0.3,
    "other": 4.0,
    "activations": 1.1,
    "gathered": 0.7,
}
DECODER = {"overhead": 2e-4, "drawn": 3e-9, "greedy": 1e-9, "top_k": 7e-9, "top_p": 4e-8, "canvas": 6e-8}
DECODER |= {"drawn calls": 2e-5, "greedy calls": 1e-5, "top_k calls": 6e-5, "top_p calls": 8e-5}
DECODER |= {"block": 1e-7, "begun": 3e-4, "asked": 2e-7}
CACHE_S = 5e-5


def peaks() -> Calibration:
    """A machine whose rates are round numbers."""
    return Calibration(
        machine="made up",
        machine_line="made up, 1 core",
        device="cpu",
        device_name="made up",
        threads=1,
        torch_version="0",
        date="2026-01-01T00:00:00Z",
        took_s=1.0,
        noise={},
        bandwidth=tuple(
            BandwidthPoint(working_set_bytes=size, bytes_per_s=rate, low=rate, high=rate, method="sum")
            for size, rate in ((2**16, 8e10), (2**21, 4e10), (2**25, 1e10))
        ),
        matmul=tuple(
            MatmulPoint(dtype="float32", rows=rows, k=128, n=344, flops_per_s=rate, low=rate, high=rate)
            for rows, rate in ((1, 5e9), (32, 4e10), (512, 9e10))
        ),
        dispatch_s=1e-6,
    )


def true_seconds(model: ModelConfig, shape: ForwardShape) -> float:
    """What the device takes."""
    mode = layer_cells.mode_of(model, shape, dtype="float32")
    run = ForwardPass(model=model, shape=shape, itemsize=4)
    near = Surroundings.of(run, peaks(), "float32")

    def of(features: Any, slower: float) -> float:
        return slower * sum(FACTORS[name] * value for name, value in features.items())

    kinds = [layer_cells.kind_of(part) for part in model.parts]
    layers = (
        of(layer_features(run, part, near, mode), 1 + 0.01 * len(kind) + 0.02 * (ord(kind[0]) - ord("A")))
        for kind, part in zip(kinds, model.parts, strict=True)
    )
    return of(ends_features(run, near, mode), 1.0) + sum(layers)


def true_decoder_s(cell: decoder_cells.DecoderCell) -> float:
    decoder = build(cell.decoder)
    shapes = decoder.forwards(decoder_cells.model_of(cell), cell.batch, tokens_per_forward=cell.tokens_per_forward)
    total = 0.0
    for shape in shapes:
        features = decoder_cells.decoder_features(decoder, cell.vocab_size, shape, cell.batch)
        cached = len(decoder_cells.kinds_of(decoder)) - 1
        total += shape.times * (sum(DECODER[name] * value for name, value in features.items()) + cached * CACHE_S)
    return total


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    layers = [replace(cell, visits_s=(true_seconds(cell.model, cell.shape),) * 3) for cell in layer_cells.layer_cells()]
    decoders = [
        replace(cell, tokens_per_forward=1.0 if build(cell.decoder).depends_on_values else None)
        for cell in decoder_cells.decoder_cells()
    ]
    decoders = [replace(cell, visits_s=(true_decoder_s(cell),) * 3) for cell in decoders]
    stored = {
        "layers": layer_cells.to_json(layers, **EAGER),
        "decoders": decoder_cells.to_json(decoders),
    }
    return replace(peaks(), **json.loads(json.dumps(stored)))  # as a file keeps it


@pytest.fixture(scope="module")
def device(calibration: Calibration) -> CalibratedDevice:
    return CalibratedDevice(calibration, memory_bytes=2**30)


def shape(rows: int, tokens: int, kept: int = 0, *, keeps: bool = True, logits: int | None = None) -> ForwardShape:
    return ForwardShape(
        phase="decode",
        rows=rows,
        tokens=tokens,
        seen=kept + tokens,
        kept=kept,
        written=tokens if keeps else 0,
        logits=rows if logits is None else logits,
    )


SHAPES = {
    "token": shape(1, 1, 130),
    "rows": shape(12, 1, 130),
    "prompt": shape(1, 64),
    "batch of prompts": shape(4, 200),
    "uncached": shape(1, 170, keeps=False, logits=170),
}
PARADIGMS = ("ar", "gqa", "mla", "sliding", "experts", "mamba", "ssm", "mamba3", "jamba", "zamba", "samba", "hymba")


def test_features_of_attention_by_hand() -> None:
    """A prompt of 512 tokens, the rows of a calibrated rate: products, both halves of the mask, bytes."""
    d, T = 128, 512
    model = ModelConfig(vocab_size=500, d_model=d, block="A", num_blocks=1, attention=AttentionConfig(num_heads=4))
    run = ForwardPass(model=model, shape=shape(1, T), itemsize=4)
    near = Surroundings.of(run, peaks(), "float32")
    weights, pairs, seen = 4 * d * d, T * T, T * (T + 1) // 2
    assert near.peak == 9e10 and near.stream_s(8e10) == pytest.approx(1.0)
    found = layer_features(run, model.parts[0], near, "tokens")
    assert found == pytest.approx({
        "overhead": 1.0,
        "steps": 0.0,
        "products": 2 * T * weights / 9e10,
        "inner": 4 * d * seen / 9e10,
        "hidden": 4 * d * (pairs - seen) / 9e10,
        "other": model.parts[0].other_flops(run) / 9e10,
        "weights": 4 * weights / near.bandwidth,
        "state": 4 * 2 * d * T / near.bandwidth,
        "activations": 4 * T * (d + weights / d) / 8e10,
    })  # fmt: skip
    ends = ends_features(run, near, "tokens")
    assert ends["products"] == pytest.approx(2 * d * 500 / 5e9)  # one row of logits, at the rate of one row
    assert ends["weights"] == pytest.approx(4 * d * 500 / near.bandwidth)
    assert ends["activations"] == pytest.approx(4 * (T * d + 500) / 8e10)


@pytest.mark.parametrize("paradigm", [*PARADIGMS, "diffusion"])
def test_networks_that_were_not_timed_are_predicted_as_they_are(device: CalibratedDevice, paradigm: str) -> None:
    model = build(compose([f"paradigm={paradigm}"])["model"])
    for name, asked in SHAPES.items():
        if not model.causal and asked.written:
            continue
        predicted = device.forward_s(model, asked, **EAGER)
        assert predicted == pytest.approx(true_seconds(model, asked), rel=0.02), name


def test_laws_fit_cells_of_their_own_form(device: CalibratedDevice) -> None:
    assert max(abs(each.error) for each in device.residuals()) < 1e-3
    assert device.spread < 0.1
    lines = described(device, residuals=True)
    assert "made up" in lines[0] and len(lines) > 60


def test_what_the_ends_cost_is_told_from_what_layers_cost(device: CalibratedDevice) -> None:
    for mode in OF_MODE:
        ends = device.laws.laws[ENDS, mode].factors
        assert ends["overhead"] == pytest.approx(FACTORS["overhead"], rel=0.05)


@pytest.mark.parametrize(
    ("paradigm", "most"), [("ar", 4.2), ("ssm", 2.1), ("mamba", 2.1), ("sliding", 2.1)], ids=lambda value: str(value)
)
def test_prompts_beyond_those_timed(device: CalibratedDevice, paradigm: str, most: float) -> None:
    """Time grows with the length at least, and with its square at most where all is attended to."""
    model = build(compose([f"paradigm={paradigm}", "model.max_positions=40000"])["model"])
    times = [device.forward_s(model, shape(1, length), **EAGER) for length in (4096, 8192, 16384, 32768)]
    for shorter, longer in pairwise(times):
        assert 1.9 < longer / shorter < most


def test_batches_beyond_those_timed(device: CalibratedDevice) -> None:
    model = build(compose(["paradigm=ar"])["model"])
    times = [device.forward_s(model, shape(rows, 1, 100), **EAGER) for rows in (64, 128, 256, 1024)]
    assert times == sorted(times)
    assert times[-1] < 1024 / 64 * times[0]


def test_large_weights_are_read_no_faster_than_memory_can(calibration: Calibration) -> None:
    """Even where the fit has found weights to cost nothing."""
    device = CalibratedDevice(calibration, memory_bytes=2**36)
    for law in device.laws.laws.values():
        law.factors["weights"] = 0.0
    model = ModelConfig(vocab_size=32_000, d_model=2048, num_blocks=24)
    seconds = device.forward_s(model, shape(1, 1, 100), **EAGER)
    assert seconds > model.num_parameters() * 4 / 1e10


def test_bounds(device: CalibratedDevice) -> None:
    small = build(compose(["paradigm=ar"])["model"])
    large = ModelConfig(vocab_size=32_000, d_model=2048, num_blocks=24)
    assert device.bound_by(small, shape(1, 1, 10), **EAGER) == "overhead"
    assert device.bound_by(large, shape(1, 1, 10), **EAGER) == "bandwidth"
    assert device.bound_by(large, shape(1, 400), **EAGER) == "compute"


@pytest.mark.parametrize(
    "overrides",
    [
        ["decoder=autoregressive"],
        ["decoder=autoregressive", "decoder.temperature=0.0"],
        ["paradigm=diffusion", "decoder.sampler.steps=L/2"],
        ["paradigm=diffusion", "decoder/sampler=low_confidence", "decoder.sampler.steps=8"],
        ["paradigm=diffusion", "decoder/cache=prefix", "decoder.block_len=8"],
    ],
    ids=lambda overrides: ",".join(overrides),
)
def test_decoders_cost_beside_their_forwards(device: CalibratedDevice, overrides: list[str]) -> None:
    config = compose(overrides)
    model, decoder, batch = (
        build(config["model"]),
        build(config["decoder"]),
        BatchShape(rows=3, prompt_len=20, output_len=40),
    )
    cell = decoder_cells.DecoderCell(decoder=config["decoder"], batch=batch, vocab_size=model.vocab_size)
    forwards_s = sum(each.times * true_seconds(model, each) for each in decoder.forwards(model, batch))
    predicted = predict(model, decoder, batch, device)
    assert predicted.e2e_s == pytest.approx(forwards_s + true_decoder_s(cell), rel=0.03)


def test_every_native_network_of_conf_is_calibrated(device: CalibratedDevice) -> None:
    known = {kind for kind, _ in device.laws.laws}
    foreign = {"pretrained", "transformers", "diffusion_gemma", "smollm2_135m"}
    for path in sorted((CONF / "model").glob("*.yaml")):
        if path.stem not in foreign:
            model = build(compose([f"model={path.stem}"])["model"])
            assert {layer_cells.kind_of(part) for part in model.parts} <= known, path.stem


@pytest.mark.parametrize(
    ("model", "how", "named"),
    [
        (ModelConfig(vocab_size=64), {"dtype": "bfloat16", "execution": "eager"}, "dtype=bfloat16"),
        (ModelConfig(vocab_size=64), {"dtype": "float32", "execution": "compile"}, "execution=compile"),
        ("a model of a library", EAGER, "str"),
    ],
    ids=["dtype", "execution", "foreign"],
)
def test_what_was_not_calibrated_is_refused(device: CalibratedDevice, model: Any, how: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        device.forward_s(model, shape(1, 1, 10), **how)


def test_kinds_that_were_not_calibrated_are_refused(device: CalibratedDevice) -> None:
    from paradigms.models.attention import AttentionConfig

    odd = ModelConfig(vocab_size=64, attention=AttentionConfig(rope_theta=None, num_kv_heads=1, qk_norm=True))
    with pytest.raises(ValueError, match=r"A\.gqa\.no_positions\.qk_norm.*KINDS"):
        device.forward_s(odd, shape(1, 1, 10), **EAGER)
    told = build(compose(["model=dit"])["model"])
    with pytest.raises(ValueError, match="conditioning"):
        device.forward_s(told, shape(1, 10, keeps=False), **EAGER)
    both = build(compose(["decoder.top_k=5", "decoder.top_p=0.5"])["decoder"])
    with pytest.raises(ValueError, match=r"top_k\+top_p"):
        device.decoder_s(both, 64, shape(1, 1, 10), BatchShape(rows=1, prompt_len=4, output_len=4))


def test_without_layers_there_is_no_device() -> None:
    with pytest.raises(ValueError, match="calibrate"):
        CalibratedDevice(peaks(), memory_bytes=1)


def test_decoders_of_libraries_are_refused(device: CalibratedDevice) -> None:
    config = compose(["paradigm=transformers_generate"])
    model, decoder = build(config["model"], "model"), build(config["decoder"], "decoder")
    batch = BatchShape(rows=1, prompt_len=4, output_len=4)
    with pytest.raises(ValueError, match="decoder TransformersGenerate is not calibrated"):
        predict(model, decoder, batch, device, dtype="float32", execution="eager")
