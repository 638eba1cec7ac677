"""Every file under conf/ composes, builds, passes its check and runs with a tiny model.

Files are found, not listed: a new one is tested as soon as it lies there.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import their_denoisers
import theirs
import tiny
from hydra.core.config_loader import ConfigLoader
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException, MissingConfigException
from hydra.types import RunMode
from hydra.utils import get_class, get_object
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from paradigms import bench, cli, zoo
from paradigms.build import build
from paradigms.cell import Cell
from paradigms.grid import Composer, expand, plan_cells
from paradigms.measure.environment import gpu_names
from paradigms.models.config import PARTS, ModelConfig
from paradigms.plan import PlannedCell, SweepOptions
from paradigms.records import canonical_json
from paradigms.train import MODELS

FILES = sorted(path.relative_to(cli.CONF).with_suffix("").as_posix() for path in cli.CONF.rglob("*.yaml"))
OF_THE_SWEEP = ("config", "sweep/", "launch/", "hydra/", "experiment/")
OF_OTHERS = [  # files that speak of weights of others
    name
    for name in FILES
    if name.startswith(("model/", "paradigm/", "train/", "tokenizer/"))
    and {"pretrained", "smollm2_135m"} & {name.rpartition("/")[2], *(cli.CONF / f"{name}.yaml").read_text().split()}
]
OF_CANVASES = [  # files that speak of uniform noise
    name for name in FILES if re.search("diffusion_gemma|uniform_samplers", (cli.CONF / f"{name}.yaml").read_text())
]
OF_CANVASES += [name for name in OF_OTHERS if name.endswith("/diffusion_gemma")]
OF_OTHERS = [name for name in OF_OTHERS if name not in OF_CANVASES]
OF_A_CELL = [name for name in FILES if not name.startswith(OF_THE_SWEEP) and name not in (*OF_OTHERS, *OF_CANVASES)]
ALIKE = (  # differ from others in values: among the slow tests
    *("tasks_gpu", "gpu_side_by_side", "peer_compiled", "recall", "batch", "context", "same", "temperatures"),
    *(f"diffusion_{name}" for name in ("batch", "blocks", "caches", "infilling", "steps", "threshold")),
)
EXPERIMENTS = [name.partition("/")[2] for name in FILES if name.startswith("experiment/")]
RANDOM = ("train=random", "measure=latency", "workload=random_prompts")
NESTED = ("decoder/sampler", "decoder/cache")  # parts of a decoder
TASKS = {name.partition("/")[2] for name in FILES if name.startswith("task/")}
TASKS_ALIKE = {f"task/{task}" for task in TASKS - {"star_graph", "copying", "walk_infilling", "countdown"}}
OF_TASKS = {"tokenizer/symbols", "workload/task", "measure/task", "train/task"} | {f"corpus/{task}" for task in TASKS}
TRAINED = [] if {"ar", "ssm", "diffusion"} <= set(zoo.names()) else ["train=quick"]  # until the zoo is whole

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(scope="module")
def compose(loader: ConfigLoader) -> Callable[..., DictConfig]:
    """Whole config, as a sweep composes it before it knows its cells."""

    def run(*overrides: str) -> DictConfig:
        return loader.load_configuration("config", list(overrides), run_mode=RunMode.MULTIRUN)

    return run


@pytest.fixture(scope="module")
def texts(home: Path) -> dict[str, Path]:
    """Small files for the corpora that need one."""
    import pandas as pd

    folder = home / "texts"
    folder.mkdir(exist_ok=True)
    paths = {kind: folder / f"small.{kind}" for kind in ("txt", "json", "parquet")}
    paths["txt"].write_text("\n\n".join(tiny.texts()))
    paths["json"].write_text("\n".join(json.dumps({"text": text}) for text in tiny.texts()))
    pd.DataFrame({"text": tiny.texts()}).to_parquet(paths["parquet"])
    paths["pairs"] = folder / "pairs.jsonl"
    paths["pairs"].write_text("\n".join(json.dumps({"prompt": text, "answer": text[:9]}) for text in tiny.texts()))
    return {"local_text": paths["txt"], "local_pairs": paths["pairs"]} | {
        f"local_{kind}": paths[kind] for kind in ("json", "parquet")
    }


def _slow(name: str, is_slow: bool) -> Any:
    return pytest.param(name, marks=pytest.mark.slow) if is_slow else name


def cell_config(master: DictConfig) -> dict[str, Any]:
    resolved = OmegaConf.to_container(master, resolve=True, throw_on_missing=False)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items() if key not in ("sweep", "launch", "hydra")}


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


def shrunk(config: dict[str, Any], *, keep: str = "") -> dict[str, Any]:
    """The same cell on a tiny model, little text and few tokens; the section `keep` loses only what takes time.

    Weights of any trained kind become a training of a few steps.
    """
    config = copy.deepcopy(config)
    model = config["model"]
    model |= {"d_model": 32, "num_blocks": 1, "target_parameters": None, "max_positions": 576}
    small = {"width": 64, "d_state": 8, "head_dim": 16, "num_heads": 2, "num_kv_heads": 2}
    for part in [value for value in model.values() if isinstance(value, dict)]:
        part |= {name: value for name, value in small.items() if name in part}
    if config["workload"]["prompts"] == "task":
        return shrunk_task(config)
    if keep not in ("corpus", "tokenizer"):  # the tiny text has too few words for a tokenizer to learn
        config["corpus"] = {"_target_": "tiny.TinyText"}
    if keep != "tokenizer":
        config["tokenizer"] = {"_target_": "paradigms.data.tokenizers.ByteTokenizer"}
    model["vocab_size"] = build(config["tokenizer"]).vocab_size
    config["workload"] |= {"prompt_len": 8, "output_len": 16, "batch_size": min(2, config["workload"]["batch_size"])}
    config["measure"] |= {"min_repeats": 1, "max_repeats": 1, "min_time_s": 0.0, "max_warmups": 1, "warmup_events": 1}
    config["measure"]["contended_retries"] = 0
    if config["train"]["source"] != "random" and keep != "train":
        config["train"] = {"_target_": "paradigms.weights.TrainedHere", **tiny.RECIPE}
    return config


def shrunk_task(config: dict[str, Any]) -> dict[str, Any]:
    """Two instances of a task, by a training of two steps."""
    config["corpus"] |= {"num_heldout": 4, "num_validation": 2}
    config["workload"] |= {"batch_size": 2}
    config["measure"] |= {"rounds": 1, "min_repeats": 1, "max_repeats": 1, "min_time_s": 0.0, "max_warmups": 1}
    config["measure"] |= {"warmup_events": 1, "contended_retries": 0}
    length = build(config["corpus"]).row_tokens
    config["train"] |= {"num_tokens": 2 * 4 * length, "batch_tokens": 4 * length, "learning_rates": [0.004]}
    config["train"] |= {"num_validations": 1, "validation_windows": 2}
    return config


def run(config: dict[str, Any]) -> tuple[Cell, dict[str, Any], bench.Tables]:
    """Check a cell, measure it once, and hold what came out against what was asked."""
    cell = build(config)
    cell.check()
    observed, tables = bench.run_unit(cell, 0)
    canonical_json([observed, tables])
    assert len(tables["samples"]) == observed["num_repeats"] * cell.workload.batch_size
    for request, sample in zip(tables["requests"], tables["samples"], strict=True):
        shorter = cell.workload.prompts == "task"  # prompts that have lengths of their own
        assert len(sample["prompt_ids"]) == cell.workload.prompt_len or shorter
        assert len(sample["token_ids"]) == request["committed_tokens"] <= cell.workload.output_len
        assert request["committed_tokens"] == cell.workload.output_len or cell.workload.stop == "natural"
    assert ("bits_per_byte" in observed) == cell.measure.quality
    return cell, observed, tables


# ---------------------------------------------------------------- files of a cell


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


@pytest.mark.parametrize("name", [_slow(name, name in TASKS_ALIKE) for name in RUN])
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


# ---------------------------------------------------------------- files of a sweep


def planned(loader: ConfigLoader, master: DictConfig, arguments: list[str]) -> list[PlannedCell]:
    """The cells of a sweep, each composed and checked, as the command line plans them."""
    params = OmegaConf.to_container(master.hydra.sweeper.params) if master.hydra.sweeper.params else {}
    assert isinstance(params, dict)
    grid = expand(loader, {str(key): value for key, value in params.items()}, arguments)
    return plan_cells(Composer(loader, master), grid, master.sweep.exclude, master.sweep.also)


@pytest.mark.parametrize("name", [_slow(name, name in ALIKE) for name in EXPERIMENTS])
def test_every_cell_of_an_experiment_is_possible_and_two_run(name, loader, compose, monkeypatch, tmp_path):
    monkeypatch.setattr("paradigms.cell.gpu_names", lambda: ("a GPU",))  # some experiments are for one
    arguments = [f"experiment={name}"]
    master = compose(*arguments)
    if master.train.source == "zoo" and not set(MODELS) <= set(zoo.names()):
        arguments += ["train=quick"]
        master = compose(*arguments)
    of_others = "smollm2" in name
    if of_others:
        arguments += [f"model.path={theirs.write_folder(tmp_path / 'theirs')}", "workload.prompt_len=8,9"]
    assert master.sweep.name == name, "its records lie in a folder of its name"
    cells = planned(loader, master, arguments)
    assert len(cells) >= 2
    assert len({cell.name for cell in cells}) == len({cell.key for cell in cells}) == len(cells)
    for cell in (cells[0], cells[-1]):
        here = {"name": "cpu"} if cell.config["device"]["name"] == "cuda" else {}
        here["execution"] = "eager"  # compiling takes its time; tests/models/test_execution.py does it
        small = cell.config if of_others else shrunk(cell.config)
        run(small | {"device": {**cell.config["device"], **here}})


def test_cells_beside_a_grid_take_over_what_they_have_a_key_for(loader, compose):
    """`sweep.also`: an autoregressive reference has the lengths and temperature of the grid, not its samplers."""
    arguments = ["paradigm=diffusion", "decoder/sampler=random,margin", "decoder/cache=dual", "decoder.block_len=8,16",
                 "workload.output_len=32,64", "decoder.temperature=0.5", *RANDOM]  # fmt: skip
    also = [["paradigm=ar,ssm"], ["paradigm=diffusion", "decoder/cache=none", "decoder/sampler=first_hitting"]]
    composer = Composer(loader, compose(*RANDOM))
    grid = expand(loader, {}, arguments)
    cells = plan_cells(composer, grid, [{"decoder.sampler": "first_hitting", "decoder.block_len": 8}], also)
    assert len(grid) == 8 and [cell.name for cell in cells[8:]] == [
        "ar, output_len=32",
        "ar, output_len=64",
        "ssm, output_len=32",
        "ssm, output_len=64",
        "diffusion, sampler=first_hitting, cache=none, block_len=16, output_len=32",
        "diffusion, sampler=first_hitting, cache=none, block_len=16, output_len=64",
    ]
    for cell in cells:
        assert cell.factors["decoder.temperature"] == 0.5, "a key that all have is set in all"
    assert cells[0].name == "diffusion, sampler=random, cache=dual, block_len=8, output_len=32"
    assert len({cell.key for cell in cells}) == len(cells), "samplers with equal settings are different cells"
    assert [cells[0].factors[name] for name in ("decoder.sampler", "decoder.cache")] == ["random", "dual"]
    with pytest.raises(ConfigCompositionException):
        plan_cells(composer, grid, [], [["paradigm=ar", "decoder.blok_len=8"]])


def test_the_default_command_is_one_cell(loader, compose):
    (cell,) = planned(loader, compose(*TRAINED), TRAINED)
    assert cell.factors["paradigm.name"] == "ar" and cell.name == "ar"


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("sweep/")])
def test_sweep_files_are_whole(name, compose):
    values = OmegaConf.to_container(compose(name.replace("/", "="), *TRAINED).sweep, resolve=True)
    assert isinstance(values, dict)
    SweepOptions(**{str(key): value for key, value in values.items()})


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("launch/")])
def test_launch_files_choose_a_launcher(name, compose):
    try:
        master = compose(name.replace("/", "="))
    except MissingConfigException as error:
        pytest.skip(f"needs a package of an extra: {error.missing_cfg_file}")
    assert master.launch.lanes >= 1
    target = OmegaConf.to_container(master.hydra.launcher, resolve=True)
    assert isinstance(target, dict) and target["_target_"]


@pytest.mark.parametrize("size", [name.partition("/")[2] for name in FILES if name.startswith("size/")])
def test_a_size_has_equal_parameters_in_every_kind_of_model(size, compose):
    options = ["train=random", "measure=latency", f"size={size}"]
    models = [build(cell_config(compose(f"paradigm={name}", *options))).model for name in ("ar", "ssm", "diffusion")]
    parameters = [model.num_parameters() for model in models]
    assert max(parameters) <= 1.01 * min(parameters)
    assert len({(model.max_positions, model.d_model) for model in models}) == 1


def test_a_size_that_a_model_does_not_have_is_an_error(compose):
    with pytest.raises(OmegaConfBaseException, match="no_file_in_conf_sized_for_this_model"):
        cell_config(compose("paradigm=mamba", "size=1b", "train=random", "measure=latency"))


def test_hydra_finds_our_sweeper(compose):
    target = compose().hydra.sweeper._target_
    assert target.rpartition(".")[2] in {plugin.__name__ for plugin in Plugins.instance().discover()}


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
