"""Quality frontiers: which texts may enter, whose time they carry, what dominates, and what equal quality costs."""

import io
import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from synthetic_records import AR as AR_TEXT
from synthetic_records import QUARTER, SSM, write_sweep
from synthetic_tasks import AR, DIFFUSION, MQAR, NOISELESS, REMASKING, STAR, Asker, write_tasks
from synthetic_tasks import SSM as SSM_TASK

from analysis import equal_quality, frontier, frontier_figures, load, report, statistics
from analysis.frontier import CORRECT, JUDGE, common_level, cost_at, dominated, measure_of
from analysis.frontier import frontier as line_of
from analysis.style import mark_of

NATURAL = {"workload.stop": "natural"}


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch):
    monkeypatch.setattr(equal_quality, "DRAWS", 200)
    monkeypatch.setattr(report, "DPI", 40)


def page_of(frames):
    """What the page would say of frontiers; the figures are drawn."""
    for choice in frontier_figures.choose(frames):
        choice.draw(frames).savefig(io.BytesIO(), format="png", dpi=30)
    sentences = [choice.sentence(frames) for choice in frontier_figures.choose(frames)]
    return "\n".join(
        [frontier.note(frames), equal_quality.table(frames).markdown(), equal_quality.note(frames), *sentences]
    )


SMALL = {"output_lens": (16,), "rounds": 3, "repeats": 2}


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    return load(write_tasks(tmp_path_factory.mktemp("runs") / "mine"))


# What may enter.


def test_forced_lengths_never_enter(tmp_path):
    """The same paradigm twice: of forced length it is faster and better, and must not be seen."""
    forced = Asker("ar", "AR Transformer", {STAR: (1.0,)}, e2e_s=0.001)
    write_tasks(tmp_path / "s", askers=(AR, DIFFUSION), tasks=(STAR,))
    alone = frontier.points(load(tmp_path / "s"), CORRECT)
    both = load(write_tasks(tmp_path / "s", askers=(forced,), tasks=(STAR,), stop="length", shard="forced"))
    pd.testing.assert_frame_equal(frontier.points(both, CORRECT), alone)
    assert frontier.forced(both) == 3 and "3 cells of forced length left out" in frontier.note(both)
    assert {it.one for it in equal_quality.pairs(both)} | {it.other for it in equal_quality.pairs(both)} == {
        AR.label, DIFFUSION.label,
    }  # fmt: skip
    natural = replace(forced, label="another AR")
    seen = load(write_tasks(tmp_path / "s", askers=(natural,), tasks=(STAR,), shard="natural"))
    assert "another AR" in set(frontier.points(seen, CORRECT)["label"]), "were it natural it would be seen"


def test_natural_texts_carry_their_own_time(tmp_path):
    """Records of the same paradigm at forced length, and times in other columns, change nothing."""
    write_tasks(tmp_path / "s", askers=(AR,), tasks=(STAR,), seeds=(0,), repeats=1, **NOISELESS)
    slow = replace(AR, e2e_s=9.0)
    frames = load(write_tasks(tmp_path / "s", askers=(slow,), tasks=(STAR,), seeds=(0,), stop="length", shard="b"))
    (row,) = frontier.points(frames, CORRECT).to_dict("records")
    assert row["seconds"] == pytest.approx(AR.e2e_s) and row["requests"] == row["scored"] == 200
    rows = frontier.requests(frames)
    mine = frames.runs.loc[frames.runs["workload.stop"] == "natural", "key"]
    assert set(rows["key"]) == set(mine), "quality and time are of the same requests"


def test_text_of_forced_length_has_no_frontier_and_the_page_says_why(tmp_path):
    frames = load(write_sweep(tmp_path / "s", paradigms=(AR_TEXT, QUARTER), **SMALL))
    assert frontier.measures(frames) == () and frontier_figures.choose(frames) == []
    page = report.write_report(frames, tmp_path / "out")[0].read_text()
    assert "No quality frontier: 2 cells of forced length left out" in page and 'id="frontier_' not in page


