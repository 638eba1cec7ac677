"""What was equal and what was not, and whether known laws hold: the two tables that a comparison stands on."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pandas as pd

from analysis import statistics
from analysis.frames import WORK, Frames
from analysis.summary import OUTPUT_LEN, labels, series_over, show, summarise

HOLDS, FAILS, NOISE = "holds", "does not hold", "noise"
ITEMSIZE = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
TOLERANCE = 0.05  # of the linear law of latency
SAME_SIZE = 0.02


@dataclass(frozen=True)
class Check:
    """A law, whether it holds, and the figure that says so."""

    law: str
    verdict: str
    figure: str


@dataclass(frozen=True)
class Equality:
    """A factor that ought to be equal over all paradigms."""

    factor: str
    equal: bool
    values: str


def equalities(frames: Frames) -> list[Equality]:
    """Each factor with its one value, or with who differs."""
    ok = frames.ok
    if not len(ok):
        return []
    sampling = sorted(str(name) for name in ok if re.search(r"\.(temperature|top_k|top_p)$", str(name)))
    rows = [
        _equality("machine", frames, ok["machine"]),
        _equality("device", frames, ok["device.name"]) if "device.name" in ok else None,
        _equality("dtype", frames, ok["device.dtype"]) if "device.dtype" in ok else None,
        _equality("threads", frames, ok["device.threads"]) if "device.threads" in ok else None,
        _equality("execution", frames, ok["execution"]),
        _equality("kernels", frames, ok["kernels"]),
        _equality("timeline", frames, ok["measure.timeline"]) if "measure.timeline" in ok else None,
        _equality("sampling", frames, _joined(ok, sampling)) if sampling else None,
        _equality("stop", frames, ok["workload.stop"]) if "workload.stop" in ok else None,
        _equality("prompts", frames, ok["workload.prompts"]) if "workload.prompts" in ok else None,
        _lengths(frames),
        _parameters(frames),
        _equality("tokens seen by the kept checkpoint", frames, ok["checkpoint_tokens"]),
        _equality("tokens trained on in all", frames, _budget(frames)),
        _equality("corpus", frames, ok["corpus_sha256"].map(lambda value: str(value)[:12], na_action="ignore")),
        *(_equality(str(name), frames, ok[name]) for name in ok if str(name).startswith("tokenizer.")),
        _equality("torch", frames, ok["torch_version"]),
        _equality("code", frames, ok["code"]),
    ]
    return [row for row in rows if row is not None]


def _equality(factor: str, frames: Frames, values: pd.Series) -> Equality:
    shown = values.astype(object).where(values.notna(), None).map(show)
    distinct = list(dict.fromkeys(shown))
    if len(distinct) == 1:
        return Equality(factor, True, "not recorded" if distinct[0] == "none" and factor != "sampling" else distinct[0])
    by_label = {
        label: ", ".join(sorted(set(group)))
        for label, group in shown.groupby(frames.ok["paradigm.label"].loc[shown.index])
    }
    groups: dict[str, list[str]] = {}
    for label in labels(frames):
        if label in by_label:
            groups.setdefault(by_label[label], []).append(label)
    return Equality(factor, False, "; ".join(f"{value} ({' / '.join(names)})" for value, names in groups.items()))


def _joined(runs: pd.DataFrame, names: list[str]) -> pd.Series:
    rows = runs[names].to_dict("records")
    text = [", ".join(f"{name.rpartition('.')[2]} {show(row[name])}" for name in names) for row in rows]
    return pd.Series(text, index=runs.index, dtype=object)


def _budget(frames: Frames) -> pd.Series:
    return frames.ok["checkpoint"].map(frames.training.groupby("checkpoint")["tokens"].max())


def _lengths(frames: Frames) -> Equality:
    cells = frames.ok.drop_duplicates(["paradigm.label", *WORK])
    work = {
        label: set(map(tuple, group[list(WORK)].to_numpy().tolist()))
        for label, group in cells.groupby("paradigm.label")
    }
    everything = set.union(*work.values())
    lacking = {label: len(everything - done) for label, done in work.items() if everything - done}
    text = f"{len(everything)} combination{'s' * (len(everything) > 1)} of output, prompt and batch"
    if lacking:
        text += "; not measured: " + ", ".join(f"{count} of {label}" for label, count in lacking.items())
    return Equality("work", not lacking, text)


def _parameters(frames: Frames) -> Equality:
    sizes = frames.ok.groupby("paradigm.label")["parameters"].median().dropna()
    if not len(sizes):
        return Equality("parameters", True, "not recorded")
    spread = float(sizes.max() / sizes.min() - 1)
    text = f"{sizes.min():,.0f} to {sizes.max():,.0f}, {spread:.2%} apart (allowed: {SAME_SIZE:.0%})"
    return Equality("parameters", spread <= SAME_SIZE, text if spread else f"{sizes.min():,.0f}")


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
        *_linear(frames),
        _formula(fixed),
        _kv_bytes(fixed),
        _constant_state(cells),
        _uncached_positions(_run_whole(fixed)),
        _steady(frames),
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


def expected_forwards(cell: pd.Series) -> float | None:
    """Forwards a decoder must take: N token by token, K for a canvas in K steps; None where it decides itself."""
    if cell.get("workload.stop", "length") != "length":
        return None
    steps, threshold, cache = (cell.get(f"decoder.{name}") for name in ("steps", "threshold", "cache"))
    if steps is not None and not pd.isna(steps):
        match = re.fullmatch(r"L(?:/(\d+))?", str(steps))
        return max(1, cell[OUTPUT_LEN] // int(match[1] or 1)) if match else float(steps)
    sequential = cell.get("model.causal") in (True,) and isinstance(cache, str) and pd.isna(threshold)
    return cell[OUTPUT_LEN] if sequential else None


def _forwards(frames: Frames, cells: pd.DataFrame) -> Check | None:
    expected = {row["cell"]: expected_forwards(row) for _, row in cells.iterrows()}
    timed = _run_whole(frames.timed)
    timed = timed.assign(expected=timed["cell"].map(expected).astype(float))
    timed = timed[timed["expected"].notna() & timed["nfe"].notna()]
    if not len(timed):
        return None
    bad = int((timed["nfe"] != timed["expected"]).sum())
    return Check(
        "NFE = N token by token, = K for a canvas in K steps",
        _verdict(bad),
        f"{len(timed) - bad:,} of {len(timed):,} requests",
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
    """2·layers·(prompt + N − 1)·kv_heads·head_dim·batch·itemsize, from the factors alone."""
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
    kept = cells[
        cells[need].notna().all(axis=1) & (cells["decoder.cache"] == "state") & cells["state_used_bytes"].notna()
    ]
    plain = kept["model.block"].str.fullmatch("[AFE]*A[AFE]*") & kept["device.dtype"].isin(list(ITEMSIZE))
    for option in ("decoder.kv_dtype", "model.attention.head_dim"):  # 8 bits have scales; a width of its own is no law
        plain &= kept[option].isna() if option in kept else True
    kept = kept[plain]
    if not len(kept):
        return None
    layers = kept["model.block"].str.count("A") * kept["model.num_blocks"]
    positions = kept["workload.prompt_len"] + kept["committed_tokens"] - 1
    width = kept["model.attention.num_kv_heads"] * (kept["model.d_model"] / kept["model.attention.num_heads"])
    law = 2 * layers * positions * width * kept["workload.batch_size"] * kept["device.dtype"].map(ITEMSIZE)
    bad = kept[law != kept["state_used_bytes"]]
    return Check(
        "KV bytes = 2·layers·(prompt + N − 1)·kv_heads·head_dim·batch·itemsize",
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
    naive = cells[
        (cells["decoder.cache"] == "none") & (cells["workload.batch_size"] == 1) & cells["positions_computed"].notna()
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


def _anchor(frames: Frames) -> list[Check]:
    moved = statistics.drift(frames.timed, frames.ok.loc[frames.ok["is_anchor"], "key"].tolist())
    found = []
    for machine, rounds in moved.groupby("machine_id"):
        worst = float(rounds["relative"].abs().max())
        name = "drift of the anchor cell" + (f", {machine}" if moved["machine_id"].nunique() > 1 else "")
        verdict = HOLDS if worst <= TOLERANCE else NOISE
        found.append(
            Check(
                f"{name} within {TOLERANCE:.0%}",
                verdict,
                f"at most {worst:.1%} over {len(rounds)} round{'s' * (len(rounds) > 1)}",
            )
        )
    return found


def _count(total: int, bad: pd.DataFrame) -> str:
    text = f"{total - len(bad):,} of {total:,} cells"
    if len(bad):
        first = bad.iloc[0]
        text += f"; first off: {first['label']} at output {show(first[OUTPUT_LEN])}"
    return text
