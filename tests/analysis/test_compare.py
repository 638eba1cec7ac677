"""What changed between two sweeps: found when it did, silent when it did not, and honest about what it cannot know."""

import json
import math
import shutil

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from synthetic_records import ALL, AR, NAIVE, QUARTER, SSM, write_sweep

from analysis import compare, load, moderated
from analysis.changes import BYTES, HELD_OUT, TIMES
from analysis.changes import compare as compare_frames

SWEEP = {"paradigms": (AR, NAIVE, SSM, QUARTER), "output_lens": (16, 32, 64, 128), "round_noise": 0.01}


def change(folder, table, edit):
    for path in (folder / "records").glob(f"{table}-*.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(edit(record)) + "\n" for record in records))


def slow_down(folder, truth, output_len, factor):
    keys = set()
    change(folder, "runs", lambda r: keys.add(r["key"]) or r if r["paradigm.name"] == truth.name else r)
    times = ("e2e_s", "ttft_s", "tpot_s")

    def edit(r):
        hit = r["key"] in keys and r["requested_tokens"] == output_len
        return r | {name: r[name] * factor for name in times if hit and r[name] is not None}

    change(folder, "requests", edit)


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [write_sweep(folder / name, **SWEEP, seed=seed, code=name) for seed, name in enumerate(("old", "new"))]


@pytest.fixture
def old(sweeps):
    return sweeps[0]


@pytest.fixture
def new(tmp_path):
    return write_sweep(tmp_path / "new", **SWEEP, seed=1, code="new")


def verdicts(old, new, figure=TIMES["e2e_s"], **options):
    found = compare_frames(load(old), load(new), **options).found
    return found[found["figure"] == figure].set_index("name")["verdict"]


def test_one_slower_cell_is_found_and_no_other(old, new, capsys):
    slow_down(new, SSM, 64, 1.2)
    told = verdicts(old, new)
    assert told[told == "slower"].index.tolist() == [f"{SSM.label} · output 64"]
    assert set(told) <= {"slower", "same", "undecided"}
    assert compare.main([str(old), str(new)]) == 1
    said = capsys.readouterr().out
    assert f"{SSM.label} · output 64" in said and "code: old → new" in said and "E2E, s: " in said
    assert compare.main([str(old), str(new), "--fail-on", "bigger"]) == 0
    assert "faster" in set(verdicts(new, old)) and compare.main([str(new), str(old)]) == 0


def test_unchanged_sweeps_pass_and_identical_ones_are_the_same(sweeps, capsys):
    old, new = sweeps
    assert compare.main([str(old), str(new)]) == 0
    assert set(verdicts(old, new, BYTES["peak"])) == set(verdicts(old, new, BYTES["state_used_bytes"])) == {"same"}
    assert set(verdicts(old, new, HELD_OUT)) == {"same"}
    assert (verdicts(old, old, margin=0.2) == "same").all()


@pytest.mark.parametrize(
    ("column", "value", "figure", "verdict"),
    [
        ("state_used_bytes", lambda v: v + 1, BYTES["state_used_bytes"], "bigger"),
        ("peak_tensor_bytes", lambda v: 0.9 * v, BYTES["peak"], "smaller"),
        ("peak_tensor_bytes", lambda v: 1.001 * v, BYTES["peak"], "same"),
        ("bits_per_byte", lambda v: 1.2 * v, HELD_OUT, "worse"),
        ("bits_per_byte", lambda v: v + 0.01, HELD_OUT, "undecided"),  # within its standard error
    ],
)
def test_bytes_and_quality(old, new, column, value, figure, verdict):
    hit = lambda r: r["paradigm.name"] == "ar" and r["workload.output_len"] == 16 and column in r  # noqa: E731
    change(new, "runs", lambda r: r | {column: value(r[column])} if hit(r) else r)
    told = verdicts(old, new, figure)
    assert told[f"{AR.label} · output 16"] == verdict


def test_texts_are_paired_by_request(tmp_path):
    folders = [write_sweep(tmp_path / name, paradigms=(AR, SSM), output_lens=(16,), repeats=12) for name in "ab"]
    keys = set()
    change(folders[1], "runs", lambda r: keys.add(r["key"]) or r if r["paradigm.name"] == "ar" else r)
    worse = lambda r: r | {"judge_bits_per_byte": r["judge_bits_per_byte"] * 1.1} if r["key"] in keys else r  # noqa: E731
    change(folders[1], "requests", worse)
    told = compare_frames(load(folders[0]), load(folders[1])).found
    told = told[told["figure"] == "judge, bits/byte"].set_index("name")
    row = told.loc[f"{AR.label} · output 16"]
    assert row["verdict"] == "worse" and row["ratio"] == pytest.approx(1.1) and row["counts"] == "12 texts"
    assert told.loc[f"{SSM.label} · output 16", "verdict"] == "same"


def test_cells_of_one_side_and_failures_are_said(old, tmp_path, capsys):
    fail = lambda truth, output_len, index: ("oom", "full") if truth is SSM and output_len == 16 else None  # noqa: E731
    other = {**SWEEP, "output_lens": (16, 32, 256)}
    new = write_sweep(tmp_path / "n", **other, fail=fail, factors={"decoder.new_option": 3, "measure.rounds": 9})
    out = tmp_path / "changes.md"
    assert compare.main([str(old), str(new), "--out", str(out)]) == 1
    text = out.read_text()
    assert f"{SSM.label} · output 16 | any unit succeeded" in text and "failed" in capsys.readouterr().out
    assert "the new alone knows decoder.new_option" in text and "measure.rounds: 3 → 9" in text
    only_old, only_new = text.split("## Only in the old")[1].split("## Only in the new")
    assert "output 64" in only_old and "output 256" in only_new and "output 16" not in only_old + only_new


def test_other_machine_is_matched_and_two_in_one_folder_are_kept_apart(sweeps, tmp_path):
    old, _ = sweeps
    other = write_sweep(tmp_path / "other", **SWEEP, machine_id="m1", machine="another", shard="b")
    told = compare_frames(load(old), load(other))
    assert len(told.found[told.found["figure"] == TIMES["e2e_s"]]) == 16
    assert any(line.startswith("machine: ") for line in told.differences)
    both = compare_frames(load(old, other), load(old, other))
    assert len(both.found[both.found["figure"] == TIMES["e2e_s"]]) == 32


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{old}", "nowhere"], "no folder"),
        (["{old}", "{old}"], "is both old and new"),
        (["{old}", "{old}", "--fail-on", "uglier"], "uglier is no verdict"),
        (["{old}", "{new}", "--margin", "2"], "margin=2"),
        (["{old}", "{apart}"], "no cell of 16 and 1 is in both folders: no value of workload.prompt_len is the same"),
        (["{apart}", "{again}", "--relative"], "relative needs 8 cells"),
        (["{old}", "{new}", "--out", "{old}"], "cannot write"),
    ],
)
def test_bad_input_is_one_line_and_code_2(arguments, says, sweeps, tmp_path, capsys):
    apart = write_sweep(tmp_path / "apart", paradigms=(AR,), output_lens=(16,), prompt_lens=(8,))
    again = shutil.copytree(apart, tmp_path / "again")
    places = {"old": sweeps[0], "new": sweeps[1], "apart": apart, "again": again}
    with pytest.raises(SystemExit) as stopped:
        compare.main([word.format(**places) for word in arguments])
    assert stopped.value.code == 2 and says in capsys.readouterr().err


