"""A/A test: one paradigm under two names, whose intervals must cover "no difference" as often as they say.

    python -m paradigms -m experiment=same        # minutes: 182 rounds of short units
    python -m analysis.same runs/same             # share that covers, its own interval, median half-width, a figure

Cells that differ in the paradigm's name alone are paired. The rounds are cut into groups of seven, and each group gives
a comparison of its own, exactly as a sweep of seven rounds would: a ratio paired within rounds, with its interval. An
interval of 95.3 % (seven rounds) has to cover 1 in 93 to 97 % of them and reach 3 % to either side in the median. Exit
code 0 when both hold, 1 when one does not, 2 for bad input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import intervals, statistics, style
from analysis.frames import Frames, load
from analysis.intervals import Estimate
from analysis.summary import per_request, show

GROUP = 7  # rounds a comparison: the fewest whose level is as near to 95 % as 95.3
SHARE = (0.93, 0.97)
HALF_WIDTH = 0.03
NAMES = ("paradigm.name", "paradigm.label")


@dataclass(frozen=True, eq=False)
class Same:
    """An A/A test.

    Attributes:
        comparisons: a row a comparison: `names`, `group`, `ratio`, `low`, `high`, `coverage`, `covers`.
        share: of comparisons whose interval covers 1, with its exact binomial interval.
        promised: coverage that the intervals state.
        half_width: median of half their lengths, relative.
    """

    comparisons: pd.DataFrame
    share: Estimate
    promised: float
    half_width: float

    @property
    def holds(self) -> bool:
        return SHARE[0] <= self.share.value <= SHARE[1] and self.half_width <= HALF_WIDTH

    def sentence(self) -> str:
        hits = int(self.comparisons["covers"].sum())
        return (
            f"{hits} of {len(self.comparisons)} intervals cover no difference: {self.share.value:.1%} "
            f"[{self.share.low:.1%}, {self.share.high:.1%}], stated {self.promised:.1%}; "
            f"median half-width {self.half_width:.2%}"
        )


def run_test(frames: Frames, *, group: int = GROUP) -> Same:
    """Pair cells that differ in their paradigm's name alone, and compare them a group of rounds at a time.

    Rounds left over after the last whole group, or that lack either cell, are not used.

    Raises:
        ValueError: a group too small for 95 %, no such pair, or too few rounds for one comparison.
    """
    if group < 5:
        raise ValueError(f"rounds={group} give no interval of 95 %; use at least 5")
    pairs = _pairs(frames)
    if not pairs:
        raise ValueError(
            "no two cells differ in the paradigm's name alone; measure one under two names: "
            "python -m paradigms -m experiment=same"
        )
    by_round = per_request(frames).groupby(["cell", "sweep.name", "round"], dropna=False)["e2e_s"].median()
    rows = []
    for name, one, other in pairs:
        both = pd.concat([by_round.loc[one], by_round.loc[other]], axis=1, keys=["one", "other"]).dropna().sort_index()
        for index in range(len(both) // group):
            rounds = both.iloc[index * group : (index + 1) * group]
            ratio = statistics.paired_ratio(rounds["other"], rounds["one"])
            rows.append({"names": name, "group": index, "ratio": ratio.value, "low": ratio.low, "high": ratio.high,
                         "coverage": ratio.coverage, "covers": ratio.low <= 1 <= ratio.high})  # fmt: skip
    if not rows:
        raise ValueError(f"no pair of cells has {group} rounds; run more (measure.rounds) or give a smaller --rounds")
    found = pd.DataFrame(rows)
    share = intervals.binomial(int(found["covers"].sum()), len(found))
    half_width = float(((found["high"] - found["low"]) / (2 * found["ratio"])).median())
    return Same(found, share, float(found["coverage"].mean()), half_width)


def _pairs(frames: Frames) -> list[tuple[str, str, str]]:
    """(what they share and are called, one cell, the other); of three names each is paired with the first."""
    cells = frames.ok.drop_duplicates("cell")
    factors = sorted(str(name) for name in cells if "." in str(name) and name not in NAMES)
    alike: dict[tuple[str, ...], list[dict[str, object]]] = {}
    for row in cells.sort_values("paradigm.name").to_dict("records"):
        key = (*(show(row[name]) for name in factors), str(row["machine_id"]), str(row["checkpoint"]))
        alike.setdefault(key, []).append(row)
    return [
        (f"{other['paradigm.label']} / {one['paradigm.label']}, {show(one['workload.output_len'])} tokens",
         str(one["cell"]), str(other["cell"]))
        for one, *others in alike.values() for other in others
    ]  # fmt: skip


def draw(frames: Frames, told: Same) -> Figure:
    """Every interval, sorted by its ratio; those that miss 1 stand out."""
    found = told.comparisons.sort_values("ratio").reset_index(drop=True)
    with style.look():
        fig, (panel,) = style.panels(1, width=9.5, legend=0.0)
        panel.axhline(1, color=style.GREY, linewidth=1)
        for covers, color in ((True, style.mark(0, 2).color), (False, style.mark(1, 2).color)):
            part = found[found["covers"] == covers]
            panel.vlines(part.index, part["low"], part["high"], color=color, linewidth=1.2)
            panel.plot(part.index, part["ratio"], linestyle="none", marker=".", markersize=3, color=color,
                       label=f"{'covers' if covers else 'misses'} 1: {len(part)}")  # fmt: skip
        edge = float(np.nanquantile(np.abs(np.log(found[["low", "high"]])), 0.99))
        panel.set_ylim(np.exp(-1.1 * edge), np.exp(1.1 * edge))
        panel.set(xlabel="comparison, sorted by ratio", ylabel="E2E of the second name / of the first",
                  title="One paradigm under two names")  # fmt: skip
        panel.legend(loc="upper left")
        style.caption(fig, frames, told.sentence(), medians=False, hollow=False)
    return fig


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.same", description="One paradigm under two names: do the intervals cover?"
    )
    parser.add_argument("folder", help="a sweep's folder, such as runs/same")
    parser.add_argument("--rounds", type=int, default=GROUP, help="rounds a comparison (default: %(default)s)")
    parser.add_argument("--out", help="where the figure goes (default: report/figures/same.png inside the folder)")
    options = parser.parse_args(arguments)
    out = Path(options.out or Path(options.folder) / "report" / "figures" / "same.png")
    try:
        frames = load(options.folder)
        told = run_test(frames, group=options.rounds)
        out.parent.mkdir(parents=True, exist_ok=True)
        draw(frames, told).savefig(out, dpi=160)
    except ValueError as error:
        parser.exit(2, f"analysis.same: {error}\n")
    except OSError as error:
        parser.exit(2, f"analysis.same: cannot write {error.filename}: {error.strerror}; name another with --out\n")
    print(f"{told.sentence()}.")
    verdict = "holds" if told.holds else "does not hold"
    print(f"asked: {SHARE[0]:.0%} to {SHARE[1]:.0%}, at most {HALF_WIDTH:.0%}: {verdict}")
    print(out)
    return 0 if told.holds else 1


if __name__ == "__main__":
    sys.exit(main())