def test_natural_text_is_judged_by_its_time_a_token(tmp_path):
    frames = load(write_sweep(tmp_path / "s", paradigms=(AR_TEXT, SSM, QUARTER), factors=NATURAL, **SMALL))
    assert frontier.measures(frames) == (JUDGE,)
    found = frontier.points(frames, JUDGE).set_index("label")
    requests = frames.timed[frames.timed["paradigm.label"] == SSM.label]
    per_token = (requests["e2e_s"] / requests["committed_tokens"]).groupby(requests["round"]).median().median()
    assert found.loc[SSM.label, "seconds"] == pytest.approx(per_token)
    assert (
        found.loc[SSM.label, "quality"] == pytest.approx(SSM.judge + 0.01) and found["token_entropy_nats"].notna().all()
    )


@pytest.mark.slow
def test_work_is_named_where_there_are_several(tmp_path):
    """One kind of work needs no name; panels of a row share the scale at their left; a long cell of a table wraps."""
    write_sweep(tmp_path / "s", paradigms=(AR_TEXT, SSM, QUARTER), factors=NATURAL, **SMALL)
    text = load(tmp_path / "s")
    assert "text:" not in frontier.sentence(text, JUDGE)
    panels = figure_of(text, JUDGE).axes
    assert [bool(panel.get_ylabel()) for panel in panels] == [True, *[False] * (len(panels) - 1)]
    assert len({panel.get_ylim() for panel in panels}) == 1 and not any(panel.get_title(loc="left") for panel in panels)
    assert equal_quality.table(text).rows, "some pairs reach a level"
    page = report.write_report(text, tmp_path / "out")[0].read_text()
    assert "<th class=long>beyond it</th>" in page and "<td class=long>" in page and "<th>work</th>" in page
    several = load(write_tasks(tmp_path / "t", askers=(AR, DIFFUSION), tasks=(STAR, MQAR), seeds=(0,)))
    titles = [panel.get_title(loc="left") for panel in figure_of(several, CORRECT).axes]
    assert len([title for title in titles if title]) == 2
    assert all(f"{title}: " in frontier.sentence(several, CORRECT) for title in titles if title)


def test_a_decade_of_times_has_room_for_its_ticks(tmp_path):
    """Labels such as 100 ms and 200 ms do not run into each other."""
    askers = (AR, replace(DIFFUSION, e2e_s=0.48), replace(SSM_TASK, e2e_s=0.24))
    figure = figure_of(load(write_tasks(tmp_path / "s", askers=askers, tasks=(STAR,))), CORRECT)
    figure.draw_without_rendering()
    shown = [label.get_window_extent() for label in figure.axes[0].get_xticklabels() if label.get_text()]
    boxes = sorted((box for box in shown if box.x1 > figure.axes[0].bbox.x0), key=lambda box: box.x0)
    assert len(boxes) > 3 and all(left.x1 + 2 < right.x0 for left, right in itertools.pairwise(boxes))


def test_extrapolated_and_planted_cells_do_not_enter(tmp_path):
    frames = load(write_tasks(tmp_path / "s", askers=(AR, REMASKING), tasks=(STAR,), planted=(0, 1)))
    assert set(frontier.requests(frames)["workload.planted"]) == {0}
    lost = load(
        write_sweep(tmp_path / "t", paradigms=(AR_TEXT,), factors=NATURAL, extrapolated=lambda *_: True, **SMALL)
    )
    assert not len(frontier.requests(lost)) and frontier.measures(lost) == ()


def test_records_without_a_stop_do_not_enter(tmp_path):
    frames = load(write_tasks(tmp_path / "s", askers=(AR,), tasks=(STAR,), seeds=(0,)))
    runs = frames.runs.drop(columns="workload.stop")
    assert not len(frontier.requests(type(frames)(frames.folders, runs, frames.requests, frames.training, ())))


def test_texts_that_ran_into_their_limit_are_told(tmp_path):
    cut = load(write_sweep(tmp_path / "s", paradigms=(AR_TEXT,), factors=NATURAL, **SMALL))
    said = f"of which up to 100 % ran into their limit ({AR_TEXT.label})"
    assert frontier.points(cut, JUDGE)["cut_off"].tolist() == [1.0] and said in frontier.note(cut)
    assert "up to 100 % ran" in figure_of(cut, JUDGE).get_supxlabel().replace("\n", " ")
    every_fourth = lambda _, row: row | {"finish_reason": "length" if row["row"] % 4 == 0 else "eos"}  # noqa: E731
    some = load(write_tasks(tmp_path / "t", askers=(AR,), tasks=(STAR,), seeds=(0,), changed=every_fourth))
    assert 0.2 < frontier.points(some, CORRECT)["cut_off"].item() < 0.3
    ended = load(write_tasks(tmp_path / "u", askers=(AR,), tasks=(STAR,), seeds=(0,)))
    assert "timed, texts that ended by themselves" in frontier.note(ended)