def test_slower_machine_cancels_in_relative_comparisons(old, new):
    for truth in SWEEP["paradigms"]:
        for output_len in SWEEP["output_lens"]:
            slow_down(new, truth, output_len, 1.5 if (truth, output_len) == (AR, 128) else 1.25)
    assert (verdicts(old, new) == "slower").all()
    told = verdicts(old, new, relative=True)
    assert told[told == "slower"].index.tolist() == [f"{AR.label} · output 128"]


# ------------------------------------------------------------ the test itself


def sides(random, cells, rounds, *, drift=0.0, kind="normal"):
    """Two unchanged sweeps; noise differs between cells."""
    scale = 0.01 * random.lognormal(0, 0.5, size=(cells, 1))

    def one():
        noise = random.normal(size=(cells, rounds)) if kind == "normal" else random.exponential(size=(cells, rounds))
        if kind == "contaminated":
            noise = np.where(random.random(noise.shape) < 0.08, 12 * noise, noise)
        return pd.DataFrame(scale * noise + drift * random.normal(size=(1, rounds)))

    return one(), one()


@pytest.mark.parametrize("kind", ["normal", "skewed", "contaminated"])
@pytest.mark.parametrize("drift", [0.0, 0.03])
def test_false_alarms_of_200_comparisons_stay_within_the_level(kind, drift):
    """Sweeps of 40 cells of 3 rounds; 5 % of 200 is 10, and chance gives more than 20 once in a thousand times."""
    random = np.random.default_rng(5)
    alarms, covered = 0, []
    for _ in range(200):
        found = moderated.changes(*sides(random, 40, 3, drift=drift, kind=kind))
        alarms += bool((moderated.holm(found["p"]) < 0.05).any())
        covered.append(found["low"].le(1) & found["high"].ge(1))
    assert alarms <= 20
    assert np.mean(covered) >= 0.92


