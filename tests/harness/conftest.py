"""A folder with the local tasks in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import datasets
import pytest
import torch

TASKS = Path(__file__).parents[1] / "harness_tasks"


@pytest.fixture(scope="module", autouse=True)
def here(tmp_path_factory):
    """A folder with the tasks in it, and no cache of the user's."""
    folder = tmp_path_factory.mktemp("harness")
    shutil.copytree(TASKS, folder / "harness_tasks")
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "datasets")
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setenv("PARADIGMS_CACHE", str(folder / "cache"))
        patch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)  # asks pip for its packages, for seconds
        yield folder
    torch.set_num_threads(threads)