def test_texts_of_several_trainings_are_no_independent_texts():
    """Three trainings that differ by 0.1 and hundreds of texts each: a fourth would lie anywhere between, or beyond."""
    random = np.random.default_rng(0)
    levels = np.array([3.0, 3.1, 3.2])
    rows = pd.DataFrame({
        "cell": np.repeat(levels, 200), "training_seed": np.repeat(range(3), 200), "request_id": [*range(200)] * 3,
        "seed": 0, JUDGE.name: np.repeat(levels, 200) + random.normal(0, 0.05, 600),
    })  # fmt: skip
    found = frontier._quality(rows, JUDGE)
    assert found.value == pytest.approx(3.1, abs=0.02) and found.count == 600
    assert found.low == pytest.approx(3.0, abs=0.02) and found.high == pytest.approx(3.2, abs=0.02)
    drawn = np.percentile(equal_quality._drawn_quality(rows, JUDGE, 3.1, random), [2.5, 97.5])
    assert drawn == pytest.approx([3.0, 3.2], abs=0.02)
    one = rows[rows["training_seed"] == 0]
    alone, expected = frontier._quality(one, JUDGE), statistics.median_interval(one[JUDGE.name])
    assert (alone.low, alone.high, alone.coverage) == (expected.low, expected.high, expected.coverage)
    assert np.ptp(equal_quality._drawn_quality(one, JUDGE, 3.0, random)) < 0.05


def test_texts_without_a_figure_are_counted_and_said(tmp_path):
    """Who writes nothing where it is hard is judged by the rest."""
    frames = load(write_sweep(tmp_path / "s", paradigms=(AR_TEXT, SSM), factors=NATURAL, **SMALL))
    assert "in no quality" not in frontier.note(frames)
    keys = frames.runs.loc[frames.runs["paradigm.label"] == SSM.label, "key"]
    nothing = frames.requests["key"].isin(keys) & (frames.requests["repeat"] == 1)
    requests = frames.requests.assign(**{JUDGE.name: frames.requests[JUDGE.name].mask(nothing)})
    changed = type(frames)(frames.folders, frames.runs, requests, frames.training, ())
    assert frontier.points(changed, JUDGE).set_index("label")["unscored"].to_dict() == {
        AR_TEXT.label: 0,
        SSM.label: 0.5,
    }
    assert f"are in no quality: up to 0.5 of all ({SSM.label})" in page_of(changed)


def test_work_whose_records_lack_a_factor_is_told_apart(tmp_path):
    """Records of tasks beside older ones of text, which know nothing of planted errors."""
    frames = load(write_tasks(tmp_path / "s", askers=(AR,), tasks=(STAR, MQAR), seeds=(0,)))
    runs = frames.runs.assign(**{"workload.late": pd.Series("x", frames.runs.index, dtype="str")})
    runs.loc[runs["key"] == runs["key"].iloc[0], "workload.late"] = None
    mixed = type(frames)(frames.folders, runs, frames.requests, frames.training, ())
    assert len(frontier.points(mixed, CORRECT)) == len(frontier.points(frames, CORRECT))


# Dominance and levels, against brute force.


def by_force(costs, goods):
    return [any(c <= cost and g >= good and (c < cost or g > good) for c, g in zip(costs, goods, strict=True))
            for cost, good in zip(costs, goods, strict=True)]  # fmt: skip


def test_dominated_is_what_brute_force_says():
    random = np.random.default_rng(0)
    for _ in range(200):
        costs, goods = random.integers(1, 6, (2, random.integers(1, 9)))
        expected = by_force(costs, goods)
        assert dominated(costs, goods).tolist() == expected
        kept = {(cost, good) for cost, good, worse in zip(costs, goods, expected, strict=True) if not worse}
        assert set(zip(*(side.tolist() for side in line_of(costs, goods)), strict=True)) == kept


