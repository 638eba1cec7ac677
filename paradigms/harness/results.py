"""What is kept of an evaluation: lm-eval's results, and beside them what a text interface has no place for.

One JSON file has lm-eval's own keys (`results`, `samples`, `configs`, ...) and one more, `paradigms`: the cell, its
checkpoint, settings and versions; every likelihood and generation that was asked; and a summary of each task.

    is_bound     its likelihoods are upper bounds of −ln p, so all its figures rest on bounds
    undecided    questions whose two likeliest answers differ by less than two standard errors from drawing masks:
                 other masks may answer them otherwise

Answers under the same masks (of equal length, to one question) differ less than their errors say, so `undecided` is
rather too many than too few. It looks at nats as they are (`acc`), not divided by a length (`acc_norm`).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from paradigms.measure.environment import code_hash, machine_line, versions
from paradigms.records import content_hash

PACKAGES = ("lm-eval", "torch", "transformers", "datasets", "tokenizers", "numpy")
FOLDER = Path("runs/harness")
ERRORS_APART = 2
COLUMNS = ("task", "version", "n-shot", "filter", "metric", "value", "standard error")
LEFT_OUT = ("pretty_env_info",)  # names of the machine; `versions` and `machine` say what matters


def summaries(scored: Sequence[Any], generated: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Of each task: what was asked, what is a bound and how sure, what was cut."""
    by_task: dict[str, dict[str, Any]] = {}
    for task in dict.fromkeys(row.task for row in [*scored, *generated]):
        likelihoods = [row for row in scored if row.task == task]
        texts = [row for row in generated if row.task == task]
        by_task[task] = {
            **(_of_likelihoods(likelihoods) if likelihoods else {}),
            **(_of_texts(texts) if texts else {}),
        }
    return by_task


def _of_likelihoods(rows: Sequence[Any]) -> dict[str, Any]:
    errors = [row.nats_se for row in rows if row.nats_se is not None]
    undecided, questions = decided(rows)
    return {
        "likelihoods": len(rows),
        "is_bound": any(row.is_bound for row in rows),
        "mask_se_median_nats": median(errors) if errors else None,
        "mask_se_max_nats": max(errors) if len(errors) == len(rows) else None,
        "questions": questions,
        "undecided": undecided,
        "tokens_scored": sum(row.num_tokens for row in rows),
        "contexts_cut": sum(row.num_cut > 0 for row in rows),
        "joined": sum(row.joined for row in rows),
    }


def _of_texts(rows: Sequence[Any]) -> dict[str, Any]:
    return {
        "texts": len(rows),
        "tokens": sum(row.num_tokens for row in rows),
        "nfe": sum(row.nfe for row in rows),
        "finish_reasons": dict(Counter(row.finish_reason for row in rows)),
        "texts_cut": sum(row.num_cut > 0 for row in rows),
        "own_draws": any(row.temperature is None for row in rows),
    }


def decided(rows: Sequence[Any]) -> tuple[int, int]:
    """(undecided questions, questions): documents with several answers, those without their context left out where
    the same are asked with it.
    """
    questions: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        if row.kind == "loglikelihood":
            questions[row.doc_id].append(row)
    undecided = num_questions = 0
    for asked in questions.values():
        answers = [row for row in asked if row.has_context] or asked
        if len(answers) < 2:
            continue
        num_questions += 1
        best, second = sorted(answers, key=lambda row: row.nats)[:2]
        if best.nats_se is None or second.nats_se is None:
            undecided += 1
            continue
        error = math.hypot(best.nats_se, second.nats_se)
        undecided += second.nats - best.nats < ERRORS_APART * error
    return undecided, num_questions


