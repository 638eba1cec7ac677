"""Stand-ins for Slurm's commands: a job of an array runs on this machine, at once.

`fake_slurm.py srun|sbatch|sacct ...`; sbatch keeps what it was given in $FAKE_SLURM/scripts.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any


def install(folder: Path) -> None:
    """Put the commands into a folder, for PATH."""
    folder.mkdir()
    for name in ("srun", "sbatch", "sacct"):
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} "$@"\n')
        path.chmod(0o700)


def srun(arguments: list[str]) -> None:
    assert (arguments[0], arguments[1], arguments[3]) == ("--unbuffered", "--output", "--error")
    os.execvp(arguments[5], arguments[5:])


def sbatch(arguments: list[str]) -> None:
    folder = Path(os.environ["FAKE_SLURM"])
    text = Path(arguments[0]).read_text()
    number = str(len(list(folder.glob("job-*"))) + 1)
    (folder / f"job-{number}").write_text(text)
    with open(folder / "scripts", "a") as scripts:
        scripts.write(text)
    array = re.search(r"--array=0-(\d+)", text)
    output = re.search("--output=(.*)", text)
    assert output is not None
    for task in map(str, range(int(array[1]) + 1)) if array else [""]:
        one = {"SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NODEID": "0", "SLURM_PROCID": "0"}
        one |= {"SLURM_LOCALID": "0", "SLURM_JOB_ID": number, "SLURM_JOB_NODELIST": "here"}
        one |= {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": task} if task else {}
        names = {"%A": number, "%j": number, "%a": task, "%t": "0"}
        log = shlex.split(output[1])[0]
        for placeholder, value in names.items():
            log = log.replace(placeholder, value)
        job = f"sleep 1; exec bash {shlex.quote(str(folder / f'job-{number}'))} > {shlex.quote(log)} 2>&1"
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.Popen(["bash", "-c", job], env=os.environ | one, start_new_session=True, **quiet)
    print(f"Submitted batch job {number}")


def sacct(_: list[str]) -> None:
    print("JobID|State|NodeList")


if __name__ == "__main__":
    {"srun": srun, "sbatch": sbatch, "sacct": sacct}[sys.argv[1]](sys.argv[2:])
