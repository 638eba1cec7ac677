"""Lines, gains and bounds of masked diffusion: what is put on one line, what stands beside it, and the laws."""

from dataclasses import replace

import pandas as pd
import pytest
from synthetic_records import AR, FULL, SSM, write_sweep

from analysis import checks, diffusion_figures, laws, load, samplers

SIZES = {"output_lens": (64,), "rounds": 2, "repeats": 1}
CELLS = (
    AR,
    SSM,
    FULL,
    replace(FULL, label="Diffusion, K = L/4", schedule="L/4", steps=lambda n: n // 4),
    replace(FULL, label="Diffusion, margin, K = L", sampler="margin"),
    replace(FULL, label="Diffusion, margin, K = L/4", sampler="margin", schedule="L/4", steps=lambda n: n // 4),
    replace(FULL, label="Diffusion, K = L, dual cache", cache="dual", block_len=16, position_s=2e-6),
    replace(FULL, label="Block diffusion of 16", canvas_block=16, cache="block", bits_per_byte=1.9, position_s=2e-6),
    replace(FULL, label="Block diffusion of 4", canvas_block=4, cache="block", bits_per_byte=1.8, position_s=2e-6),
)


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    return load(write_sweep(tmp_path_factory.mktemp("runs") / "mine", paradigms=CELLS, batch_sizes=(1, 4), **SIZES))


def test_a_dial_makes_a_line_and_what_has_none_stands_beside(frames):
    found = samplers.lines(frames)
    lines = found.diffusion.groupby("way")["nfe"].agg(sorted).to_dict()
    assert lines == {
        "random": [16, 64],
        "margin": [16, 64],
        "random, dual cache, blocks of 16": [64],
        "random, block cache, trained on blocks of 16": [64],
        "random, block cache, trained on blocks of 4": [64],
    }
    assert set(found.references["label"]) == {AR.label, SSM.label}
    assert found.diffusion["workload.batch_size"].nunique() == 1, "work is equal on a figure"


def test_the_length_of_blocks_is_a_dial_too(frames):
    found = samplers.lines(frames, by_block=True).diffusion
    blocks = found.groupby("way")["block"].agg(lambda values: sorted(map(int, values))).to_dict()
    assert blocks["trained on blocks, random, block cache"] == [4, 16]
    assert blocks["trained on the whole canvas, random, dual cache"] == [16]
    assert blocks["trained on the whole canvas, random · steps L"] == [64], "other steps are another line"


def test_gains_are_against_the_uncached_one_token_a_step_of_the_same_batch(frames):
    rows = samplers.speedups(frames).set_index(["label", "workload.batch_size"])
    assert rows["base_label"].unique().tolist() == [FULL.label]
    for size in (1, 4):
        assert rows.loc[(FULL.label, size), "gain"] == pytest.approx(1)
        assert rows.loc[("Diffusion, K = L/4", size), "gain"] == pytest.approx(4, rel=0.05)
    assert samplers.speedups(load_one(frames)).empty


def load_one(frames):
    """The same records, batch 1 alone."""
    runs = frames.runs[frames.runs["workload.batch_size"] == 1]
    return type(frames)(frames.folders, runs, frames.requests, frames.training, ())


def test_errors_of_caches_are_told_look_by_look(frames):
    rows = samplers.cache_errors(frames)
    assert set(rows["way"]) == {"random, dual cache, blocks of 16"}
    assert dict(zip(rows["look"], rows["kl_nats"], strict=True)) == {1: 0.0, 2: 0.02, 3: 0.08, 5: 0.1}


def test_bounds_run_from_autoregressive_to_the_whole_canvas(frames):
    rows = samplers.bounds(frames)
    assert rows["kind"].tolist()[-3:] == ["blocks of 4", "blocks of 16", "whole canvas"]
    assert set(rows["kind"].tolist()[:-3]) == {"autoregressive"}
    assert rows["bits_per_byte_is_bound"].tolist()[-3:] == [True] * 3


def test_figures_are_chosen_by_what_varies_and_say_their_units(frames):
    choices = {choice.name: choice for choice in diffusion_figures.choose(frames)}
    assert list(choices) == ["quality_by_forwards", "quality_by_time", "blocks", "gains", "cache_error", "bounds"]
    for choice in choices.values():
        figure = choice.draw(frames)
        assert "made-up CPU" in figure.get_supxlabel()
        assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes), choice.name
        assert choice.sentence(frames).endswith(".") and "nan" not in choice.sentence(frames), choice.name
    for name in ("quality_by_forwards", "quality_by_time", "blocks"):
        labels = " ".join(axes.get_ylabel() for axes in choices[name].draw(frames).axes)
        assert "judge, bits per byte" in labels and "token entropy, nats" in labels, "never one without the other"
        names = [text.get_text() for text in choices[name].draw(frames).legends[0].get_texts()]
        assert {AR.label, SSM.label} <= set(names), "an autoregressive reference in every figure"


def test_the_laws_hold_on_lawful_records(frames):
    found = {check.law: check for check in checks.checks(frames)}
    assert {check.verdict for check in found.values()} == {checks.HOLDS}
    assert any(law.startswith("denoising: positions") for law in found)


CELL = {"workload.prompt_len": 37, "workload.output_len": 50, "workload.batch_size": 1, "model.shift_logits": True,
        "decoder.cache": "none", "decoder.sampler": "random", "decoder.sampler.steps": "L", "nfe": 50}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "positions"),
    [  # as counted in runs of the decoder, random weights
        ({}, 4350),
        ({"decoder.cache": "prefix", "decoder.block_len": 16}, 1926),
        ({"decoder.cache": "dual", "decoder.block_len": 16}, 1116),
        ({"model.canvas_block": 16}, 3441),
        ({"model.canvas_block": 4, "decoder.sampler": "first_hitting"}, 3197),
        ({"decoder.cache": "delayed", "decoder.block_len": 16}, None),
        ({"workload.batch_size": 2}, None),
    ],
)
def test_positions(changed, positions):
    assert laws.positions(pd.Series(CELL | changed)) == positions


def test_forwards_of_blocks_and_of_ancestral_sampling():
    blocks = {"decoder.block_len": 8, "decoder.sampler.steps": "L/4"}
    assert laws.forwards(pd.Series(CELL | blocks)) == 12, "shared among the blocks, the last of 2 tokens too"
    assert laws.forwards(pd.Series(CELL | {"decoder.sampler": "threshold"})) is None
    ancestral = CELL | {"decoder.sampler": "ancestral", "decoder.sampler.reuse": True, "decoder.sampler.steps": 2}
    assert laws.expected_ancestral(pd.Series(ancestral)) == pytest.approx(2 - 2 * 0.5**50)