def notes(by_task: Mapping[str, Mapping[str, Any]], *, num_masks: int, mask_seed: int) -> list[str]:
    """What a reader of the table must know, a line each."""
    lines = []
    bounds = [task for task, of in by_task.items() if of.get("is_bound")]
    if bounds:
        lines.append(
            f"{', '.join(bounds)}: likelihoods are bounds (−ln p is at most what is used), from {num_masks} masks an "
            f"answer, seed {mask_seed}; whether an answer is the greedy one is not known of a denoiser and counts as no"
        )
    for task, of in by_task.items():
        if of.get("is_bound"):
            middle, largest = of["mask_se_median_nats"], of["mask_se_max_nats"]
            said = "unknown" if middle is None else f"median {middle:.2g} nats"
            said += "" if largest is None else f", largest {largest:.2g}"
            lines.append(f"{task}: standard error of a likelihood from drawing masks: {said}")
        if of.get("undecided"):
            lines.append(
                f"{task}: the two likeliest answers of {of['undecided']} of {of['questions']} questions are nearer to "
                "each other than two such errors"
            )
        cut, asked = of.get("contexts_cut", 0) + of.get("texts_cut", 0), of.get("likelihoods", 0) + of.get("texts", 0)
        if cut:
            lines.append(f"{task}: {cut} of {asked} contexts were too long and lost their left end")
        if of.get("joined"):
            lines.append(
                f"{task}: in {of['joined']} of {of['likelihoods']} a token reaches over the joint of context and answer"
            )
        if of.get("own_draws"):
            lines.append(f"{task}: the decoder draws by rules of its own, not greedily")
    return lines


def table(results: Mapping[str, Any]) -> str:
    """Markdown, a line a metric, as lm-eval prints it; tasks whose figures rest on bounds are marked."""
    rows = [COLUMNS, tuple("---" for _ in COLUMNS)]
    bounds = {task for task, of in results["paradigms"]["tasks"].items() if of.get("is_bound")}
    for task, values in {**results["results"], **results.get("groups", {})}.items():
        members = {task, *_members(task, results.get("group_subtasks", {}))}
        name = f"{values.get('alias', task).lstrip(' -')}{' (bound)' if bounds & members else ''}"
        facts = (str(results["versions"].get(task, "–")), str(results["n-shot"].get(task, "–")))
        for key, value in values.items():
            metric, comma, chosen = key.partition(",")
            if not comma or metric.endswith("_stderr"):
                continue
            error = values.get(f"{metric}_stderr,{chosen}")
            rows.append((name, *facts, chosen, metric, _figure(value), _figure(error)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _members(group: str, groups: Mapping[str, Sequence[str]]) -> set[str]:
    """Tasks of a group, and of the groups in it."""
    own = set(groups.get(group, ()))
    return own | {task for member in own for task in _members(member, groups)}


def _figure(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else "–"


def collected(
    found: Mapping[str, Any],
    *,
    config: Mapping[str, Any],
    checkpoint: str,
    max_length: int,
    settings: Any,
    asked: Mapping[str, Any],
    scored: Sequence[Any],
    generated: Sequence[Any],
) -> dict[str, Any]:
    """Everything of one evaluation; `found` is what lm-eval returned."""
    by_task = summaries(scored, generated)
    said = notes(by_task, num_masks=settings.num_masks, mask_seed=settings.mask_seed)
    if scored and (kv_dtype := (config.get("decoder") or {}).get("kv_dtype")):
        said.append(
            f"likelihoods are those of an exact cache; decoder.kv_dtype={kv_dtype} enters what is generated alone"
        )
    own = {
        "paradigm": config["paradigm"],
        "checkpoint": checkpoint,
        "max_length": max_length,
        "is_bound": any(of.get("is_bound", False) for of in by_task.values()),
        "settings": {**dataclasses.asdict(settings), **asked},
        "notes": said,
        "tasks": by_task,
        "config": config,
        "versions": versions(PACKAGES),
        "code": code_hash(),
        "machine": machine_line(),
        "likelihoods": [dataclasses.asdict(row) for row in scored],
        "generations": [dataclasses.asdict(row) for row in generated],
    }
    theirs = {key: value for key, value in found.items() if key not in LEFT_OUT}
    return {"paradigms": own, **theirs}


def write(results: Mapping[str, Any], path: Path | None) -> Path:
    """Write the file; without a path, one in runs/harness whose name says what was asked."""
    own = results["paradigms"]
    if path is None:
        asked = json.dumps([results.get("configs"), results.get("task_hashes")], default=_plain, sort_keys=True)
        identity = content_hash([own["config"], own["checkpoint"], own["settings"], asked])
        path = FOLDER / f"{own['paradigm']['name']}-{identity}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, default=_plain, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return path


def _plain(value: Any) -> Any:
    """What JSON has no word for: numbers of numpy, and functions that tasks are configured with."""
    return value.item() if isinstance(value, np.generic) else str(value)
