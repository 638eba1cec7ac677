"""The doctor on made-up patients."""

from importlib import metadata
from pathlib import Path

import pytest

from paradigms import doctor
from paradigms.doctor import Finding

PYPROJECT = """
[project]
requires-python = ">=3.11"
dependencies = ["rich", "numpy>=99", "no-such-package-anywhere>=1"]
"""


def by_name(findings) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_packages_are_held_against_pyproject(tmp_path):
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    found = by_name(doctor.packages(tmp_path))
    assert found["rich"] == Finding("packages", "rich", "ok", metadata.version("rich"))
    assert found["numpy"].state == "missing" and ">=99" in found["numpy"].advice
    assert (
        found["no-such-package-anywhere"].state == "missing"
        and "pip install" in found["no-such-package-anywhere"].advice
    )


def test_spinning_workers_are_noted(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert by_name(doctor.threads())["OMP_WAIT_POLICY"].state == "note"
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert by_name(doctor.threads())["OMP_WAIT_POLICY"].state == "ok"


def test_folders(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("PARADIGMS_CACHE", str(file / "cache"))  # no folder can be made below a file
    found = by_name(doctor.folders(tmp_path))
    assert (found["runs"].state, found["cache"].state, found["conf"].state) == ("ok", "note", "missing")
    assert "PARADIGMS_CACHE" in found["cache"].advice
    assert sorted(tmp_path.iterdir()) == [file]


def test_a_gpu_that_torch_cannot_use_is_noted(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(doctor, "gpu_names", lambda: ("Some GPU",))
    found = by_name(doctor.devices())["cuda"]
    assert found.state == "note" and "Some GPU" in found.found
    monkeypatch.setattr(doctor, "gpu_names", lambda: ())
    assert by_name(doctor.devices())["cuda"].state == "absent"


@pytest.fixture
def zoo_card(tmp_path, monkeypatch):
    """A zoo of one model, of whose card the corpus hash can be set."""
    from paradigms import zoo
    from paradigms.training import checkpoint

    card = {"parameters": 1_500_000, "tokens_seen": 5e6, "python": "3.99.0", "corpus": {"sha256": "0" * 64}}
    monkeypatch.setattr(zoo, "names", lambda: ["ar"])
    monkeypatch.setattr(checkpoint, "read_card", lambda folder: card)
    return card


def test_a_zoo_of_another_text_is_noted(zoo_card):
    found = by_name(doctor.text_and_models())
    assert found["zoo: ar"].state == "note" and "3.99.0" in found["zoo: ar"].advice
    zoo_card["corpus"]["sha256"] = doctor.StdlibDocs().load().sha256
    assert by_name(doctor.text_and_models())["zoo: ar"].state == "ok"


@pytest.mark.parametrize("there", [True, False])
def test_whether_smollm2_is_there(zoo_card, monkeypatch, there):
    monkeypatch.setattr("paradigms.models.smollm2.is_there", lambda: there)
    found = by_name(doctor.text_and_models())["SmolLM2-135M"]
    assert found.state == ("ok" if there else "absent") and ("make smollm2" in found.advice) != there


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("note", 0), ("absent", 0), ("missing", 1)])
def test_only_what_is_missing_fails(monkeypatch, capsys, state, code):
    monkeypatch.setattr(doctor, "examine", lambda: [Finding("topic", "thing [1]", state, "found", "do this")])
    assert doctor.main() == code
    assert "thing [1]" in capsys.readouterr().out


def test_this_machine_passes():
    states = {finding.name: finding.state for finding in doctor.examine()}
    assert "missing" not in states.values(), states
    assert {
        "python",
        "torch",
        "cpu",
        "OMP_WAIT_POLICY",
        "mamba_ssm",
        "attention",
        "corpus",
        "runs",
        "cache",
    } <= states.keys()
    assert Path(doctor.ROOT / "pyproject.toml").is_file()