def test_uncorrected_tests_would_raise_many():
    """Negative control: a t test a cell at 5 %, as if there were one."""
    random = np.random.default_rng(6)
    alarms = 0
    for _ in range(100):
        old, new = sides(random, 40, 3)
        alarms += bool((stats.ttest_ind(new, old, axis=1).pvalue < 0.05).any())
    assert alarms > 70


def test_twenty_per_cent_is_found_among_forty_cells():
    random = np.random.default_rng(7)
    found = []
    for _ in range(50):
        old, new = sides(random, 40, 3)
        new.iloc[3] += math.log(1.2)
        adjusted = moderated.holm(moderated.changes(old, new)["p"])
        found.append(adjusted.iloc[3] < 0.05)
    assert np.mean(found) >= 0.9


def test_few_cells_are_students_test():
    random = np.random.default_rng(8)
    old, new = sides(random, 3, 6)
    expected = stats.ttest_ind(new.to_numpy(), old.to_numpy(), axis=1)
    found = moderated.changes(old, new)
    assert found["p"].to_numpy() == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval(0.95)
    assert np.log(found["low"]).to_numpy() == pytest.approx(interval.low)
    assert np.log(found["high"]).to_numpy() == pytest.approx(interval.high)


def test_one_round_on_either_side_decides_nothing():
    found = moderated.changes(pd.DataFrame([[0.0]]), pd.DataFrame([[1.0]]))
    assert math.isnan(found["p"].item()) and found["ratio"].item() == pytest.approx(math.e)


def test_moderation_recovers_the_prior_it_was_drawn_from():
    """Variances of an inverse chi-square with 6 degrees of freedom about 4, seen with 4 degrees of freedom."""
    random = np.random.default_rng(9)
    true = 4 * 6 / random.chisquare(6, size=20_000)
    seen = pd.Series(true * random.chisquare(4, size=20_000) / 4)
    drawn, df = moderated.moderate(seen, pd.Series(4.0, index=seen.index))
    assert df.iloc[0] == pytest.approx(4 + 6, rel=0.05)
    low = seen < 1
    assert drawn[low].to_numpy() == pytest.approx(((6 * 4 + 4 * seen[low]) / 10).to_numpy(), rel=0.05)
    assert (drawn >= seen - 1e-12).all()


def test_holm_by_hand():
    adjusted = moderated.holm(pd.Series([0.01, 0.04, math.nan, 0.03]))
    assert adjusted.fillna(-1).tolist() == pytest.approx([0.03, 0.06, -1, 0.06])


def test_default_sweep_is_compared(tmp_path):
    folders = [write_sweep(tmp_path / str(seed), paradigms=ALL, output_lens=(16, 64), seed=seed) for seed in (1, 2)]
    assert not set(verdicts(*folders)) & {"slower", "faster", "failed"}
