"""The task page: accuracies and winners are found again, what was not equal is said, bad input is no error."""

import io
import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from synthetic_records import AR as ONE_AR
from synthetic_records import write_sweep
from synthetic_tasks import ALL, AR, DIFFUSION, MQAR, REMASKING, SSM, STAR, Asker, write_tasks

from analysis import load, report, summary, task_equalities, task_figures, tasks
from analysis.trainings import ALONE, NOT, SHARED


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    return load(write_tasks(tmp_path_factory.mktemp("runs") / "mine", planted=(0, 1)))


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    monkeypatch.setattr(report, "DPI", 40)


def page_of(frames):
    """What the page would say of tasks; the figures are drawn."""
    for choice in task_figures.choose(frames):
        choice.draw(frames).savefig(io.BytesIO(), format="png", dpi=30)
    tables = [table.markdown() for table in report._of_tasks(frames)]
    return "\n".join(
        [tasks.note(frames), *tables, *(choice.sentence(frames) for choice in task_figures.choose(frames))]
    )


def row_of(frames, asker, task, planted=0):
    found = tasks.groups(frames)
    mine = (found["label"] == asker.label) & (found["task"] == task.replace("_", " ")) & (found["planted"] == planted)
    (row,) = found[mine].to_dict("records")
    return row


def test_accuracy_is_the_mean_over_trainings_with_their_t_interval(frames):
    row = row_of(frames, SSM, MQAR)
    each = np.array([0.4, 0.6, 0.5])
    half = stats.t.interval(0.95, 2, scale=stats.sem(each))[1]
    assert row["correct"] == pytest.approx(0.5) and (row["seeds"], row["instances"]) == (3, 200)
    assert row["correct_low"] == pytest.approx(0.5 - half) and row["correct_high"] == pytest.approx(0.5 + half)
    assert row["of_each"] == "0.400, 0.600, 0.500"


def test_trainings_that_agree_leave_the_interval_of_the_instances(tmp_path):
    alike = Asker("ar", "AR", {STAR: (0.5, 0.5, 0.5)})
    row = row_of(load(write_tasks(tmp_path / "s", askers=(alike,), tasks=(STAR,))), alike, STAR)
    exact = stats.binomtest(100, 200).proportion_ci(0.95, method="exact")
    assert (row["correct_low"], row["correct_high"]) == pytest.approx((exact.low, exact.high))


def test_one_training_has_the_interval_of_its_instances_and_a_mark(tmp_path):
    frames = load(write_tasks(tmp_path / "s", seeds=(0,), askers=(AR, DIFFUSION)))
    row = row_of(frames, AR, STAR)
    exact = stats.binomtest(98, 200).proportion_ci(0.95, method="exact")
    assert (row["correct_low"], row["correct_high"]) == pytest.approx((exact.low, exact.high))
    assert all(line[2].endswith("*") for line in tasks.table(frames).rows)
    assert "* one training" in tasks.note(frames)
    assert "0.490*" in " ".join(itertools.chain(*tasks.matrix(frames).rows))


def test_rounds_that_ask_again_add_no_instances(tmp_path):
    once = load(write_tasks(tmp_path / "once", askers=(AR,), tasks=(STAR,)))
    rows = [once.requests, once.requests.assign(repeat=once.requests["repeat"] + 9)]
    again = type(once)(once.folders, once.runs, pd.concat(rows), once.training, ())
    assert row_of(again, AR, STAR)["correct_low"] == row_of(once, AR, STAR)["correct_low"]


def test_winners_are_the_best_and_what_cannot_be_told_from_it(frames):
    found = tasks.groups(frames)
    verdict = {(row["label"], row["task"]): row["verdict"] for _, row in found[found["planted"] == 0].iterrows()}
    assert verdict[DIFFUSION.label, "star graph"] == ALONE
    assert verdict[AR.label, "star graph"] == verdict[SSM.label, "star graph"] == NOT
    assert verdict[DIFFUSION.label, MQAR] == verdict[AR.label, MQAR] == SHARED
    assert verdict[SSM.label, MQAR] == verdict[REMASKING.label, MQAR] == NOT


