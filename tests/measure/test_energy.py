"""Joules by counters that the tests turn: a made-up sysfs, and a made-up driver."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from paradigms.measure.energy import EnergyMeter

RANGE = 65_712_999_613  # max_energy_range_uj of a server's package
NOTHING = dict.fromkeys(EnergyMeter.COLUMNS)


def zone(sysfs: Path, name: str, label: str, microjoules: int, largest: int | None = RANGE) -> Path:
    """A RAPL zone; its counter."""
    folder = sysfs / "class" / "powercap" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text(f"{label}\n")
    if largest is not None:
        (folder / "max_energy_range_uj").write_text(f"{largest}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    return folder / "energy_uj"


def read(meter: EnergyMeter, *turns: tuple[Path, int], num_tokens: int = 10) -> dict[str, Any]:
    meter.before()
    for counter, microjoules in turns:
        counter.write_text(f"{microjoules}\n")
    return meter.after(num_tokens)


def test_packages_are_summed_and_nothing_within_or_beside_them(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 5_000_000)
    turns = [(first, 3_500_000), (second, 5_500_000)]
    others = {
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "dram",
        "intel-rapl:2": "psys",
        "intel-rapl-mmio:0": "package-0",
    }
    turns += [(zone(tmp_path, name, label, 0), 10**9) for name, label in others.items()]
    (tmp_path / "class" / "powercap" / "intel-rapl").mkdir()
    reading = read(EnergyMeter(sys=tmp_path), *turns)
    assert reading == {
        "energy_j": pytest.approx(3.0),
        "energy_j_per_token": pytest.approx(0.3),
        "energy_source": "rapl",
    }


def test_a_counter_that_went_round(tmp_path: Path) -> None:
    """From 2 J below the largest value: 2 J to it, a microjoule to 0, and 1 J."""
    counter = zone(tmp_path, "intel-rapl:0", "package-0", RANGE - 2_000_000)
    reading = read(EnergyMeter(sys=tmp_path), (counter, 1_000_000))
    assert reading["energy_j"] == pytest.approx(3.000001, abs=1e-9)


def test_a_counter_that_went_back_and_does_not_say_how_far_it_goes(tmp_path: Path) -> None:
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 9_000_000, largest=None)
    assert read(EnergyMeter(sys=tmp_path), (counter, 1_000_000)) == NOTHING


def test_no_counter(tmp_path: Path) -> None:
    assert read(EnergyMeter(sys=tmp_path)) == NOTHING


def test_a_counter_that_did_not_move(tmp_path: Path) -> None:
    """What is too short for it has no energy that could be told."""
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 7)
    assert read(EnergyMeter(sys=tmp_path), (counter, 7)) == NOTHING


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_counter_of_root(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 7)
    zone(tmp_path, "intel-rapl:1", "package-1", 7).chmod(0)
    assert read(EnergyMeter(sys=tmp_path)) == NOTHING


def test_one_package_that_cannot_be_read_makes_the_sum_unknown(tmp_path: Path) -> None:
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 7)
    zone(tmp_path, "intel-rapl:1", "package-1", 7).unlink()
    assert read(EnergyMeter(sys=tmp_path), (counter, 9_000_000)) == NOTHING


def test_no_tokens_no_joules_a_token(tmp_path: Path) -> None:
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    reading = read(EnergyMeter(sys=tmp_path), (counter, 2_000_000), num_tokens=0)
    assert (reading["energy_j"], reading["energy_j_per_token"]) == (2.0, None)


def test_after_needs_before() -> None:
    with pytest.raises(RuntimeError, match="call before"):
        EnergyMeter().after(1)


# ---------------------------------------------------------------- the GPU


def driver(patch: pytest.MonkeyPatch, millijoules: list[int | None]) -> None:
    """One that answers so in turn, and not at all where the answer is None."""

    class NVMLError(Exception):
        pass

    answers = iter(millijoules)

    def energy(handle: str) -> int:
        assert handle == "handle of GPU-1234"
        answer = next(answers)
        if answer is None:
            raise NVMLError("not supported")
        return answer

    made_up = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: f"handle of {uuid}",
        nvmlDeviceGetTotalEnergyConsumption=energy,
    )
    patch.setitem(sys.modules, "pynvml", made_up)
    patch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(uuid="1234"))


def test_a_gpu_has_its_board_and_not_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, [10_000_000_000_000, 10_000_000_070_000])
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    reading = read(EnergyMeter("cuda", sys=tmp_path), (counter, 9), num_tokens=700)
    assert reading == {
        "energy_j": pytest.approx(70.0),
        "energy_j_per_token": pytest.approx(0.1),
        "energy_source": "nvml",
    }


@pytest.mark.parametrize("answers", [[None, None], [None, 5], [5, None], [5, 5]])
def test_a_gpu_that_does_not_tell(monkeypatch: pytest.MonkeyPatch, answers: list[int | None]) -> None:
    driver(monkeypatch, answers)
    assert read(EnergyMeter("cuda")) == NOTHING


def test_a_gpu_without_the_drivers_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read(EnergyMeter("cuda")) == NOTHING
