"""Whether known laws hold in the records: counts, bytes, times, drift."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis import laws, statistics
from analysis.frames import Frames
from analysis.summary import OUTPUT_LEN, series_over, show, summarise

HOLDS, FAILS, NOISE = "holds", "does not hold", "noise"
ITEMSIZE = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
TOLERANCE = 0.05  # of the linear law of latency
WARM = 0.01  # by which a first repeat may be slower, whatever the test says


@dataclass(frozen=True)
class Check:
    """A law, whether it holds, and the figure that says so."""

    law: str
    verdict: str
    figure: str


def checks(frames: Frames) -> list[Check]:
    """Laws that the records must obey; those that no cell can speak for are left out."""
    cells = summarise(frames)
    cells = cells[cells["e2e_s"].notna()]
    if not len(cells):
        return []
    # What a length decides can be told only where the length is fixed.
    fixed = cells[cells["workload.stop"] == "length"] if "workload.stop" in cells else cells
    found = [
        _committed(frames),
        _forwards(frames, cells),
        _forwards_by_values(frames),
        _ancestral(frames, cells),
        *_linear(frames),
        _formula(fixed),
        _kv_bytes(fixed),
        _constant_state(cells),
        _uncached_positions(_run_whole(fixed)),
        _denoised_positions(_run_whole(fixed)),
        _steady(frames),
        _first_repeat(frames),
        _first_round(frames),
        *_anchor(frames),
    ]
    return [check for check in found if check is not None]


def _verdict(bad: int) -> str:
    return FAILS if bad else HOLDS


def _run_whole(rows: pd.DataFrame) -> pd.DataFrame:
    """Without what was extrapolated: there the laws of counts and times are put in, not found."""
    return rows[~rows["extrapolated"]]


def _committed(frames: Frames) -> Check | None:
    timed = _run_whole(frames.timed)
    if "workload.stop" in timed:
        timed = timed[timed["workload.stop"] == "length"]
    if not len(timed):
        return None
    bad = int((timed["committed_tokens"] != timed["requested_tokens"]).sum())
    return Check(
        "fixed length: committed = requested tokens", _verdict(bad), f"{len(timed) - bad:,} of {len(timed):,} requests"
    )


def _forwards(frames: Frames, cells: pd.DataFrame) -> Check | None:
    timed = _run_whole(frames.timed)
    expected = {row["cell"]: laws.forwards(row) for _, row in cells.iterrows()}
    timed = timed.assign(expected=timed["cell"].map(expected).astype(float))
    timed = timed[timed["expected"].notna() & timed["nfe"].notna()]
    if not len(timed):
        return None
    bad = int((timed["nfe"] != timed["expected"]).sum())
    return Check(
        "NFE = N token by token, = K for a canvas in K steps, whatever the cache",
        _verdict(bad),
        f"{len(timed) - bad:,} of {len(timed):,} requests",
    )


def _forwards_by_values(frames: Frames) -> Check | None:
    """What the text decides: at least one forward, at most one a token."""
    timed = _run_whole(frames.timed)
    if "decoder.sampler" not in timed:
        return None
    timed = timed[timed["decoder.sampler"].isin(laws.BY_VALUES) & timed["nfe"].notna()]
    if not len(timed):
        return None
    bad = int((~timed["nfe"].between(1, timed["committed_tokens"])).sum())
    return Check("threshold, factor: 1 ≤ NFE ≤ N", _verdict(bad), f"{len(timed) - bad:,} of {len(timed):,} requests")


def _ancestral(frames: Frames, cells: pd.DataFrame) -> Check | None:
    """Mean over distinct requests against the formula; a standard error needs a few of them."""
    expected = {row["cell"]: laws.expected_ancestral(row) for _, row in cells.iterrows()}
    timed = _run_whole(frames.timed).drop_duplicates(["cell", "request_id", "seed"])
    found = []
    for cell, requests in timed.groupby("cell"):
        nfe = requests["nfe"].dropna()
        if expected.get(cell) is not None and len(nfe) >= 4:
            found.append((nfe.mean() - expected[cell]) / max(nfe.std() / len(nfe) ** 0.5, 1e-9))
    if not found:
        return None
    bad = sum(abs(error) > 3 for error in found)
    worst = max(found, key=abs)
    law = "ancestral: mean NFE = T(1 − (1 − 1/T)^L) within 3 standard errors"
    return Check(law, _verdict(bad), f"{len(found) - bad} of {len(found)} cells, furthest {worst:+.1f}")


def _denoised_positions(cells: pd.DataFrame) -> Check | None:
    law = pd.Series({index: laws.positions(row) for index, row in cells.iterrows()}, dtype=float)
    known = cells[law.notna() & cells["positions_computed"].notna()]
    if not len(known):
        return None
    bad = known[known["positions_computed"] != law[known.index]]
    return Check(
        "denoising: positions = NFE·(prompt + canvas); less by what trained blocks, prefix and dual caches leave out",
        _verdict(len(bad)),
        _count(len(known), bad),
    )


def _linear(frames: Frames) -> list[Check]:
    """One check a series that carries its state; without a cache a step grows, and the law is not expected.

    It is judged by the fastest request of each length, since a busy machine only ever adds time; a length that misses
    and had contended units is called noise.
    """
    fastest = frames.timed.sort_values("e2e_s").groupby("cell")[["ttft_s", "e2e_s"]].first()
    found = []
    for name, line in _run_whole(series_over(frames, OUTPUT_LEN)).groupby("series", sort=False):
        line = line.drop(columns=["ttft_s", "e2e_s"]).join(fastest, on="cell").sort_values("committed_tokens")
        if not (line["nfe"] == line["committed_tokens"]).all() or not (line["state_used_bytes"].dropna() > 0).any():
            continue
        fit = statistics.fit_latency(line["committed_tokens"], line["ttft_s"], line["e2e_s"])
        if fit is None:
            continue
        noisy = set(line.loc[line["contended"], "committed_tokens"].astype(int))
        off = fit.residual[fit.residual.abs() > TOLERANCE].index.astype(int).tolist()
        verdict = HOLDS if not off else NOISE if set(off) <= noisy else FAILS
        residuals = ", ".join(
            f"{length}: {value:+.1%}{' (noise)' * (length in noisy)}" for length, value in fit.residual.items()
        )
        law = f"{name}: E2E = TTFT + (N − 1)·t_step within {TOLERANCE:.0%}, fastest of each length"
        found.append(Check(law, verdict, f"t_step {1e3 * fit.t_step_s:.3g} ms; residual at {residuals}"))
    return found


def _formula(cells: pd.DataFrame) -> Check | None:
    both = cells[cells["state_used_bytes"].notna() & cells["state_formula_bytes"].notna()]
    if not len(both):
        return None
    bad = both[both["state_used_bytes"] != both["state_formula_bytes"]]
    return Check("state: formula = bytes of the tensors", _verdict(len(bad)), _count(len(both), bad))


def _kv_bytes(cells: pd.DataFrame) -> Check | None:
    """2·layers·positions·kv_heads·head_dim·batch·itemsize, from the factors alone."""
    need = [
        "model.block",
        "model.num_blocks",
        "model.attention.num_kv_heads",
        "model.d_model",
        "model.attention.num_heads",
        "device.dtype",
        "decoder.cache",
    ]
    if not set(need) <= set(cells):
        return None
    kept = cells[cells[need].notna().all(axis=1) & cells["state_used_bytes"].notna()]
    positions = pd.Series({index: laws.kept_positions(row) for index, row in kept.iterrows()}, dtype=float)
    plain = kept["model.block"].str.fullmatch("[AFE]*A[AFE]*") & kept["device.dtype"].isin(list(ITEMSIZE))
    plain &= positions.notna()
    for option in ("decoder.kv_dtype", "model.attention.head_dim"):  # 8 bits have scales; a width of its own is no law
        plain &= kept[option].isna() if option in kept else True
    kept, positions = kept[plain], positions[plain]
    if not len(kept):
        return None
    layers = kept["model.block"].str.count("A") * kept["model.num_blocks"]
    width = kept["model.attention.num_kv_heads"] * (kept["model.d_model"] / kept["model.attention.num_heads"])
    law = 2 * layers * positions * width * kept["workload.batch_size"] * kept["device.dtype"].map(ITEMSIZE)
    bad = kept[law != kept["state_used_bytes"]]
    return Check(
        "KV bytes = 2·layers·(prompt + N − 1)·kv_heads·head_dim·batch·itemsize; a canvas: its kept positions",
        _verdict(len(bad)),
        _count(len(kept), bad),
    )


def _constant_state(cells: pd.DataFrame) -> Check | None:
    """A stack of Mamba layers alone carries the same bytes whatever the lengths."""
    if "model.block" not in cells:
        return None
    pure = cells[cells["model.block"].astype(str).str.fullmatch("[FE]*[SMT][SMTFE]*") & (cells["state_used_bytes"] > 0)]
    per_row = (pure["state_used_bytes"] / pure["workload.batch_size"]).groupby([pure["label"], pure["machine_id"]])
    if not len(pure):
        return None
    bad = int((per_row.nunique() > 1).sum())
    return Check(
        "SSM state is constant in length",
        _verdict(bad),
        f"{len(pure)} cells, {' / '.join(f'{value:,.0f}' for value in per_row.max())} bytes a request",
    )


def _uncached_positions(cells: pd.DataFrame) -> Check | None:
    if "decoder.cache" not in cells:
        return None
    causal = cells["model.causal"].eq(True) if "model.causal" in cells else True
    naive = cells[
        causal
        & (cells["decoder.cache"] == "none")
        & (cells["workload.batch_size"] == 1)
        & cells["positions_computed"].notna()
    ]
    if not len(naive):
        return None
    n = naive["committed_tokens"]
    bad = naive[naive["positions_computed"] != n * naive["workload.prompt_len"] + n * (n - 1) / 2]
    return Check("without a cache: positions = N·prompt + N(N − 1)/2", _verdict(len(bad)), _count(len(naive), bad))


def _steady(frames: Frames) -> Check:
    bad = int((~frames.ok["warmup_steady"]).sum())
    total = len(frames.ok)
    return Check("warm-up ended steady", NOISE if bad else HOLDS, f"{total - bad:,} of {total:,} units")


def _first_repeat(frames: Frames) -> Check | None:
    """Whether warming up was enough for the repeats of a unit."""
    timed = _run_whole(frames.timed).groupby(["key", "repeat"])["e2e_s"].median().reset_index()
    first = statistics.first_is_slower(timed["e2e_s"], timed["key"], timed["repeat"])
    if first is None:
        return None
    law = f"first timed repeat as fast as those after it (by ranks, and within {WARM:.0%})"
    figure = f"{first.excess:+.1%} in the median of {first.groups:,} unit{'s' * (first.groups > 1)}, p = {first.p:.2g}"
    return Check(law, NOISE if first.p < 0.01 and first.excess > WARM else HOLDS, figure)


def _first_round(frames: Frames) -> Check | None:
    """Whether the machine had settled before the first round; all cells share a round, so it counts as one."""
    by_round = _run_whole(frames.timed).groupby(["cell", "round"])["e2e_s"].median().unstack("round")
    by_round = by_round[by_round.count(axis=1) > 2]
    if by_round.shape[1] < 3 or not len(by_round):
        return None
    logs = np.log(by_round.where(by_round > 0))
    level = np.exp(logs.sub(logs.mean(axis=1), axis=0).median())
    first, later = level.iloc[0] / level.iloc[1:].median() - 1, level.iloc[1:] / level.iloc[1:].median() - 1
    slow = first > max(later.max(), 2 * WARM)
    return Check(
        f"first round as fast as those after it (not the slowest, or within {2 * WARM:.0%})",
        NOISE if slow else HOLDS,
        f"{first:+.1%}; later ones {later.min():+.1%} to {later.max():+.1%}, medians over {len(by_round):,} cells",
    )


def _anchor(frames: Frames) -> list[Check]:
    anchors = frames.ok.loc[frames.ok["is_anchor"], "key"].tolist()
    moved = statistics.drift(frames.timed, anchors)
    measured, divided = statistics.spread_over_rounds(frames.timed, anchors)
    others = (
        ""
        if math.isnan(measured)
        else (
            f"; other cells vary over rounds by {measured:.1%}, after dividing by the anchor's drift by {divided:.1%}"
        )
    )
    found = []
    for machine, rounds in moved.groupby("machine_id"):
        worst = float(rounds["relative"].abs().max())
        name = "drift of the anchor cell" + (f", {machine}" if moved["machine_id"].nunique() > 1 else "")
        verdict = HOLDS if worst <= TOLERANCE else NOISE
        found.append(
            Check(
                f"{name} within {TOLERANCE:.0%}",
                verdict,
                f"at most {worst:.1%} over {len(rounds)} round{'s' * (len(rounds) > 1)}{others}",
            )
        )
    return found


def _count(total: int, bad: pd.DataFrame) -> str:
    text = f"{total - len(bad):,} of {total:,} cells"
    if len(bad):
        first = bad.iloc[0]
        text += f"; first off: {first['label']} at output {show(first[OUTPUT_LEN])}"
    return text