def test_the_matrix_says_it_in_words_with_times(frames):
    table = tasks.matrix(frames)
    assert table.heads == ["task", "in words", AR.label, DIFFUSION.label, REMASKING.label, SSM.label]
    rows = {row[0]: dict(zip(table.heads, row, strict=True)) for row in table.rows}
    assert list(rows) == ["mqar", "mqar, first wrong", "star graph", "star graph, first wrong"]
    assert rows["star graph"]["in words"] == f"{DIFFUSION.label} alone"
    assert (
        rows["star graph"][DIFFUSION.label].startswith("0.993, wins; ") and "ms" in rows["star graph"][DIFFUSION.label]
    )
    assert "wins" not in rows["star graph"][AR.label]
    assert rows["mqar"]["in words"] == f"not told apart: {AR.label}; {DIFFUSION.label}; fastest of them: {AR.label}"
    assert "shares the win" in rows["mqar"][AR.label]
    assert rows["mqar, first wrong"]["in words"] == f"{REMASKING.label} alone"


def test_where_most_share_the_win_the_words_name_the_others(tmp_path):
    alike = (AR, replace(AR, name="copy", label="Copy", e2e_s=0.01))
    frames = load(write_tasks(tmp_path / "two", askers=alike, tasks=(STAR,)))
    assert tasks.sentence(frames) == "Star graph: not told apart: all; fastest of them: Copy."
    frames = load(
        write_tasks(tmp_path / "three", askers=(*alike, replace(SSM, accuracy={STAR: (0.1,) * 3})), tasks=(STAR,))
    )
    assert tasks.sentence(frames) == f"Star graph: not told apart: all but {SSM.label}; fastest of them: Copy."


def test_plants_are_told_by_what_is_behind_and_what_is_revised(frames):
    row = row_of(frames, REMASKING, STAR, planted=1)
    assert row["revised"] == pytest.approx(0.9) and row["behind"] == pytest.approx(0.9)
    kept = row_of(frames, AR, STAR, planted=1)
    assert kept["revised"] == 0 and kept["behind"] == pytest.approx(0.2) and kept["correct"] == 0
    table = {(line[0], line[1]): line for line in tasks.plants(frames).rows}
    assert len(table) == 8 and table[AR.label, "star graph, first wrong"][5] == "0.500"
    assert math.isnan(row_of(frames, AR, STAR)["revised"])
    assert REMASKING.label in tasks.plants_sentence(frames)


def test_a_control_is_no_contest_and_is_said_beside_what_was_revised(tmp_path):
    folder = write_tasks(tmp_path / "s", askers=(AR, REMASKING), tasks=(STAR,), planted=(0, 1, -1))
    frames = load(folder)
    assert tasks.groups(frames)["planted"].tolist() == [0, 0, 1, 1, -1, -1], "the control comes last"
    table = tasks.plants(frames).rows
    assert [line[1] for line in table] == ["star graph, first wrong"] * 2 + ["star graph, first right"] * 2
    assert not any("right" in line[0] for line in tasks.matrix(frames).rows)
    said = tasks.plants_sentence(frames)
    assert f"{REMASKING.label} replaces 90 % of the plants of star graph, and 90 % of right symbols" in said
    alone = tasks.plants_sentence(load(write_tasks(tmp_path / "t", askers=(AR, REMASKING), planted=(0, 1))))
    assert "this says nothing of correcting" in alone


def equal_of(frames, task):
    return {row.factor: row for name, row in task_equalities.equalities(frames) if name == task}


def test_what_was_equal(frames):
    found = equal_of(frames, "star graph")
    assert all(row.equal for row in found.values()), {name: row.values for name, row in found.items() if not row.equal}
    assert found["rows seen in training"].values == "256,000"
    assert found["learning rate chosen from"].values == (
        f"0.001 ({AR.label} / {DIFFUSION.label} / {REMASKING.label}); 0.004 ({SSM.label}); chosen from 0.001, 0.004: "
        "either is an edge, and a third may be better"
    )
    assert found["instances"].values == "200, the same" and found["trainings, by seed"].values == "0, 1, 2"


def test_who_tried_the_rates_is_told(tmp_path):
    tried = [replace(asker, factors={**asker.factors, "train.trial_seed": 0}) for asker in (AR, SSM)]
    found = equal_of(load(write_tasks(tmp_path / "s", askers=tried)), "star graph")
    assert "each tried in full by the training of seed 0" in found["learning rate chosen from"].values


