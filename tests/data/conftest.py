import pytest


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    """A cache of its own for every test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PARADIGMS_CACHE", str(folder))
    return folder
