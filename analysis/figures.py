"""The figures, each a function of frames. `choose` picks those that the sweep's varying factors call for."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import diffusion_figures, epochs, findings, predictions, roofline_figures, statistics, style
from analysis.choices import Choice
from analysis.frames import Frames
from analysis.summary import BATCH_SIZE, OUTPUT_LEN, PROMPT_LEN, axes_varying, headline_cells, labels, series_over

MOST_SERIES = 16  # that a legend of paradigms can tell apart
AXIS_NAMES = {
    OUTPUT_LEN: "output length, tokens",
    PROMPT_LEN: "prompt length, tokens",
    BATCH_SIZE: "batch size, requests",
}
UNITS = {
    "e2e_s": "end to end, seconds",
    "e2e_per_token_s": "end to end / tokens, seconds a token",
    "ttft_s": "time to first token, seconds",
    "tpot_s": "time per output token, seconds",
    "step_time_s": "time a step, seconds",
    "throughput_tokens_per_s": "output tokens / s, whole batch",
    "tokens_per_forward": "tokens per forward, n / NFE",
    "positions_computed": "positions computed",
    "state_used_bytes": "state used, bytes",
    "peak_tensor_bytes": "peak of live tensors, bytes",
    "cuda_peak_allocated_bytes": "peak allocated on the GPU, bytes",
    "judge_bits_per_byte": "judge, bits per byte",
    "token_entropy_nats": "token entropy, nats",
    "bits_per_byte": "held-out text, bits per byte",
}


def choose(frames: Frames) -> list[Choice]:
    """Figures for what varies: output length, prompt length, batch size; quality and loss where they were recorded."""
    axes = axes_varying(frames)
    chosen = diffusion_figures.choose(frames)
    many = len(labels(frames)) > MOST_SERIES and bool(chosen)  # which show it, line by line
    if OUTPUT_LEN in axes:
        chosen += [
            Choice("latency", "Latency against output length", latency, findings.slopes),
            Choice("seconds_a_token", "Seconds a token", seconds_a_token, findings.seconds_a_token),
            Choice("first_token", "Time to first token and per output token", first_token, findings.first_token),
            Choice("tokens_per_forward", "Tokens per forward", tokens_per_forward, findings.tokens_per_forward),
            Choice("positions", "Positions computed", positions, findings.positions),
            Choice("memory", "State and peak memory", memory, findings.memory),
        ]
    if PROMPT_LEN in axes:
        chosen.append(Choice("context", "Longer prompts", context, findings.context))
    if BATCH_SIZE in axes:
        chosen.append(Choice("batch", "Larger batches", batch, findings.batch))
    if not many and len(headline_cells(frames)) and frames.requests["judge_bits_per_byte"].notna().any():
        chosen.append(Choice("quality", "Quality against latency", quality, findings.quality))
    chosen += roofline_figures.choose(frames)
    chosen += predictions.choose(frames)
    if frames.training["val_bits_per_byte"].notna().any():
        chosen.append(Choice("loss", "Loss curves", loss, findings.loss))
    chosen += epochs.choose(frames)
    return chosen


def _against(
    frames: Frames,
    axis: str,
    metrics: list[str],
    *,
    titles: list[str] | None = None,
    slope_of: str = "",
    notes: tuple[str, ...] = (),
) -> Figure:
    """A panel a metric, each against `axis`, log-log; the legend tells the slope of `slope_of`."""
    rows = series_over(frames, axis)
    with style.look():
        fig, panels = style.panels(len(metrics))
        handles = []
        for label, group in _in_order(rows):
            for index, (series, line) in enumerate(group.groupby("series", sort=False)):
                dash, mark = style.dash_of(index), style.mark_of(frames, label)
                for panel, metric in zip(panels, metrics, strict=True):
                    style.points(panel, _positive(line, metric), "x", metric, mark, dash=dash)
                text = str(series)
                if slope_of:
                    text += "\n" + findings.slope_text(statistics.loglog_slope(line["x"], line[slope_of]))
                    text += " (part extrapolated)" if line["extrapolated"].any() else ""
                handles.append(style.handle(text, mark, dash=dash))
        for index, (panel, metric) in enumerate(zip(panels, metrics, strict=True)):
            style.log_axis(panel, "x", values=rows["x"])
            if rows[metric].gt(0).any():
                style.log_axis(panel, "y", unit=_unit(metric))
            panel.set(xlabel=AXIS_NAMES[axis], ylabel=UNITS[metric])
            if titles:
                panel.set_title(titles[index])
            _say_missing(panel, rows, metric)
        style.legend(fig, handles)
        style.caption(fig, frames, *notes)
    return fig


def _in_order(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(str(label), group) for label, group in rows.sort_index().groupby("label", sort=False)]


def _positive(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    return rows[rows[metric] > 0].sort_values("x")


def _say_missing(panel: Axes, rows: pd.DataFrame, metric: str) -> None:
    """Name the series a panel cannot show: a log axis has no zero, an undefined figure no place."""
    zero = [label for label, group in _in_order(rows) if len(group) and (group[metric] == 0).all()]
    undefined = [label for label, group in _in_order(rows) if group[metric].isna().all()]
    lines = ["zero: " + style.wrap(zero, 56)] if zero else []
    lines += ["undefined: " + style.wrap(undefined, 56)] if undefined else []
    if lines:
        panel.set_xlabel(panel.get_xlabel() + "\n" + "\n".join(lines), fontsize=9)


def _unit(metric: str) -> str:
    return "s" if metric.endswith("_s") and "per_s" not in metric else "B" if metric.endswith("_bytes") else ""


def latency(frames: Frames) -> Figure:
    """End-to-end latency against output length, with the exponent of each."""
    return _against(
        frames, OUTPUT_LEN, ["e2e_s"], slope_of="e2e_s", notes=("Slope: exponent of E2E ~ N^slope ± its 95 % interval",)
    )


def seconds_a_token(frames: Frames) -> Figure:
    """E2E / n: the figure that compares across paradigms."""
    return _against(frames, OUTPUT_LEN, ["e2e_per_token_s"])


def first_token(frames: Frames) -> Figure:
    """What a reader waits for the first token, and for each one after it."""
    return _against(frames, OUTPUT_LEN, ["ttft_s", "tpot_s"], titles=["First token", "Each token after it"],
                    notes=("TPOT is undefined when all tokens arrive at once",))  # fmt: skip


def tokens_per_forward(frames: Frames) -> Figure:
    return _against(frames, OUTPUT_LEN, ["tokens_per_forward"])


def positions(frames: Frames) -> Figure:
    """Positions pushed through the model: N with a cache or a state, N²/2 without, steps x canvas for diffusion."""
    return _against(frames, OUTPUT_LEN, ["positions_computed"], notes=("Prompt positions included",))


def memory(frames: Frames) -> Figure:
    """State carried between steps, counted from the tensors and by formula, and the peak of live tensors."""
    on_gpu = frames.ok["cuda_peak_allocated_bytes"].notna().any()
    peak = "cuda_peak_allocated_bytes" if on_gpu else "peak_tensor_bytes"
    note = "Crosses: the formula; memory is measured once, in the first round"
    fig = _against(frames, OUTPUT_LEN, ["state_used_bytes", peak], titles=["State", "Peak"], notes=(note,))
    rows = series_over(frames, OUTPUT_LEN)
    rows = rows[rows["state_formula_bytes"] > 0]
    fig.axes[0].plot(
        rows["x"], rows["state_formula_bytes"], linestyle="none", marker="+", color="black", markersize=9, zorder=4
    )
    return fig


def context(frames: Frames) -> Figure:
    return _against(
        frames, PROMPT_LEN, ["ttft_s", "step_time_s", "state_used_bytes"], titles=["First token", "A step", "State"]
    )


def batch(frames: Frames) -> Figure:
    return _against(
        frames,
        BATCH_SIZE,
        ["throughput_tokens_per_s", "e2e_s"],
        titles=["Throughput of the batch", "Latency of a request"],
    )


def _quality_panel(frames: Frames, panel: Axes, rows: pd.DataFrame, metric: str) -> None:
    for label, group in _in_order(rows):
        mark = style.mark_of(frames, label)
        style.points(panel, group, "e2e_per_token_s", metric, mark, line=False)
        bounds = (
            group[group["bits_per_byte_is_bound"].eq(True) & group[metric].notna()]
            if metric == "bits_per_byte"
            else group[:0]
        )
        for x, y in zip(bounds["e2e_per_token_s"], bounds[metric], strict=True):
            panel.annotate("", xy=(x, y), xytext=(0, -22), textcoords="offset points",
                           arrowprops={"arrowstyle": "<-", "color": mark.color, "lw": 1.3})  # fmt: skip
    panel.margins(x=0.12, y=0.14)
    style.log_axis(panel, "x", unit="s")
    panel.set(xlabel=UNITS["e2e_per_token_s"], ylabel=UNITS[metric])
    _say_missing(panel, rows, metric)


def quality(frames: Frames) -> Figure:
    """What the speed costs: a judge's bits per byte beside token entropy, since dull text pleases a judge."""
    rows = headline_cells(frames)
    metrics = [
        name for name in ("judge_bits_per_byte", "token_entropy_nats", "bits_per_byte") if rows[name].notna().any()
    ]
    titles = {
        "judge_bits_per_byte": "Judged text (lower: likelier)",
        "token_entropy_nats": "Its variety (higher: less dull)",
        "bits_per_byte": "Held-out text (arrow: upper bound)",
    }
    with style.look():
        fig, panels = style.panels(len(metrics), width=4.1)
        for panel, metric in zip(panels, metrics, strict=True):
            _quality_panel(frames, panel, rows, metric)
            panel.set_title(titles[metric])
        style.legend(fig, [style.handle(str(name), style.mark_of(frames, label), line=False)
                           for label, group in _in_order(rows) for name in dict.fromkeys(group["series"])])  # fmt: skip
        style.caption(fig, frames, findings.where(rows), style.texts_note(rows))
    return fig