@pytest.mark.parametrize(
    ("factor", "options"),
    [
        ("parameters", {"askers": (AR, replace(SSM, parameters=1_000_000))}),
        ("rows seen in training", {"tokens": lambda asker: 44_000 if asker is AR else 88_000}),
        ("learning rate", {"askers": (replace(AR, factors={"train.learning_rates": [0.001]}),)}),
        ("learning rates tried", {"askers": (AR, replace(SSM, factors={"train.learning_rates": [0.004, 0.01]}))}),
        ("answers end by", {"askers": (AR, replace(SSM, factors={"workload.stop": "length"}))}),
        ("batch", {"askers": (AR, replace(SSM, factors={"workload.batch_size": 7}))}),
        ("instances", {"changed": lambda asker, row: row | {"request_id": f"{asker.name}{row['request_id']}"}}),
    ],
)
def test_what_was_not_equal_is_said(factor, options, tmp_path):
    sizes = {"askers": (AR, SSM), "tasks": (STAR,), "instances": 20} | options
    frames = load(write_tasks(tmp_path / "s", **sizes))
    bad = [name for name, row in equal_of(frames, "star graph").items() if not row.equal]
    assert bad == [factor]
    assert any(row[1] == "NOT equal" and row[2] == factor for row in task_equalities.table(frames).rows)


def test_seeds_that_differ_are_said(tmp_path):
    write_tasks(tmp_path / "s", askers=(AR,), tasks=(STAR,), instances=20)
    frames = load(write_tasks(tmp_path / "s", askers=(SSM,), tasks=(STAR,), seeds=(0,), instances=20, shard="b"))
    row = equal_of(frames, "star graph")["trainings, by seed"]
    assert not row.equal and row.values == f"0, 1, 2 ({AR.label}); 0 ({SSM.label})"


@pytest.mark.parametrize("step", [100, 700, 2000])
@pytest.mark.parametrize("peak", [0.001, 0.004, 0.0123])
def test_the_chosen_rate_is_read_off_the_curve(step, peak, frames):
    """Any validation's rate gives the peak back, of the grid or beside it."""
    share = min(step / 100, (2000 - step + 1) / 1900)
    curve = [
        {"checkpoint": "x", "step": step, "lr": peak * share},
        {"checkpoint": "x", "step": 2000, "lr": peak / 1900},
    ]
    changed = type(frames)(frames.folders, frames.runs, frames.requests, pd.DataFrame(curve), ())
    unit = pd.Series({"checkpoint": "x", "train.warmup_steps": 100.0, "train.learning_rates": "[0.001,0.004]"})
    assert tasks.chosen_rate(changed, unit) == pytest.approx(peak)
    assert tasks.chosen_rate(changed, unit.drop("train.warmup_steps")) is None


def test_a_task_of_two_sizes_is_two_tasks(tmp_path):
    write_tasks(tmp_path / "s", askers=(replace(AR, factors={"corpus.degree": 2}),), tasks=(STAR,), instances=20)
    frames = load(write_tasks(tmp_path / "s", askers=(replace(AR, factors={"corpus.degree": 5}),), tasks=(STAR,),
                              instances=20, shard="b"))  # fmt: skip
    found = tasks.groups(frames)
    assert found["task"].tolist() == ["star graph, degree 2", "star graph, degree 5"]
    assert found["chance"].tolist() == [0.5, 0.2]


def test_settings_of_a_paradigm_are_series_of_their_own(tmp_path):
    hot, cold = (replace(AR, factors={"decoder.temperature": value}) for value in (1.0, 0.5))
    write_tasks(tmp_path / "s", askers=(hot,), tasks=(STAR,), instances=20)
    frames = load(write_tasks(tmp_path / "s", askers=(cold,), tasks=(STAR,), instances=20, shard="b"))
    found = tasks.groups(frames)
    assert found["series"].tolist() == [f"{AR.label} · temperature 0.5", f"{AR.label} · temperature 1"]
    assert found["seeds"].tolist() == [3, 3]
    colors = {handle.get_color() for handle in task_figures.accuracy(frames).legends[0].get_lines()}
    assert len(colors) == 2