def test_a_level_costs_what_lies_between_its_neighbours():
    line = line_of([1.0, 4.0, 16.0, 20.0], [0.2, 0.6, 1.0, 0.9])
    assert cost_at(0.6, line) == pytest.approx(4) and cost_at(0.8, line) == pytest.approx(8), "halfway in log cost"
    assert cost_at(0.1, line) == pytest.approx(1), "the cheapest point exceeds it"
    assert math.isnan(cost_at(1.01, line)) and math.isnan(cost_at(math.nan, line))
    assert math.isnan(cost_at(0.5, line_of([], []))) and cost_at(0.2, line_of([3.0], [0.2])) == pytest.approx(3)
    assert line_of([1.0, math.nan, 2.0], [0.1, 0.9, math.nan])[0].tolist() == [1.0]


def test_levels_that_both_reach():
    high, low, none = line_of([1, 2], [0.5, 0.9]), line_of([1], [0.4]), line_of([1], [0.0])
    assert common_level(high, low, CORRECT) == 0.4
    assert math.isnan(common_level(high, none, CORRECT)), "nothing right is no quality"
    assert common_level(line_of([1], [-3.0]), line_of([1], [-2.0]), JUDGE) == -3.0, "less is better of bits"


# Equal quality.


def dial(name, label, accuracies, times):
    """A paradigm with a dial: a cell a step, all of one label."""
    return [Asker(name, label, {STAR: (accuracy,)}, e2e_s=seconds, nfe=index + 1, factors={"decoder.steps": index})
            for index, (accuracy, seconds) in enumerate(zip(accuracies, times, strict=True))]  # fmt: skip


@pytest.fixture(scope="module")
def dialled(tmp_path_factory):
    askers = [
        *dial("slow", "Slow", (0.2, 0.5, 0.8), (0.1, 0.2, 0.8)),
        *dial("fast", "Fast", (0.5, 0.3, 1.0), (0.05, 0.2, 0.4)),
    ]
    folder = tmp_path_factory.mktemp("runs") / "dial"
    return load(write_tasks(folder, askers=askers, tasks=(STAR,), seeds=(0,), rounds=5, repeats=2, noise=0.03))


def test_time_at_equal_quality_follows_from_the_points(dialled):
    (it,) = equal_quality.pairs(dialled)
    assert (it.one, it.other, it.level) == ("Fast", "Slow", pytest.approx(0.8))
    between = 0.05 * (0.4 / 0.05) ** 0.6  # 0.8 lies 0.6 of the way from 0.5 to 1.0
    assert it.one_s == pytest.approx(between, rel=0.03) and it.other_s == pytest.approx(0.8, rel=0.03)
    assert it.ratio.value == pytest.approx(0.8 / between, rel=0.05) and it.ratio.count == 5
    assert it.ratio.low < 0.8 / between < it.ratio.high < 4 * it.ratio.low
    assert (it.better, it.best) == ("Fast", 1.0) and it.best_s == pytest.approx(0.4, rel=0.03)
    (row,) = equal_quality.table(dialled).rows
    assert row[-1].startswith("Fast up to 1.00 in 4") and row[-1].endswith("not reached by Slow")


def test_entropies_stand_beside_a_level_that_can_be_gamed():
    """Halfway between two points in the level is halfway between their entropies; a dominated point has no say."""
    part = pd.DataFrame({"seconds": [1.0, 2.0, 3.0], "quality": [4.0, 2.0, 3.0], "token_entropy_nats": [3.0, 1.0, 9.0]})
    line = frontier.frontier(part["seconds"], -part["quality"])
    assert equal_quality._entropy_at(-3.0, line, part, JUDGE) == pytest.approx(2.0)
    assert equal_quality._entropy_at(-2.0, line, part, JUDGE) == 1.0
    assert math.isnan(equal_quality._entropy_at(math.nan, line, part, JUDGE))


@pytest.mark.slow
def test_the_ratio_covers_the_true_one(tmp_path):
    """Two paradigms of three times the time at the same accuracy, 12 rounds, 8 times: most intervals hold 3."""
    hits = 0
    for draw in range(8):
        askers = [Asker("a", "A", {STAR: (0.5,)}, 0.1), Asker("b", "B", {STAR: (0.5,)}, 0.3)]
        write_tasks(tmp_path / str(draw), askers=askers, tasks=(STAR,), seeds=(0,), rounds=12, instances=24, repeats=1,
                    noise=0.05, seed=draw)  # fmt: skip
        (it,) = equal_quality.pairs(load(tmp_path / str(draw)))
        hits += it.ratio.low <= 3 <= it.ratio.high
        assert it.ratio.high / it.ratio.low < 1.3
    assert hits >= 6


