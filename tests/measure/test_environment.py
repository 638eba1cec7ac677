import json
import os
import platform
import socket
import subprocess
import sys

import pytest
import torch

from paradigms.measure import environment
from paradigms.measure.environment import (
    code_hash,
    machine,
    machine_id,
    machine_line,
    set_threads,
    versions,
)


@pytest.fixture
def package(tmp_path):
    root = tmp_path / "package"
    for name in ("models", "decoding"):
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").write_text("")
    (root / "models" / "attention.py").write_text("HEADS = 4\n")
    (root / "decoding" / "jacobi.py").write_text("STEPS = 8\n")
    (root / "bench.py").write_text("ROUNDS = 3\n")
    return root


def test_versions_name_what_is_installed_and_what_is_not():
    found = versions(["torch", "no-such-distribution"])
    assert found == {"python": platform.python_version(), "torch": torch.__version__, "no-such-distribution": None}


def test_machine_tells_facts_that_can_be_written_down():
    facts = machine()
    assert facts["cpu"]
    assert 1 <= facts["usable_cores"] <= facts["cores"]
    assert facts["memory_bytes"] is None or facts["memory_bytes"] > 2**28
    json.dumps(facts)


def test_another_process_gets_the_same_names_and_needs_no_torch():
    code = (
        "import sys; from paradigms.measure.environment import code_hash, machine_id;"
        "print(machine_id(), code_hash('measure'), 'torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == [machine_id(), code_hash("measure"), "False"]


def test_machine_id_follows_the_hardware_only(monkeypatch):
    facts = {"cpu": "A", "cores": 2, "memory_bytes": 8 * 2**30, "gpus": (), "os": "Linux", "arch": "x86_64"}

    def id_with(**changes):
        monkeypatch.setattr(environment, "_machine", lambda: {**facts, **changes})
        return machine_id()

    assert id_with() == id_with(memory_bytes=8 * 2**30 - 5 * 2**20)  # what a kernel keeps for itself varies
    changes = [{"cpu": "B"}, {"cores": 4}, {"memory_bytes": 16 * 2**30}, {"gpus": ("H",)}, {"arch": "arm64"}]
    assert len({id_with(), *(id_with(**change) for change in changes)}) == 6


def test_nobody_can_tell_whose_machine_it_is():
    told = json.dumps([machine(), machine_line(), machine_id()])
    for secret in (socket.gethostname(), os.path.expanduser("~"), os.getcwd()):
        assert len(secret) < 3 or secret not in told


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (
            {"cores": 2, "memory_bytes": 8 * 2**30, "gpus": ()},
            "Some CPU, 2 cores, 8 GiB, Linux x86_64",
        ),
        (
            {"cores": 1, "memory_bytes": None, "gpus": ("Big GPU", "Big GPU", "Small GPU")},
            "Some CPU, 1 core, 2 x Big GPU, Small GPU, Linux x86_64",
        ),
    ],
)
def test_machine_line_reads_as_a_caption(monkeypatch, facts, line):
    whole = {"cpu": "Some CPU", "os": "Linux", "arch": "x86_64", **facts}
    monkeypatch.setattr(environment, "_machine", lambda: whole)
    assert machine_line() == line


def test_gpu_names_are_none_without_the_drivers_tool(monkeypatch):
    environment.gpu_names.cache_clear()
    monkeypatch.setattr(environment.shutil, "which", lambda tool: None)
    assert environment.gpu_names() == ()
    environment.gpu_names.cache_clear()


def test_gpu_names_are_the_drivers(monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'Big GPU'\necho 'Big GPU'\n")
    tool.chmod(0o755)
    environment.gpu_names.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert environment.gpu_names() == ("Big GPU", "Big GPU")
    environment.gpu_names.cache_clear()


def test_code_hash_sees_python_files_and_nothing_else(package):
    before = code_hash(package=package)
    (package / "models" / "notes.md").write_text("heads")
    (package / "models" / "__pycache__").mkdir()
    (package / "models" / "__pycache__" / "attention.cpython-312.pyc").write_bytes(b"\0")
    assert code_hash(package=package) == before


def test_code_hash_sees_contents_names_and_new_files(package):
    hashes = [code_hash(package=package)]
    attention = package / "models" / "attention.py"
    attention.write_text("HEADS = 8\n")
    hashes.append(code_hash(package=package))
    attention.rename(package / "models" / "heads.py")
    hashes.append(code_hash(package=package))
    (package / "models" / "empty.py").write_text("")
    hashes.append(code_hash(package=package))
    assert len(set(hashes)) == 4


def test_code_hash_tells_where_one_file_ends(package):
    first, second = package / "models" / "attention.py", package / "models" / "b.py"
    first.write_text("x")
    second.write_text("y")
    before = code_hash("models", package=package)
    first.write_text("")
    second.write_text("xy")
    assert code_hash("models", package=package) != before


def test_code_hash_is_that_of_any_checkout(package):
    before = code_hash(package=package)
    (package / "bench.py").write_bytes(b"ROUNDS = 3\r\n")
    assert code_hash(package=package) == before


def test_code_hash_can_look_at_parts(package):
    models, both = code_hash("models", package=package), code_hash("models", "bench.py", package=package)
    (package / "decoding" / "jacobi.py").write_text("STEPS = 9\n")
    assert code_hash("models", package=package) == models
    assert code_hash("bench.py", "models", "models", package=package) == both
    (package / "bench.py").write_text("ROUNDS = 5\n")
    assert code_hash("models", package=package) == models
    assert code_hash("models", "bench.py", package=package) != both


def test_code_hash_refuses_parts_that_are_not_there(package):
    with pytest.raises(ValueError, match="no Python file in 'modles'"):
        code_hash("modles", package=package)


def test_code_hash_of_this_package():
    assert code_hash() == code_hash()
    assert code_hash("measure") != code_hash()


def test_set_threads():
    before = torch.get_num_threads()
    try:
        for num_threads in (2, 1):
            set_threads(num_threads)
            assert torch.get_num_threads() == num_threads
    finally:
        set_threads(before)


def test_set_threads_needs_one():
    with pytest.raises(ValueError, match=r"device\.threads=0 is too small"):
        set_threads(0)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")
def test_freed_memory_stays_with_the_process():
    """Pages that were freed are not cleared again: most allocations of that size find them mapped."""
    code = """
import resource, torch
from paradigms.measure.environment import keep_freed_memory
kept = keep_freed_memory()
for _ in range(5):
    torch.ones(2**21)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    torch.ones(2**21)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    kept, faults = done.stdout.split()
    assert kept == "True" and int(faults) < 25_000  # of 102,400 pages
