"""The files under conf/, found and not listed, and their cells with a tiny model."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import tiny
from omegaconf import DictConfig, OmegaConf

from paradigms import bench, cli, zoo
from paradigms.build import build
from paradigms.cell import Cell
from paradigms.records import canonical_json

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


def slow_if(name: str, is_slow: bool) -> Any:
    return pytest.param(name, marks=pytest.mark.slow) if is_slow else name


def cell_config(master: DictConfig) -> dict[str, Any]:
    resolved = OmegaConf.to_container(master, resolve=True, throw_on_missing=False)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items() if key not in ("sweep", "launch", "hydra")}


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
