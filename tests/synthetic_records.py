"""Records of sweeps that nobody ran: costs and qualities are set here, analysis has to find them again.

Each paradigm has a step time (a constant and a part that grows with the positions it computes), so that slopes, ratios
and residuals follow from arithmetic. Noise is log-normal: one factor a round, shared by all paradigms as drift is, and
one a repeat.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paradigms.records import RecordWriter, content_hash, unit_key

LAYERS, KV_HEADS, HEAD_DIM, ITEMSIZE = 4, 4, 32, 4
PARAMETERS = 1_500_000


@dataclass(frozen=True)
class Truth:
    """A made-up paradigm. `steps(n)` forwards for n tokens; each costs `step_s + position_s * positions`."""

    name: str
    label: str
    kind: str  # "cached", "uncached", "recurrent" or "canvas"
    step_s: float
    position_s: float
    steps: Callable[[int], int]
    bits_per_byte: float
    judge: float
    entropy_nats: float
    schedule: int | str | None = None
    parameters: int = PARAMETERS
    engine: str = "native"
    sampler: str = "random"
    cache: str = "none"
    block_len: int | None = None
    canvas_block: int | None = None

    def positions(self, prompt_len: int, output_len: int) -> list[int]:
        """Positions computed by each forward, for one row."""
        if self.kind in ("cached", "recurrent"):
            return [prompt_len] + [1] * (output_len - 1)
        if self.kind == "uncached":
            return [prompt_len + i for i in range(output_len)]
        whole, steps = prompt_len + output_len, self.steps(output_len)
        if self.cache == "none" or self.block_len is None:
            return [whole] * steps
        looks = steps // (output_len // self.block_len)  # of a block: all at first, then it and the column before it
        return ([whole] + [self.block_len + 1] * (looks - 1)) * (output_len // self.block_len)

    def state_bytes(self, prompt_len: int, output_len: int, batch_size: int) -> int:
        if self.kind == "cached":
            return 2 * LAYERS * (prompt_len + output_len - 1) * KV_HEADS * HEAD_DIM * batch_size * ITEMSIZE
        width = self.canvas_block or self.block_len
        if self.cache in ("dual", "block") and width is not None:
            kept = prompt_len + output_len - width - 1
            return 2 * LAYERS * kept * KV_HEADS * HEAD_DIM * batch_size * ITEMSIZE
        return 120_000 * batch_size if self.kind == "recurrent" else 0


AR = Truth("ar", "AR, KV cache", "cached", 1.2e-3, 5e-6, lambda n: n, 1.74, 1.9, 4.1)
NAIVE = Truth("ar_no_cache", "AR, no cache", "uncached", 1.2e-3, 5e-6, lambda n: n, 1.74, 1.9, 4.1)
SSM = Truth("ssm", "Mamba-2", "recurrent", 1.9e-3, 6e-6, lambda n: n, 1.83, 2.0, 4.15, parameters=PARAMETERS - 6_000)
FULL = Truth("diffusion", "Diffusion, K = L", "canvas", 1.5e-3, 8e-6, lambda n: n, 2.36, 2.5, 4.0, "L")
QUARTER = Truth(
    "diffusion_quarter", "Diffusion, K = L/4", "canvas", 1.5e-3, 8e-6, lambda n: n // 4, 2.36, 2.9, 4.3, "L/4"
)
SIXTEEN = Truth("diffusion_16", "Diffusion, K = 16", "canvas", 1.5e-3, 8e-6, lambda n: 16, 2.36, 3.3, 4.5, 16)
THRESHOLD = Truth("diffusion_threshold", "Diffusion, p > 0.9", "canvas", 1.5e-3, 8e-6, lambda n: n // 2, 2.36, 2.6, 4.1,
                  sampler="threshold")  # fmt: skip
PEER = Truth("peer", "a peer", "cached", 2.4e-3, 10e-6, lambda n: n, 1.74, 1.9, 4.1, engine="transformers")
ALL = (AR, NAIVE, SSM, FULL, QUARTER, SIXTEEN, THRESHOLD)


def write_sweep(
    folder: Path,
    *,
    paradigms: Sequence[Truth] = ALL,
    output_lens: Sequence[int] = (16, 32, 64, 128, 256, 512),
    prompt_lens: Sequence[int] = (64,),
    batch_sizes: Sequence[int] = (1,),
    rounds: int = 3,
    repeats: int = 2,
    round_noise: float = 0.02,
    repeat_noise: float = 0.005,
    seed: int = 0,
    machine_id: str = "m0",
    machine: str = "2 cores of a made-up CPU, 1 thread, float32",
    code: str = "c0de",
    started_at: str = "2026-01-01T00:00:00Z",
    fail: Callable[[Truth, int, int], tuple[str, str] | None] = lambda truth, output_len, round_index: None,
    contended: Callable[[Truth, int, int], bool] = lambda truth, output_len, round_index: False,
    extrapolated: Callable[[Truth, int, int], bool] = lambda truth, output_len, round_index: False,
    factors: dict[str, Any] | None = None,
    shard: str = "a",
) -> Path:
    """Write a whole sweep and return its folder. `fail` gives (status, error) for a unit that shall not succeed."""
    writer = RecordWriter(folder, shard)
    random = np.random.default_rng(seed)
    cells = list(itertools.product(paradigms, prompt_lens, output_lens, batch_sizes))
    for round_index in range(rounds):
        drift = random.lognormal(0, round_noise) if round_noise else 1.0
        for truth, prompt_len, output_len, batch_size in cells:
            config = _config(truth, prompt_len, output_len, batch_size) | (factors or {})
            key = unit_key(cell=config, round_index=round_index, code=code, checkpoint=truth.name, machine=machine_id)
            run = {"key": key, "cell_key": content_hash(config), "round": round_index, "started_at": started_at}
            run |= (
                config | _machine(machine_id, machine, code) | {"contended": contended(truth, output_len, round_index)}
            )
            run["is_anchor"] = truth is paradigms[0] and output_len == min(output_lens)
            failure = fail(truth, output_len, round_index)
            if failure:
                writer.write_unit(run | {"status": failure[0], "error": failure[1]})
                continue
            run |= _unit(truth, prompt_len, output_len, batch_size, round_index)
            requests, samples = _requests(
                key,
                truth,
                prompt_len,
                output_len,
                batch_size,
                drift * random.lognormal(0, repeat_noise, size=repeats),
            )
            if extrapolated(truth, output_len, round_index):
                run |= {"extrapolated": True, "forwards_timed": 9}
                requests = [row | {"extrapolated": True, "forwards_timed": 9} for row in requests if not row["repeat"]]
                samples = []
            writer.write_unit(run, requests=requests, samples=samples)
    training = [row for truth in paradigms for row in _training(truth)]
    RecordWriter(folder, f"{shard}-training")._append("training", training)
    return folder


def _checkpoint(truth: Truth) -> str:
    if truth.canvas_block:
        return f"block_diffusion_{truth.canvas_block}"
    return "diffusion" if truth.kind == "canvas" else "ssm" if truth.kind == "recurrent" else "ar"


def _config(truth: Truth, prompt_len: int, output_len: int, batch_size: int) -> dict[str, Any]:
    decoder: dict[str, Any] = {"decoder.temperature": 1.0, "decoder.top_k": None, "decoder.top_p": None}
    if truth.kind == "canvas":
        decoder |= {"decoder.cache": truth.cache, "decoder.block_len": truth.block_len}
        decoder |= {"decoder.sampler": truth.sampler, "decoder.sampler.steps": truth.schedule}
        decoder |= {"decoder.sampler.threshold": 0.9 if truth.schedule is None else None}
    else:
        decoder["decoder.cache"] = "none" if truth.kind == "uncached" else "state"
    return {
        "paradigm.name": truth.name, "paradigm.label": truth.label, "sweep.name": "side_by_side",
        "workload.output_len": output_len, "workload.prompt_len": prompt_len, "workload.batch_size": batch_size,
        "workload.prompts": "heldout", "workload.stop": "length",
        "model.block": "M" if truth.kind == "recurrent" else "AF", "model.num_blocks": LAYERS, "model.vocab_size": 1024,
        "model.d_model": KV_HEADS * HEAD_DIM, "model.attention.num_heads": KV_HEADS,
        "model.attention.num_kv_heads": KV_HEADS,
        "model.causal": truth.kind != "canvas", "model.noise": "absorbing" if truth.kind == "canvas" else None,
        "model.canvas_block": truth.canvas_block, "model.shift_logits": truth.kind == "canvas",
        "device.name": "cpu", "device.threads": 1, "device.dtype": "float32",
        "train.source": "zoo", "measure.rounds": 3, "measure.timeline": "device",
    } | decoder  # fmt: skip


def _machine(machine_id: str, machine: str, code: str) -> dict[str, Any]:
    return {
        "machine_id": machine_id, "machine": machine, "cpu": "made-up CPU", "gpu": None, "code": code,
        "torch_version": "2.13.0", "python_version": "3.11.9", "transformers_version": "5.24.0",
        "load_before": 0.1, "load_after": 0.2, "steal_fraction": 0.0,
    }  # fmt: skip


def _unit(truth: Truth, prompt_len: int, output_len: int, batch_size: int, round_index: int) -> dict[str, Any]:
    state = truth.state_bytes(prompt_len, output_len, batch_size)
    run: dict[str, Any] = {
        "status": "ok", "error": None,
        "parameters": truth.parameters, "weight_bytes": truth.parameters * ITEMSIZE,
        "import_s": 2.0, "load_s": 0.1, "compile_s": 0.0, "warmup_s": 0.2, "steady_s": 0.5, "num_warmups": 2,
        "warmup_steady": True, "kernels": "torch", "execution": "eager", "engine": truth.engine,
        "products_s": 0.5 * truth.step_s, "checkpoint": _checkpoint(truth),
        "checkpoint_tokens": 6_000_000, "corpus_sha256": "ab" * 32, "corpus_is_zoo_corpus": True,
        "bits_per_byte": truth.bits_per_byte, "bits_per_byte_se": 0.01,
        "bits_per_byte_is_bound": truth.kind == "canvas",
    }  # fmt: skip
    if round_index == 0:
        widest = max(truth.positions(prompt_len, output_len)) * batch_size
        run |= {"state_used_bytes": state, "state_allocated_bytes": state, "state_formula_bytes": state}
        if truth.cache == "dual":
            run |= {"cache_kl_nats": 0.05, "cache_kl_nats_by_look": [0.0, 0.02, 0.08, None, 0.1]}
        run |= {"peak_tensor_bytes": 6_000_000 + state + widest * 12_000, "peak_rss_bytes": 400_000_000}
    return run


def _requests(
    key: str, truth: Truth, prompt_len: int, output_len: int, batch_size: int, noise: np.ndarray
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    requests, samples = [], []
    positions = truth.positions(prompt_len, output_len)
    times = [truth.step_s + truth.position_s * count * batch_size for count in positions]
    streams = truth.kind != "canvas"
    for repeat, factor in enumerate(noise.tolist()):
        e2e_s = sum(times) * factor
        ttft_s = times[0] * factor if streams else e2e_s
        tpot_s = (e2e_s - ttft_s) / (output_len - 1) if streams and output_len > 1 else None
        for row in range(batch_size):
            spread = 0.01 * ((7 * repeat + 3 * row) % 5)
            identity = {"key": key, "repeat": repeat, "row": row, "request_id": f"{row}", "seed": 100 * repeat + row}
            requests.append(identity | {
                "prompt_tokens": prompt_len, "requested_tokens": output_len, "committed_tokens": output_len,
                "finish_reason": "length", "ttft_s": ttft_s, "tpot_s": tpot_s, "e2e_s": e2e_s,
                "itl_median_s": tpot_s, "itl_max_s": tpot_s, "num_chunks": output_len if streams else 1,
                "max_chunk_tokens": 1 if streams else output_len, "nfe": len(positions),
                "positions_computed": sum(positions) * batch_size, "step_time_s": times[-1] * factor,
                "prefill_s": times[0] * factor if streams else None, "token_entropy_nats": truth.entropy_nats + spread,
                "distinct_1": 0.7, "distinct_2": 0.95, "judge_bits_per_byte": truth.judge + spread,
            })  # fmt: skip
            samples.append(
                identity | {"prompt_ids": [0] * prompt_len, "token_ids": [1] * output_len, "text": "the " * 8}
            )
    return requests, samples


def _training(truth: Truth) -> list[dict[str, Any]]:
    rows = []
    for step in range(0, 3001, 20):
        loss = truth.bits_per_byte + (3.9 - truth.bits_per_byte) * float(np.exp(-step / 700))
        rows.append({
            "checkpoint": _checkpoint(truth), "paradigm": _checkpoint(truth), "step": step, "tokens": step * 2_000,
            "epoch": step / 400, "train_nats": loss * 1.7, "val_bits_per_byte": loss if step % 200 == 0 else None,
            "lr": 3e-3, "tokens_per_s": 8_000.0, "peak_rss_bytes": 800_000_000,
        })  # fmt: skip
    return rows
