"""Every file of a cell composes, builds, passes its check and runs with a tiny model, a new one at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import their_denoisers
import theirs
import tiny
from conf.files import (
    EXPERIMENTS,
    FILES,
    NESTED,
    OF_A_CELL,
    OF_CANVASES,
    OF_OTHERS,
    OF_TASKS,
    TASKS,
    TASKS_ALIKE,
    TRAINED,
    cell_config,
    run,
    shrunk,
    slow_if,
)
from hydra.utils import get_class, get_object
from omegaconf import OmegaConf

from paradigms import cli, zoo
from paradigms.build import build
from paradigms.cell import Cell
from paradigms.measure.environment import gpu_names
from paradigms.models.config import PARTS, ModelConfig

pytestmark = pytest.mark.usefixtures("home")


def overrides_for(name: str, texts: dict[str, Path]) -> list[str]:
    """What makes the choice of one file a whole, possible cell."""
    group, _, option = name.rpartition("/")
    more: list[str] = []
    if group == "task" or name in OF_TASKS:  # these go together
        return [f"task={option if option in TASKS else 'star_graph'}"]
    if group in NESTED:
        on_blocks = ["model.canvas_block=16", "decoder.block_len=16"] if name == "decoder/cache/block" else []
        return ["paradigm=diffusion", f"{group}={option}", *on_blocks, *(["train=quick"] if on_blocks else TRAINED)]
    if group in ("size", "sized"):  # a size, and what it is for one kind of model
        model, _, size = option.rpartition("_")
        kind = {"denoiser": "diffusion", "mamba": "mamba", "mamba2": "ssm"}.get(model, "ar")
        return [f"paradigm={kind}", f"size={size}", "train=random", "measure=latency"]
    if group in ("model", "decoder"):
        more = ["model=denoiser", "decoder=masked_diffusion"] if _denoises(group, option) else []
        more = [line for line in more if not line.startswith(f"{group}=")]
    if group == "corpus":
        more = (
            [f"corpus.path={texts[option]}"]
            if option in texts
            else ["corpus.path=somebody/some-set"] * (option == "hub")
        )
    if name == "train/checkpoint":
        more = ["train.path=somewhere"]
    if name == "train/from_ar":
        more = ["paradigm=diffusion"]
    if name == "train/random":
        more = ["measure=latency"]
    if group == "tokenizer":
        more = ["train=quick"]  # the zoo has models of one vocabulary
    return [f"{group}={option}", *more, *([] if group == "train" else TRAINED)]


def _denoises(group: str, option: str) -> bool:
    """Whether a file speaks of undoing masks: a model that was trained to, a decoder that refuses any other."""
    values = OmegaConf.load(cli.CONF / group / f"{option}.yaml")
    if group == "model":
        return values.get("noise") is not None
    values.pop("defaults", None)
    try:
        decoder = build(OmegaConf.to_container(values))
        decoder.check(ModelConfig(vocab_size=50), output_len=128)
    except ValueError:
        return True
    return False


def in_the_zoo(cell: Cell) -> bool:
    try:
        zoo.find(cell.model)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", OF_A_CELL)
def test_a_file_composes_builds_and_passes_its_check(name, compose, texts, monkeypatch):
    overrides = overrides_for(name, texts)
    cell = build(cell_config(compose(*overrides)))
    if name.startswith(("model/", "paradigm/")) and not in_the_zoo(cell):
        cell = build(cell_config(compose(*overrides, "train=quick")))
    if name == "train/checkpoint":
        with pytest.raises(ValueError, match="no checkpoint in somewhere"):
            cell.check()
    elif name == "train/zoo" and TRAINED:
        with pytest.raises(ValueError, match="the zoo has no model of this config"):
            cell.check()
    elif name == "device/cuda" and not gpu_names():
        with pytest.raises(ValueError, match="shows no NVIDIA GPU"):
            cell.check()
    else:
        cell.check()


SPELLED_OUT = [name for name in OF_A_CELL if name.startswith(("model/", "decoder/"))]
SPELLED_OUT += [name for name in OF_CANVASES if name.startswith("decoder/")]


@pytest.mark.parametrize("name", SPELLED_OUT)
def test_a_file_spells_out_every_field_so_that_an_override_needs_no_plus(name):
    values = OmegaConf.to_container(OmegaConf.load(cli.CONF / f"{name}.yaml"))
    assert isinstance(values, dict)
    for where, given in described(values, name):
        kind = get_class(given["_target_"])
        fields = {field.name for field in dataclasses.fields(kind)}
        chosen = {group for choice in given.get("defaults", ()) if isinstance(choice, dict) for group in choice}
        assert fields - given.keys() - set(PARTS) - chosen == set(), where


def described(values: dict[str, Any], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every section of a file that names a dataclass."""
    if dataclasses.is_dataclass(get_object(values["_target_"])):
        yield where, values
    for name, part in values.items():
        if isinstance(part, dict):
            yield from described(part, f"{where}: {name}")