def test_nothing_right_is_not_reached(tmp_path):
    wrong = Asker("wrong", "Wrong", {STAR: (0.0,)}, e2e_s=0.01)
    frames = load(write_tasks(tmp_path / "s", askers=(DIFFUSION, wrong), tasks=(STAR,)))
    (it,) = equal_quality.pairs(frames)
    assert math.isnan(it.level) and math.isnan(it.ratio.value) and it.better == DIFFUSION.label
    (row,) = equal_quality.table(frames).rows
    assert row[4:7] == ["not reached"] * 3 and "not reached by Wrong" in row[-1]
    figure_of(frames, CORRECT)


def test_one_round_has_points_without_bars_and_ratios_over_repeats(tmp_path):
    frames = load(write_tasks(tmp_path / "s", askers=(AR, DIFFUSION), tasks=(STAR,), seeds=(0,)))
    found = frontier.points(frames, CORRECT)
    assert found["seconds_low"].isna().all() and found["quality_low"].notna().all()
    (it,) = equal_quality.pairs(frames)
    assert it.ratio.count == 4 and it.ratio.low < it.ratio.value < it.ratio.high
    once = load(write_tasks(tmp_path / "t", askers=(AR, DIFFUSION), tasks=(STAR,), seeds=(0,), repeats=1))
    assert math.isnan(equal_quality.pairs(once)[0].ratio.low), "timed once: no interval"


# Curves, settings, figures.


def test_a_paradigm_is_one_curve_and_trainings_one_point(frames, dialled):
    found = frontier.points(frames, CORRECT)
    assert len(found) == 8 and found["cells"].eq(3).all() and set(found["setting"]) == {"mqar", "star graph"}
    points = frontier.points(dialled, CORRECT)
    assert points.groupby("curve").size().to_dict() == {"Fast": 3, "Slow": 3}


def test_labels_of_one_name_share_a_curve(tmp_path):
    askers = [replace(each, label=f"D, {each.nfe}") for each in dial("d", "D", (0.1, 0.9), (1.0, 2.0))]
    frames = load(write_tasks(tmp_path / "s", askers=askers, tasks=(STAR,), seeds=(0,)))
    found = frontier.points(frames, CORRECT)
    assert set(found["curve"]) == {"D"} and found["label"].nunique() == 2
    legend = figure_of(frames, CORRECT).legends[0]
    named = {text.get_text(): handle for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True)}
    for label in set(found["label"]):
        mark = mark_of(frames, label)
        assert (named[label].get_color(), named[label].get_marker()) == (mark.color, mark.marker)


def test_unequal_work_is_never_on_one_panel(tmp_path):
    write_tasks(tmp_path / "s", askers=(AR,), tasks=(STAR,), seeds=(0,))
    other = replace(DIFFUSION, factors={"workload.batch_size": 7})
    frames = load(write_tasks(tmp_path / "s", askers=(other,), tasks=(STAR,), seeds=(0,), shard="b"))
    found = frontier.points(frames, CORRECT)
    assert found["setting"].tolist() == ["star graph · batch_size 50", "star graph · batch_size 7"]
    assert equal_quality.pairs(frames) == ()


def figure_of(frames, measure):
    figure = frontier_figures.figure(frames, measure)
    figure.savefig(io.BytesIO(), format="png", dpi=40)
    return figure


def test_dominated_points_are_grey_and_named(dialled):
    figure = figure_of(dialled, CORRECT)
    grey = [
        line
        for line in figure.axes[0].get_lines()
        if line.get_color() == frontier_figures.FAINT and len(line.get_xdata())
    ]
    drawn = sorted(round(float(y), 3) for line in grey for y in line.get_ydata())
    assert drawn == [0.2, 0.3, 0.5, 0.8], "all of Slow's, and Fast's middle point"
    assert any("dominated" in text.get_text() for text in figure.legends[0].get_texts())
    lines = [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) > 1 and line.get_linestyle() == "-"]
    assert sorted(len(line.get_xdata()) for line in lines) == [2, 3], "the frontier leaves out what it dominates itself"


def test_both_axes_have_bars(dialled):
    panel = figure_of(dialled, CORRECT).axes[0]
    bars = [bar for container in panel.containers for bar in container.lines[2]]
    assert len(bars) >= 4
    assert sum(len(bar.get_segments()) for bar in bars) == 2 * 6


