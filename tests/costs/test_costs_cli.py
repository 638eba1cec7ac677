"""`python -m paradigms.costs`: what it prints, what it writes, and what it says of bad input."""

import csv
import json

import pytest
import torch

from paradigms.costs import crossover_command
from paradigms.costs.__main__ import main
from paradigms.costs.asked import asked
from paradigms.costs.predict_command import COLUMNS, forecast
from paradigms.costs.printed import number_of_bytes, printed, seconds

LLAMA = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def test_predicts_a_grid_and_writes_it(tmp_path, capsys):
    out = tmp_path / "new" / "predicted.csv"
    assert main(["predict", "device=h200", "paradigm=ar,ssm", "workload.output_len=8,16", "--out", str(out)]) == 0
    printed_text = capsys.readouterr().out
    assert "ssm, output_len=16" in printed_text and "H200" in printed_text and "bfloat16" in printed_text
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["cell"] for row in rows] == [f"{name}, output_len={n}" for name in ("ar", "ssm") for n in (8, 16)]
    assert tuple(rows[0]) == COLUMNS
    for row in rows:
        low, middle, high = (float(row[name]) for name in ("e2e_low_s", "e2e_s", "e2e_high_s"))
        assert low < middle < high and float(row["nfe"]) == float(row["output_len"])
        sum_s = float(row["ttft_s"]) + (int(row["output_len"]) - 1) * float(row["tpot_s"])
        assert middle == pytest.approx(sum_s)


@pytest.mark.parametrize("written", ["folder", "file"])
def test_a_config_json_is_enough(folder, written):
    path = folder / "config.json" if written == "file" else folder
    (cell,) = asked([f"model={path}", "device=a100", "dtype=float16", "workload.prompt_len=1000"])
    assert cell.model.num_blocks == 3 and cell.model.part("A").kv_heads == 2 and cell.model.vocab_size == 512
    assert cell.dtype == "float16" and cell.batch.prompt_len == 1000
    found = forecast(cell)
    assert found.prediction.state_bytes == cell.model.state_bytes(
        batch_size=1, length=1000 + cell.batch.output_len - 1, itemsize=2
    )
    assert found.largest_batch > 1 and set(found.prediction.bound_by) == {"prefill", "decode"}


def test_groups_of_devices_have_their_memory_and_halve_the_rest():
    one, two = (forecast(cell) for cell in asked(["device=h100", "size=1b", "num_devices=1,2", "execution=cuda_graph"]))
    assert two.cell.device.memory_bytes == 2 * one.cell.device.memory_bytes
    assert two.largest_batch > one.largest_batch and "2 x" in two.cell.device.name


def test_crossover_of_state_follows_its_formulas(capsys):
    """Keys and values grow by so many bytes a position, Mamba-2's state does not."""
    arguments = ["device=a100", "paradigm=ar,ssm", "workload.prompt_len=5"]
    ar, ssm = asked([*arguments, "workload.output_len=500"])
    constant = ssm.model.state_bytes(batch_size=1, length=1, itemsize=2)
    each = ar.model.state_bytes(batch_size=1, length=1, itemsize=2)
    positions = -(-constant // each)  # the first number of them that takes as much; the last token is never read
    (found,) = crossover_command.crossover(
        ar, ssm, axis="workload.output_len", low=1, high=500, metric="state_bytes"
    )  # fmt: skip
    assert found.at == positions - 5 + 1 and found.low is None
    axis = ["--axis", "workload.output_len", "--high", "500", "--metric", "state_bytes"]
    assert main(["crossover", *arguments, *axis]) == 0
    assert f"workload.output_len = {found.at}; ar is smaller below" in capsys.readouterr().out


def test_crossover_of_steps(capsys):
    """Where a forward costs its overhead, K steps take K / N of the time of N tokens: they meet near K = N."""
    arguments = ["device=a100", "paradigm=ar,diffusion", "workload.output_len=32"]
    assert main(["crossover", *arguments, "--axis", "decoder.sampler.steps", "--high", "32"]) == 0
    assert "diffusion" in capsys.readouterr().out


def test_weights_against_state(folder, capsys):
    (cell,) = asked([f"model={folder}", "device=a100", "workload.output_len=2"])
    weights = cell.model.weight_bytes_read(itemsize=2)
    each = cell.model.state_bytes(batch_size=1, length=1, itemsize=2)
    arguments = [f"model={folder}", "device=a100", "workload.output_len=2", "--axis", "workload.prompt_len"]
    assert main(["crossover", *arguments, "--high", "4000"]) == 0
    assert f"workload.prompt_len = {weights // each + 1:,} on" in capsys.readouterr().out


def test_reference_prints_and_writes(tmp_path, capsys):
    assert main(["reference", "--out", str(tmp_path / "reference")]) == 0
    assert "Llama-3-8B decode" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "reference").iterdir()}
    assert names == {"predictions.csv", "predictions.md", "predictions.png"}


