"""What tests of training, configuration and the main path share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so shells start what runs behind; children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("session")


@pytest.fixture(scope="module")
def folders(session_folder: Path) -> Iterator[Path]:
    """Cache and checkpoints of the session: tests share what is slow and touch nothing of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARADIGMS_CACHE", str(session_folder / "cache"))
        patch.setattr("paradigms.weights.CHECKPOINTS", session_folder / "checkpoints")
        yield session_folder