def loss(frames: Frames) -> Figure:
    """Validation bits per byte against tokens seen; a bound is dashed and named so."""
    with style.look():
        fig, (panel,) = style.panels(1, width=7.2)
        handles = []
        for curve in findings.curves(frames):
            mark = style.mark_of(frames, curve.label)
            dash = style.dash_of(1) if curve.is_bound else "-"
            panel.plot(
                curve.rows["tokens"] / 1e6,
                curve.rows["val_bits_per_byte"],
                color=mark.color,
                linestyle=dash,
                marker=".",
            )
            handles.append(
                style.handle(
                    curve.name + ("\n(upper bound)" if curve.is_bound else ""), replace(mark, marker="."), dash=dash
                )
            )
        panel.set(xlabel="training tokens, millions", ylabel="validation text, bits per byte")
        style.legend(fig, handles)
        style.caption(fig, frames, "Dashed: an upper bound, the true value lies at or below it")
    return fig


def headline(frames: Frames) -> Figure:
    """The story in one picture: latency against length, and at the longest length what was bought with it."""
    axis = (axes_varying(frames) or [OUTPUT_LEN])[0]
    rows, last = series_over(frames, axis), headline_cells(frames)
    with style.look():
        fig, (left, right) = style.panels(2, width=4.8, height=4.2)
        handles = []
        for label, group in _in_order(rows if len(rows) else last):
            for index, (series, line) in enumerate(group.groupby("series", sort=False)):
                mark, dash = style.mark_of(frames, label), style.dash_of(index)
                style.points(left, line.sort_values("x"), "x", "e2e_s", mark, dash=dash)
                handles.append(style.handle(str(series), mark, dash=dash))
        style.log_axis(left, "x", values=(rows if len(rows) else last)["x"])
        style.log_axis(left, "y", unit="s")
        left.set(xlabel=AXIS_NAMES[axis], ylabel=UNITS["e2e_s"], title="Latency")
        metric = "judge_bits_per_byte" if last["judge_bits_per_byte"].notna().any() else "bits_per_byte"
        _quality_panel(frames, right, last, metric)
        right.set_title("What it buys (lower left is better)")
        style.legend(fig, handles)
        style.caption(fig, frames, f"Right: {findings.where(last)}")
    return fig