BAD = {
    "device": (["predict", "device=h20"], "device=h20 is unknown", "did you mean h200"),
    "paradigm": (["predict", "device=h200", "paradigm=arr"], "paradigm=arr is unknown", "did you mean ar"),
    "dtype": (["predict", "device=h200", "dtype=int4"], "dtype=int4 is unknown", "bfloat16"),
    "not on the sheet": (["predict", "device=cpu-sheet", "dtype=bfloat16"], "dtype=bfloat16 is not on", "float32"),
    "key": (["predict", "device=h200", "workload.output_lenn=4"], "workload.output_lenn is unknown", "output_len"),
    "type": (["predict", "device=h200", "workload.output_len=abc"], "must be a whole number", "output_len"),
    "too long": (["predict", "device=h200", "workload.output_len=5000"], "model.max_positions=576", "raise it"),
    "no pace": (["predict", "device=h200", "paradigm=diffusion_threshold"], "tokens_per_forward", "text decides"),
    "no such file": (["predict", "device=h200", "model=/nope/config.json"], "does not exist", "/nope/config.json"),
    "no such folder": (["predict", "device=h200", "model=/nope/folder"], "does not exist", "/nope/folder"),
    "no override": (["predict", "foo"], "cannot read 'foo'", "key=value"),
    "groups of here": (["predict", "device=cpu", "num_devices=2"], "num_devices=2 is for datasheets", "h200"),
    "no number": (["predict", "device=h200", "num_devices=two"], "num_devices=two is no number", "whole"),
    "gaps": (["predict", "device=h200", "workload=infilling"], "num_gaps=2 is not predicted", "fixed_length"),
    "axis": (["crossover", "device=h200", "--axis", "workload.prompt", "--high", "3"], "unknown", "workload.prompt_l"),
    "metric": (
        ["crossover", "device=h200", "--axis", "workload.prompt_len", "--high", "3", "--metric", "e2e"],
        "--metric e2e is unknown",
        "e2e_s",
    ),
    "range": (
        ["crossover", "paradigm=ar,ssm", "device=h200", "--axis", "workload.prompt_len", "--low", "5", "--high", "3"],
        "from 5 to 3 is empty",
        "",
    ),
    "axis twice": (
        ["crossover", "device=h200", "workload.batch_size=2", "--axis", "workload.batch_size", "--high", "3"],
        "workload.batch_size is the axis",
        "leave it out",
    ),
    "no devices": (["predict", "device=h200", "num_devices=0"], "num_devices=0 is too small", "at least 1"),
    "a sweep": (["predict", "device=h200", "experiment=batch"], "experiment=batch is a sweep", "predict-sweep"),
    "no file to write": (["predict", "device=h200", "--out", "/proc/x.csv"], "/proc/x.csv: ", "name another file"),
    "no threads": (["calibrate", "--threads", "0"], "--threads 0", "give 1 to"),
    "too many threads": (["calibrate", "--threads", "100000"], "--threads 100000", "cores"),
    "no predictions": (["compare", "/dev/null", "/nope"], "/dev/null is no file of predictions", "predict-sweep"),
    "no state": (
        ["crossover", "device=h200", "paradigm=diffusion", "--axis", "workload.prompt_len", "--high", "9"],
        "reads no state",
        "two cells",
    ),
    "no first token": (
        ["crossover", "paradigm=ar,diffusion", "device=h200", "--axis", "workload.prompt_len", "--high", "9",
         "--metric", "ttft_s"],
        "has no ttft_s",
        "another metric",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(name, capsys):
    arguments, *words = BAD[name]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1
    assert all(word in said for word in words)


def test_unknown_architectures_are_refused(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2}))
    assert main(["predict", "device=h200", f"model={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert "gpt2" in said and "only models of that stack are predicted" in said and "model=transformers" not in said


def test_configs_that_transformers_refuses_are_refused(folder, capsys):
    (folder / "config.json").write_text(json.dumps({**LLAMA, "hidden_size": 66}))
    assert main(["predict", "device=h200", f"model={folder}"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "its config is not valid" in said and "(66)" in said


def test_the_last_of_a_key_counts_and_makes_no_grid():
    (cell,) = asked(["device=h100,a100", "paradigm=ar,ssm", "paradigm=ssm", "device=h200"])
    assert cell.name == "ssm" and "H200" in cell.device.name


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("arguments", [["calibrate", "--device", "cuda"], ["predict", "device=cuda"]], ids=" ".join)
def test_cuda_without_a_gpu_is_refused(arguments, capsys):
    assert main(arguments) == 2
    assert "no NVIDIA GPU" in capsys.readouterr().err


def test_equal_cells_are_called_the_same(capsys):
    axis = ["--axis", "workload.prompt_len", "--high", "64"]
    assert main(["crossover", "device=h200", "paradigm=ar,ar", *axis]) == 0
    assert "e2e_s is the same at workload.prompt_len=1 and at 64" in capsys.readouterr().out


def test_narrow_terminals_get_further_columns_below(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "12")
    heads, row = ["cell", "one", "two", "three"], ["ar", "1", "2", "3"]
    lines = printed(heads, [row], ["note"]).splitlines()
    assert lines == ["cell  one", "---------", "ar    1", "", "cell  two", "---------", "ar    2", "", "cell  three",
                     "-----------", "ar    3", "note"]  # fmt: skip


def test_what_a_config_says_is_not_overridden(folder, capsys):
    assert main(["predict", "device=h200", f"model={folder}", "model.d_model=12"]) == 2
    assert "model.d_model cannot be set" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["predict", "--help"], ["crossover", "--help"]], ids=" ".join)
def test_help_has_examples(arguments, capsys):
    assert main(arguments) == 0
    assert "examples:" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["foresee"], ["predict", "--foo"]], ids=["nothing", "command", "option"])
def test_bad_options_exit_with_two(arguments):
    assert main(arguments) == 2


def test_ctrl_c_says_so(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("paradigms.costs.predict_command.asked", interrupted)
    assert main(["predict"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_figures_as_people_read_them():
    assert [seconds(value) for value in (None, 1.5, 0.0123, 4.2e-6, 1234.5)] == [
        "-", "1.5 s", "12.3 ms", "4.2 us", "1,234 s",
    ]  # fmt: skip
    assert [number_of_bytes(value) for value in (12, 2_360_000, 1.41e11)] == ["12 B", "2.36 MB", "141 GB"]
    assert [number_of_bytes(value) for value in (8e15, 1.38e20)] == ["8 PB", "138,000 PB"]
    assert printed(["a", "bb", "c"], [["xx", "1", "y"]], ["note"]) == "a   bb  c\n---------\nxx   1  y\nnote\n"