PARADIGMS = {name.partition("/")[2] for name in FILES if name.startswith("paradigm/")}
RUN = [  # a model with a paradigm of its name runs as that
    name
    for name in OF_A_CELL
    if name not in ("corpus/hub", "device/cuda", *(f"corpus/{task}" for task in TASKS))  # these run as task/...
    and not (name.startswith("model/") and name[6:] in PARADIGMS)
]


@pytest.mark.parametrize("name", [slow_if(name, name in TASKS_ALIKE) for name in RUN])
def test_a_file_runs_with_a_tiny_model(name, compose, texts, monkeypatch, tmp_path):
    group = name.partition("/")[0]
    config = shrunk(cell_config(compose(*overrides_for(name, texts))), keep=group)
    if group in ("corpus", "tokenizer") and name not in OF_TASKS:  # text alone is of interest
        config["train"] = {"_target_": "paradigms.weights.RandomWeights"}
        config["measure"] |= {"quality": False, "memory": False}
    if name.startswith(NESTED):  # tests/decoding looks at what they do
        config["measure"] |= {"quality": False, "memory": False}
    if group not in ("paradigm", "measure", "task"):  # whose memory is measured does not change with the other files
        config["measure"] |= {"memory": False}
    if name in ("train/zoo", "train/checkpoint"):
        folder = trained_folder(config)
        monkeypatch.setattr(zoo, "FOLDER", tmp_path / "zoo")
        zoo.publish(folder, "tiny", {})
        config["train"] |= {"path": str(folder)} if name == "train/checkpoint" else {}
    elif (
        config["train"].get("source") == "train" and config["workload"]["prompts"] != "task"
    ):  # quick and full: the same recipe, a few steps
        config["train"] |= {"num_tokens": 3000, "probe_tokens": 600, "batch_tokens": 576}
        config["train"] |= {"num_validations": 2, "validation_windows": 2, "validation_len": 32}
        config["train"] |= {"start_from": None}  # the zoo's models are larger
        config["train"] |= {"compile": False}  # takes its time; tests/training/test_micro_batches.py does it
        config["train"] |= {"anneal_tokens": config["train"]["anneal_tokens"] // 300}
    _cell, observed, tables = run(config)
    if group == "train" and name != "train/random":
        assert tables["training"] and observed["checkpoint_tokens"] > 0
    if group == "measure":
        assert bool(tables["tokens"]) == config["measure"]["tokens"]


ANSWERING = [[f"task={task}"] for task in sorted(TASKS)] + [
    ["experiment=tasks_tiny", "task=mqar"],
    ["experiment=tasks_gpu", "task=mqar"],
    ["experiment=recall"],
]


@pytest.mark.parametrize("paradigm", ["ar", "ssm", "diffusion_top1", "diffusion_remasking"])
@pytest.mark.parametrize("asked", ANSWERING, ids=" ".join)
def test_a_task_asks_every_paradigm_for_the_likeliest_answer(asked, paradigm, compose):
    """Draws would cost most whoever has most symbols to draw."""
    config = compose(*asked, f"paradigm={paradigm}")
    assert config.workload.prompts == "task" and config.decoder.temperature == 0


@pytest.mark.parametrize("name", OF_OTHERS)
def test_a_file_of_others_runs_with_a_tiny_folder(name, compose, tmp_path):
    group, _, option = name.partition("/")
    denoiser = {kind.lower(): kind for kind in their_denoisers.CONFIGS}.get(option)
    write = theirs.write_folder if denoiser is None else partial(their_denoisers.write_folder, kind=denoiser)
    folder = write(tmp_path / "theirs")
    chosen = [f"{group}={option}"] if group in ("model", "paradigm") else ["model=pretrained", f"{group}={option}"]
    config = cell_config(compose(*chosen, f"model.path={folder}", "tokenizer.text_path=null"))
    config["corpus"] = {"_target_": "tiny.TinyText"}
    config["workload"] |= {"prompt_len": 8, "output_len": 16}
    config["measure"] |= {"max_repeats": 1, "min_time_s": 0.0, "max_warmups": 1, "warmup_events": 1}
    config["measure"]["contended_retries"] = 0
    _cell, observed, _tables = run(config)
    assert observed["parameters"] > 10_000
    assert denoiser or observed["state_used_bytes"] > 0


@pytest.mark.parametrize("name", OF_CANVASES)
def test_a_file_of_canvases_runs_with_a_tiny_folder(name, compose, tmp_path):
    folder = theirs.write_canvas_folder(tmp_path / "theirs")
    chosen = ["paradigm=diffusion_gemma", name.replace("/", "=")] if "decoder/" in name else [name.replace("/", "=")]
    if name.startswith("model/"):
        chosen += ["decoder=uniform_diffusion"]
    config = cell_config(compose(*chosen, f"model.path={folder}", "measure.quality=false"))
    config["corpus"] = {"_target_": "tiny.TinyText"}
    config["decoder"]["sampler"]["num_steps"] = 3
    config["workload"] |= {"prompt_len": 8, "output_len": 20, "batch_size": 2}
    config["measure"] |= {"max_repeats": 1, "min_time_s": 0.0, "max_warmups": 1, "warmup_events": 1}
    config["measure"]["contended_retries"] = 0
    _cell, observed, tables = run(config)
    assert 30_000 < observed["parameters"] < 60_000 and observed["state_used_bytes"] > 0
    assert {(row["nfe_encoder"], row["nfe_decoder"]) for row in tables["requests"]} == {(3, 9)}
    assert observed["engine"] == ("transformers" if "generate" in name else "native")


def trained_folder(config: dict[str, Any]) -> Path:
    """Folder of a checkpoint that was trained here for the model of a config."""
    from paradigms import weights

    cell = build({**config, "train": {"_target_": "paradigms.weights.TrainedHere", **tiny.RECIPE}})
    return weights.CHECKPOINTS / cell.train.load(cell.wanted, report=lambda what, done, total: None).checkpoint


def test_no_file_is_left_out():
    known = {
        *OF_A_CELL,
        *OF_OTHERS,
        *OF_CANVASES,
        "config",
        "hydra/sweeper/rounds",
        *(f"experiment/{name}" for name in EXPERIMENTS),
    }
    known |= {name for name in FILES if name.startswith(("sweep/", "launch/", "hydra/launcher/"))}
    assert set(FILES) == known and len(FILES) > 40


@pytest.mark.parametrize("name", [name for name in FILES if "/" in name])
def test_a_file_says_what_it_is_for(name):
    first = (cli.CONF / f"{name}.yaml").read_text().splitlines()
    assert first[0].startswith(("#", "defaults", "_target_", "_global_")) and all(len(line) <= 140 for line in first)