def test_figures_say_units_machine_and_stay_apart(frames, tmp_path):
    text = load(write_sweep(tmp_path / "s", paradigms=(AR_TEXT, SSM, QUARTER), factors=NATURAL, **SMALL))
    for of_them in (frames, text):
        (choice,) = frontier_figures.choose(of_them)
        figure = choice.draw(of_them)
        assert "made-up CPU" in figure.get_supxlabel() and choice.sentence(of_them).endswith(".")
        assert "nan" not in choice.sentence(of_them) and all(axes.get_xlabel() for axes in figure.axes)
        assert figure.axes[0].get_ylabel()
        figure.draw_without_rendering()
        boxes = [axes.get_tightbbox() for axes in figure.axes] + [figure.legends[0].get_window_extent()]
        boxes.append(figure._supxlabel.get_window_extent())
        for one, other in itertools.combinations(boxes, 2):
            assert not one.padded(-1).overlaps(other), choice.name
    assert any("token entropy" in axes.get_xlabel() for axes in figure.axes), "never a judge without it"


def test_the_page_has_the_section_and_the_file(frames, tmp_path):
    paths = {path.name: path for path in report.write_report(frames, tmp_path)}
    page = paths["index.html"].read_text()
    for text in ("Quality against its cost", "Time a request at equal quality", 'id="frontier_correct"', "star graph"):
        assert text in page
    csv = pd.read_csv(paths["frontier.csv"])
    assert len(csv) == 8 and {"quality_low", "seconds_high", "nfe", "state_used_bytes", "dominated"} <= set(csv)
    star = csv[csv["setting"] == "star graph"].set_index("label")
    assert star["dominated"].to_dict() == {
        AR.label: False, SSM_TASK.label: True, DIFFUSION.label: False, REMASKING.label: True,
    }  # fmt: skip
    assert "at equal quality" in paths["results.md"].read_text()

    # of many paradigms pairs with the first, behind the figures; the file has all
    every, table = equal_quality.pairs(frames), equal_quality.table(frames)
    assert (len(every), len(table.rows)) == (12, 6)
    assert {tuple(row[2:4]) for row in table.rows} == {(AR.label, it.label) for it in (SSM_TASK, DIFFUSION, REMASKING)}
    assert page.index('id="frontier_correct"') < page.index(table.title)
    assert "equal_quality.csv" in equal_quality.note(frames)
    csv = pd.read_csv(paths["equal_quality.csv"])
    assert len(csv) == 12 and csv["ratio"].tolist() == pytest.approx([it.ratio.value for it in every], nan_ok=True)


def test_of_few_paradigms_every_pair_is_shown(tmp_path):
    frames = load(write_tasks(tmp_path / "s", askers=(AR, SSM_TASK, DIFFUSION), tasks=(STAR,), seeds=(0,)))
    assert equal_quality.shown(frames) == equal_quality.pairs(frames) and len(equal_quality.pairs(frames)) == 3
    assert "equal_quality.csv" not in equal_quality.note(frames)


@pytest.mark.parametrize("changed", [{"correct": None}, {"e2e_s": None}, {"correct": "NaN"}])
def test_points_without_quality_or_time_are_left_out(changed, tmp_path):
    frames = load(write_tasks(tmp_path / "s", askers=(AR, DIFFUSION), tasks=(STAR,), seeds=(0,),
                              changed=lambda asker, row: row | changed if asker is AR else row))  # fmt: skip
    assert frontier.points(frames, CORRECT)["label"].tolist() == [DIFFUSION.label]
    assert equal_quality.pairs(frames) == ()
    figure_of(frames, CORRECT)
    assert page_of(frames)


def test_a_single_point_is_drawn(tmp_path):
    frames = load(
        write_tasks(tmp_path / "s", askers=(replace(AR, state_bytes=None),), tasks=(MQAR,), seeds=(0,), instances=1)
    )
    assert len(figure_of(frames, CORRECT).axes) == 2, "no state was recorded"
    assert equal_quality.table(frames).rows == []
    assert frontier.sentence(frames, CORRECT).startswith("Not dominated, from the fastest to the best")


def test_names_of_later_scores():
    assert measure_of("gen_bits_per_byte") and not measure_of("gen_bits_per_byte").higher
    assert measure_of("mauve").higher and measure_of("mauve_low") is None
    assert measure_of("gen_bits_per_byte_low") is None and measure_of("num_texts") is None
