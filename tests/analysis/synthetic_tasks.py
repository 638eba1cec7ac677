"""Records of tasks that nobody was asked: accuracies, times and plants are set here, analysis has to find them again.

Which instances are right is counted, not drawn: of n instances the first round(accuracy · n). A time is the asker's own
with log-normal noise a unit; `NOISELESS` leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from synthetic_records import _machine

from paradigms.records import RecordWriter, content_hash

STEPS, WARMUP, ROW = 2_000, 100, 44
GRID = [0.001, 0.004]


@dataclass(frozen=True)
class Asker:
    """A made-up paradigm that answers.

    Attributes:
        accuracy: task -> of each training, in the order of the seeds; a training more than there are takes the last.
        behind, kept: of what is right behind a planted error, and how often the plant is still there.
        factors: columns of its cells that others have otherwise.
    """

    name: str
    label: str
    accuracy: Mapping[str, Sequence[float]]
    e2e_s: float = 0.1
    nfe: int = 5
    state_bytes: int | None = 1_000
    rate: float = 0.001
    parameters: int = 900_000
    problem: str = "wrong symbol"
    behind: float = 0.2
    kept: float = 1.0
    factors: Mapping[str, Any] = field(default_factory=dict)


STAR, MQAR = "star_graph", "mqar"
AR = Asker(
    "ar", "AR Transformer", {STAR: (0.49, 0.5, 0.51), MQAR: (0.99, 0.99, 1.0)}, 0.05, 5, 40_000, problem="wrong branch"
)
SSM = Asker("ssm", "Mamba-2", {STAR: (0.48, 0.5, 0.5), MQAR: (0.4, 0.6, 0.5)}, 0.08, 5, 9_000, rate=0.004)
DIFFUSION = Asker(
    "diffusion", "Diffusion, top-1", {STAR: (1.0, 0.98, 1.0), MQAR: (0.98, 1.0, 0.99)}, 0.2, 5, 0, behind=0.6
)
REMASKING = Asker(
    "diffusion_remasking", "Diffusion, remasking", {STAR: (0.95,), MQAR: (0.9,)}, 0.4, 10, 0, behind=0.9, kept=0.1
)
ALL = (AR, SSM, DIFFUSION, REMASKING)
NOISELESS = {"noise": 0.0}


def write_tasks(
    folder: Path,
    *,
    askers: Sequence[Asker] = ALL,
    tasks: Sequence[str] = (STAR, MQAR),
    seeds: Sequence[int] = (0, 1, 2),
    planted: Sequence[int] = (0,),
    instances: int = 200,
    rounds: int = 1,
    repeats: int = 4,
    stop: str = "natural",
    noise: float = 0.02,
    tokens: Callable[[Asker], int] = lambda asker: STEPS * 128 * ROW,
    changed: Callable[[Asker, dict[str, Any]], dict[str, Any]] = lambda asker, row: row,
    shard: str = "a",
    seed: int = 1,
) -> Path:
    """Write a sweep over tasks and return its folder. `changed` may replace a row of `requests`."""
    writer, random = RecordWriter(folder, shard), np.random.default_rng(seed)
    training: list[dict[str, Any]] = []
    for asker in askers:
        for task in (task for task in tasks if task in asker.accuracy):
            for order, trained in enumerate(seeds):
                checkpoint = f"{asker.name}-{task}-{trained}"
                training += _curve(checkpoint, asker, tokens(asker))
                for plant in planted:
                    for round_index in range(rounds):
                        e2e_s = asker.e2e_s * float(random.lognormal(0, noise) if noise else 1)
                        run = _run(asker, task, trained, plant, stop, checkpoint, round_index)
                        right = asker.accuracy[task][min(order, len(asker.accuracy[task]) - 1)]
                        rows = _requests(asker, right, e2e_s, instances, rounds, round_index, repeats, plant)
                        rows = [changed(asker, row) | {"key": run["key"]} for row in rows]
                        writer.write_unit(run, requests=rows)
    RecordWriter(folder, f"{shard}-training")._append("training", training)
    return folder


def _run(
    asker: Asker, task: str, seed: int, plant: int, stop: str, checkpoint: str, round_index: int
) -> dict[str, Any]:
    sizes = {"corpus.degree": 2, "corpus.path_len": 4} if task == STAR else {"corpus.num_pairs": 4}
    config = {
        "paradigm.name": asker.name, "paradigm.label": asker.label, "sweep.name": "tasks_tiny", "corpus": task, **sizes,
        "corpus.num_heldout": 500, "workload.prompt_len": 23 if task == STAR else 31, "workload.output_len": 5,
        "workload.batch_size": 50, "workload.prompts": "task", "workload.stop": stop,
        "workload.planted": abs(plant), "workload.plant": "wrong" if plant >= 0 else "right",
        "device.name": "cpu", "device.threads": 1, "device.dtype": "float32", "train.seed": seed,
        "train.lengths": [ROW], "train.learning_rates": GRID, "train.warmup_steps": WARMUP, "train.source": "train",
        **asker.factors,
    }  # fmt: skip
    key = content_hash([config, round_index])
    return config | _machine("m0", "2 cores of a made-up CPU, 1 thread, float32", "c0de") | {
        "key": key, "cell_key": content_hash(config), "round": round_index, "started_at": "2026-01-01T00:00:00Z",
        "status": "ok", "error": None, "contended": False, "is_anchor": False, "parameters": asker.parameters,
        "state_used_bytes": asker.state_bytes, "checkpoint": checkpoint, "corpus_sha256": "ab" * 32, "kernels": "torch",
        "execution": "eager", "engine": "native", "warmup_steady": True, "import_s": 1.0, "load_s": 0.1,
        "compile_s": 0.0, "warmup_s": 0.1, "steady_s": 0.5, "checkpoint_tokens": 1_000_000,
    }  # fmt: skip


def _requests(
    asker: Asker, right: float, e2e_s: float, instances: int, rounds: int, round_index: int, repeats: int, plant: int
) -> list[dict[str, Any]]:
    """The round's part of the instances, dealt to its repeats."""
    mine = range(round_index * instances // rounds, (round_index + 1) * instances // rounds)
    rows = []
    for place, index in enumerate(mine):
        repeat, row = divmod(place, -(-len(mine) // repeats))
        correct = index < round(right * instances) and not (plant > 0 and asker.kept == 1)
        columns: dict[str, Any] = {
            "repeat": repeat, "row": row, "request_id": f"0/{index}", "seed": index, "prompt_tokens": 23,
            "requested_tokens": 5, "committed_tokens": 5, "finish_reason": "eos", "ttft_s": e2e_s / 5, "tpot_s": None,
            "e2e_s": e2e_s * (1 + 0.01 * repeat), "nfe": asker.nfe, "positions_computed": 27.0, "correct": correct,
            "answer_share": 1.0 if correct else 0.5, "answer_problem": None if correct else asker.problem,
            "answer_symbols": 4,
        }  # fmt: skip
        if plant:
            columns["planted_kept"] = index >= round((1 - asker.kept) * instances)
            columns["correct_behind"] = index < round(asker.behind * instances)
        rows.append(columns)
    return rows


def _curve(checkpoint: str, asker: Asker, tokens: int) -> list[dict[str, Any]]:
    """A validation each hundred steps; the rate rises over WARMUP steps and falls to zero."""
    rows = []
    for step in range(100, STEPS + 1, 100):
        share = min(step / WARMUP, (STEPS - step + 1) / (STEPS - WARMUP))
        rows.append({"checkpoint": checkpoint, "paradigm": asker.name, "step": step, "tokens": tokens * step // STEPS,
                     "epoch": None, "train_nats": 1.0, "val_bits_per_byte": 1.0, "lr": asker.rate * share,
                     "tokens_per_s": 8_000.0, "peak_rss_bytes": 1})  # fmt: skip
    return rows
