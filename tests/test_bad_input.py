"""Bad input on the command line is one clear line, and nothing runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra

from paradigms import cli
from paradigms.measure.environment import gpu_names

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def command(
    loader: ConfigLoader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str]]]:
    """Runs the command line in this process: exit code and stderr."""
    import sys

    monkeypatch.setattr(sys, "argv", ["paradigms"])
    monkeypatch.setattr("paradigms.lane.identities", lambda: pytest.fail("something was run"))
    kept = GlobalHydra.instance().hydra

    def call(*arguments: str) -> tuple[int, str]:
        GlobalHydra.instance().clear()
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        code = cli.main([*arguments, f"sweep.dir={tmp_path}/runs"])
        return code, capsys.readouterr().err

    yield call
    GlobalHydra.instance().hydra = kept


RANDOM = ("train=random", "measure=latency", "workload=random_prompts")
BAD = {
    "unknown group option": (["paradigm=arr"], ["paradigm=arr is unknown", "did you mean ar"]),
    "unknown key": (["workload.output_length=8"], ["workload.output_length is unknown", "did you mean output_len"]),
    "unknown key of a model": (["+model.colour=red", *RANDOM], ["model.colour is unknown"]),
    "wrong type": (["workload.output_len=long"], ["workload.output_len='long'", "a whole number"]),
    "wrong value": (["workload.stop=never"], ["workload.stop='never' is unknown", "length, natural"]),
    "too small": (["workload.batch_size=0"], ["workload.batch_size=0 is too small", "at least 1"]),
    "contended for ever": (["measure.contended_retries=3"], ["measure.contended_retries=3 must be at most 2"]),
    "repeats the wrong way round": (["measure.min_repeats=9"], ["measure.max_repeats=5 is below min_repeats=9"]),
    "threads": (["device.threads=1000", *RANDOM], ["device.threads=1000 is more than the", "cores"]),
    "temperature": (["decoder.temperature=-1", *RANDOM], ["decoder.temperature=-1 is negative"]),
    "diffusion with a KV cache": (
        ["model=denoiser", *RANDOM],
        ["decoder=autoregressive needs a causal model", "cannot keep a KV cache", "masked-diffusion decoder"],
    ),
    "diffusion, decoded autoregressively": (
        ["paradigm=diffusion", "decoder=autoregressive", *RANDOM],
        ["decoder=masked_diffusion", "an autoregressive decoder needs a causal model, as in paradigm=ar"],
    ),
    "an unknown sampler": (
        ["paradigm=diffusion", "decoder/sampler=margn"],
        ["decoder/sampler=margn is unknown", "did you mean margin"],
    ),
    "an unknown option of a sampler": (
        ["paradigm=diffusion", "decoder.sampler.treshold=0.5"],
        ["decoder.sampler.treshold is unknown"],
    ),
    "a sampler of an autoregressive model": (
        ["paradigm=ar", "decoder/sampler=margin"],
        ["decoder/sampler is no part of the decoder chosen here", "decoder=masked_diffusion, as in paradigm=diffusion"],
    ),
    "a cache set like a value": (
        ["paradigm=diffusion", "decoder.cache=dual"],
        ["decoder.cache is chosen with a slash: decoder/cache=..."],
    ),
    "a sampler set like a value": (
        ["paradigm=diffusion", "decoder.sampler=margin"],
        ["decoder.sampler is chosen with a slash: decoder/sampler=..."],
    ),
    "steps of a sampler that has none": (
        ["paradigm=diffusion_16", "decoder/sampler=threshold"],
        ["decoder.sampler.steps is unknown", "threshold"],
    ),
    "an exact cache without blocks": (
        ["paradigm=diffusion", "decoder/cache=block", *RANDOM],
        ["decoder/cache=block is exact only", "model.canvas_block=null"],
    ),
    "no refresh": (
        ["paradigm=diffusion", "decoder/cache=dual", "decoder.cache.refresh_every=0", *RANDOM],
        ["decoder.cache.refresh_every=0 must be at least 1"],
    ),
    "no block": (["paradigm=diffusion", "decoder.block_len=0", *RANDOM], ["decoder.block_len=0 must be at least 1"]),
    "unmasking a causal model": (
        ["decoder=masked_diffusion", *RANDOM],
        ["decoder=masked_diffusion needs a model trained to undo masks", "noise=None"],
    ),
    "a peer of another kind": (
        ["model=denoiser", "decoder=transformers_generate", *RANDOM],
        ["no model of transformers computes this network", "model.causal=False"],
    ),
    "more steps than tokens": (
        ["paradigm=diffusion_16", "workload.output_len=8", *RANDOM],
        ["decoder.sampler.steps=16 is more than workload.output_len=8", "use at most 8 steps"],
    ),
    "no number of steps": (
        ["paradigm=diffusion", "decoder.sampler.steps=L/0", *RANDOM],
        ["decoder.sampler.steps='L/0'"],
    ),
    "no probability": (
        ["paradigm=diffusion_threshold", "decoder.sampler.threshold=1.5"],
        ["decoder.sampler.threshold=1.5", "(0, 1]"],
    ),
    "beyond the position limit": (
        ["workload.output_len=1000", *RANDOM],
        ["workload.prompt_len=64 + workload.output_len=1000 is 1064", "model.max_positions=576"],
    ),
    "longer than trained": (
        ["train=quick", "workload.output_len=600", "model.max_positions=1000"],
        ["664 positions (prompt and output) are more than the 576 that the model was trained on"],
    ),
    "trained on less than a held-out window": (
        ["train=quick", "train.lengths=[128]", "workload.output_len=16"],
        ["513 positions (a held-out window) are more than the 128", "train.lengths"],
    ),
    "trained beyond the position limit": (
        ["train=quick", "model.max_positions=256", "workload.output_len=16"],
        ["train.lengths has 576, more than model.max_positions=256"],
    ),
    "quality of random weights": (["train=random"], ["train=random", "measure.quality=true", "measure=latency"]),
    "a threshold on random weights": (
        ["paradigm=diffusion_threshold", *RANDOM],
        ["depends on the tokens that come out"],
    ),
    "experts on random weights": (
        ["paradigm=experts", "train=random", "measure=latency"],
        ["a router that has learnt nothing", "workload.prompts=random"],
    ),
    "a natural stop on random weights": (
        ["train=random", "measure=latency", "workload=natural_stop"],
        ["workload.stop=natural ends where the text ends"],
    ),
    "stop strings at a fixed length": (
        ["workload.stop_strings=[x]"],
        ["workload.stop_strings needs workload.stop=natural"],
    ),
    "heads that do not divide": (
        ["model.attention.num_heads=5", *RANDOM],
        ["model.d_model=128 does not split into model.attention.num_heads=5"],
    ),
    "a size out of reach": (["model.target_parameters=10", *RANDOM], ["model.target_parameters=10 is out of reach"]),
    "an SSM that looks both ways": (["paradigm=ssm", "model.causal=false", *RANDOM], ["model.causal=true"]),
    "a vocabulary that is not the tokenizer's": (
        ["model.vocab_size=100", *RANDOM],
        ["model.vocab_size=100 does not fit tokenizer.vocab_size=2048"],
    ),
    "a byte tokenizer of another size": (["tokenizer=byte", "tokenizer.vocab_size=300"], ["tokenizer.vocab_size=300"]),
    "no such corpus": (["corpus=local_text", "corpus.path=/nowhere.txt", *RANDOM], ["corpus.path='/nowhere.txt'"]),
    "a corpus without a path": (["corpus=local_text", *RANDOM], ["corpus.path"]),
    "no such checkpoint": (["train=checkpoint", "train.path=/nowhere"], ["no checkpoint in /nowhere", "card.json"]),
    "a checkpoint without a path": (["train=checkpoint"], ["train.path"]),
    "a recipe that fits no batch": (["train=quick", "train.batch_tokens=100"], ["train.batch_tokens=100", "576"]),
    "a pretrained model without a path": (["model=pretrained"], ["model.path has no default; give it: model.path=..."]),
    "a pretrained model that is nowhere": (
        ["model=pretrained", "model.path=/nowhere"],
        ["model.path=/nowhere does not exist", "owner/name on the hub"],
    ),
    "no such experiment": (["experiment=none_such"], ["experiment=none_such is unknown"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line_and_nothing_runs(case, command, tmp_path):
    arguments, words = BAD[case]
    code, error = command(*arguments)
    assert code == 2 and len(error.splitlines()) == 1 and error.startswith("error: "), error
    for word in words:
        assert word in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(bool(gpu_names()), reason="this machine has a GPU")
def test_cuda_where_there_is_none(command):
    code, error = command("device=cuda", *RANDOM)
    assert code == 2 and "device.name=cuda, but this machine shows no NVIDIA GPU; use device=cpu" in error


def test_an_empty_corpus_file(command, tmp_path):
    (tmp_path / "empty.txt").touch()
    code, error = command("corpus=local_text", f"corpus.path={tmp_path}/empty.txt", *RANDOM)
    assert code == 2 and "is empty" in error and len(error.splitlines()) == 1


def test_a_corrupted_checkpoint(command, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "card.json").write_text("{")
    code, error = command("train=checkpoint", f"train.path={tmp_path}/mine")
    assert code == 2 and "card.json is damaged" in error and len(error.splitlines()) == 1


def test_every_impossible_cell_of_a_grid_is_named(command):
    code, error = command("paradigm=ar,diffusion_16", "workload.output_len=8,16,600", *RANDOM)
    lines = error.splitlines()
    assert code == 2 and "3 of 6 cells are impossible, so nothing was run" in lines[0] and len(lines) == 4
