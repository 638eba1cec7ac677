"""What tests of training, configuration and the main path share."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra

from paradigms import cli
from paradigms.data import stdlib_text

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so shells start what runs behind; children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("session")


@pytest.fixture(scope="session", autouse=True)
def turns(session_folder: Path) -> Iterator[None]:
    """Sweeps of the tests wait for each other only, not for those of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARADIGMS_TURNS", str(session_folder / "turns"))
        yield


@pytest.fixture(scope="module")
def folders(session_folder: Path) -> Iterator[Path]:
    """Cache and checkpoints of the session: tests share what is slow and touch nothing of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARADIGMS_CACHE", str(session_folder / "cache"))
        patch.setattr("paradigms.weights.CHECKPOINTS", session_folder / "checkpoints")
        yield session_folder


@pytest.fixture(scope="module")
def home(folders: Path) -> Iterator[Path]:
    """Caches of the session; a standard library of a few files; the thread number as it was."""
    threads, sources = torch.get_num_threads(), stdlib_text.sources
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stdlib_text, "sources", lambda: itertools.islice(sources(), 60))
        yield folders
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def loader() -> Iterator[ConfigLoader]:
    with initialize_config_dir(str(cli.CONF), version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        yield hydra.config_loader
    GlobalHydra.instance().clear()