def test_the_same_instances_in_two_sets_count_once(tmp_path):
    """Sets of 500 and of 501 begin with the same instances: neither is more evidence, and both is none either."""
    write_tasks(tmp_path / "s", askers=(AR,), tasks=(STAR,))
    larger = replace(AR, factors={"corpus.num_heldout": 501})
    found = tasks.groups(load(write_tasks(tmp_path / "s", askers=(larger,), tasks=(STAR,), shard="b")))
    assert found["instances"].tolist() == [200, 200] and found["seeds"].tolist() == [3, 3]
    assert found["series"].tolist() == [f"{AR.label} · num_heldout {size}" for size in (500, 501)]


def test_most_frequent_problems():
    rows = pd.DataFrame({"correct": [1.0] * 4 + [0.0] * 6,
                         "answer_problem": [None] * 4 + ["b", "a", "a", None, "c", "b"]})  # fmt: skip
    assert tasks.problems(rows) == "a 20 %, b 20 %, c 10 %"
    assert tasks.problems(rows[:4]) == ""


def test_no_task_no_section(tmp_path):
    frames = load(write_sweep(tmp_path / "s", paradigms=(ONE_AR,), output_lens=(16,), rounds=1, repeats=1))
    assert report._of_tasks(frames) == [] and task_figures.choose(frames) == [] and tasks.note(frames) == ""
    paths = report.write_report(frames, tmp_path / "out")
    assert [path.name for path in paths] == ["index.html", "results.csv", "results.md", "figures"]
    assert 'id="tasks"' not in paths[0].read_text()


def test_the_page_has_the_section_and_the_files(frames, tmp_path):
    paths = {path.name: path for path in report.write_report(frames, tmp_path)}
    page = paths["index.html"].read_text()
    assert page.index('id="tasks"') < page.index(">Figures<")
    for text in (
        "Who wins where",
        f"{DIFFUSION.label} alone",
        "Planted errors",
        "What was equal",
        'id="tasks_accuracy"',
    ):
        assert text in page
    assert page.count('id="tasks_accuracy"') == 1, "in its section, not once more below"
    csv = pd.read_csv(paths["tasks.csv"])
    assert len(csv) == 16 and {"correct", "correct_low", "verdict", "e2e_s", "nfe", "problems", "rate"} <= set(csv)
    assert "| star graph | Diffusion, top-1 alone |" in paths["tasks.md"].read_text()
    assert "Who wins where" in paths["results.md"].read_text()


@pytest.mark.parametrize(
    ("asker", "words"),
    [
        (Asker("ar", "AR", {STAR: (0.0,)}), "nobody: not one answer is right"),
        (Asker("ar", "AR", {STAR: (1.0,)}), "AR, the only one asked"),
    ],
    ids=["all_wrong", "all_right"],
)
def test_one_paradigm(asker, words, tmp_path):
    frames = load(write_tasks(tmp_path / "s", askers=(asker,), tasks=(STAR,), seeds=(0,), instances=10))
    assert tasks.matrix(frames).rows[0][1] == words
    assert "nan" not in page_of(frames)


def test_all_wrong_is_no_win(tmp_path):
    wrong = [replace(asker, accuracy={STAR: (0.0,)}) for asker in ALL[:2]]
    frames = load(write_tasks(tmp_path / "s", askers=wrong, tasks=(STAR,), instances=10))
    assert tasks.matrix(frames).rows[0][1] == "nobody: not one answer is right"
    assert set(tasks.groups(frames)["verdict"]) == {NOT}
    assert tasks.groups(frames)["correct_high"].gt(0).all(), "nothing right of ten is no proof of nothing"
    assert "nan" not in page_of(frames)


def test_figures_that_are_missing_or_no_numbers(tmp_path):
    def changed(asker, row):
        if asker is AR:
            return row | {"correct": None} if row["row"] == 0 else row | {"e2e_s": None}
        return row | {"answer_share": None, "nfe": "many"}

    frames = load(write_tasks(tmp_path / "s", askers=(AR, SSM), tasks=(STAR,), instances=20, changed=changed))
    assert tasks.unscored(frames) == 12 and "12 answers without a verdict left out" in tasks.note(frames)
    row = row_of(frames, AR, STAR)
    assert row["instances"] == 16 and math.isnan(row["e2e_s"])
    assert "nan" not in page_of(frames)


def test_nothing_scored_at_all(tmp_path):
    frames = load(
        write_tasks(tmp_path / "s", tasks=(STAR,), instances=8, changed=lambda asker, row: row | {"correct": None})
    )
    assert report._of_tasks(frames) == [] and task_figures.choose(frames) == [] and not page_of(frames).strip()


def test_answers_without_an_end_are_counted_and_said(tmp_path):
    def changed(asker, row):
        return row | {"finish_reason": "length" if row["row"] else "eos"}

    frames = load(write_tasks(tmp_path / "s", askers=(AR,), tasks=(STAR,), instances=20, changed=changed))
    assert tasks.groups(frames)["cut_off"].item() == pytest.approx(0.8)
    assert "at most 80 %" in tasks.note(frames)


def test_figures_say_units_machine_and_stay_apart(frames):
    for choice in task_figures.choose(frames):
        figure = choice.draw(frames)
        assert "made-up CPU" in figure.get_supxlabel() and choice.sentence(frames).endswith(".")
        assert "nan" not in choice.sentence(frames)
        figure.draw_without_rendering()
        boxes = [axes.get_tightbbox() for axes in figure.axes] + [figure.legends[0].get_window_extent()]
        boxes.append(figure._supxlabel.get_window_extent())
        for one, other in itertools.combinations(boxes, 2):
            assert not one.padded(-1).overlaps(other), choice.name


def test_captions_speak_of_no_hollow_marks_where_none_are_drawn(frames):
    """Who is right does not hang on the clock."""
    slow = replace(frames, runs=frames.runs.assign(contended=True))
    assert slow.ok["contended"].all()
    for choice in task_figures.choose(slow):
        assert "hollow" not in choice.draw(slow).get_supxlabel().lower(), choice.name


def test_marks_lie_where_the_means_are(frames):
    figure = task_figures.accuracy(frames)
    drawn = {round(float(line.get_xdata()[0]), 6) for line in figure.axes[0].get_lines() if len(line.get_xdata()) == 1}
    found = tasks.groups(frames)
    assert {round(value, 6) for value in found.loc[found["planted"] == 0, "correct"]} <= drawn
    guesses = [line for line in figure.axes[0].get_lines() if line.get_linestyle() == ":"]
    assert [line.get_xdata()[0] for line in guesses] == [0.5], "of the star graph alone"


def test_lengths_of_different_tasks_are_no_axis(frames):
    """A prompt of one task is no longer prompt of another."""
    assert frames.runs["workload.prompt_len"].nunique() == 2 and summary.axes_varying(frames) == []
    text = type(frames)(frames.folders, frames.runs.assign(**{"workload.prompts": "heldout"}), frames.requests,
                        frames.training, ())  # fmt: skip
    assert summary.axes_varying(text) == [summary.PROMPT_LEN]


@pytest.fixture(scope="module")
def sized(tmp_path_factory):
    """Recall at four numbers of pairs: one paradigm falls, the other stays."""
    folder = tmp_path_factory.mktemp("runs") / "sized"
    for pairs, falling in ((2, 0.99), (4, 0.9), (8, 0.4), (16, 0.05)):
        askers = [
            replace(asker, accuracy={MQAR: (accuracy,)}, factors={"corpus.num_pairs": pairs})
            for asker, accuracy in ((AR, 0.98), (SSM, falling))
        ]
        write_tasks(folder, askers=askers, tasks=(MQAR,), shard=f"pairs{pairs}")
    return load(folder)


def test_accuracy_against_size_has_a_line_a_paradigm(sized):
    found = tasks.by_size(sized)
    assert found["size"].tolist() == [2, 2, 4, 4, 8, 8, 16, 16] and set(found["size_name"]) == {"num pairs"}
    (panel,) = task_figures.against_size(sized).axes
    lines = {
        tuple(line.get_xdata()): tuple(line.get_ydata()) for line in panel.get_lines() if len(line.get_xdata()) == 4
    }
    assert (2.0, 4.0, 8.0, 16.0) in lines and panel.get_xlabel() == "num pairs" and panel.get_xscale() == "log"
    said = tasks.size_sentence(sized)
    assert said == "Mqar, right at num pairs 2 and 16: AR Transformer 0.980 and 0.980, Mamba-2 0.990 and 0.0500."
    assert "tasks_sizes" in {choice.name for choice in task_figures.choose(sized)}


def test_one_size_has_no_such_figure(frames):
    assert not len(tasks.by_size(frames)) and "tasks_sizes" not in {each.name for each in task_figures.choose(frames)}
