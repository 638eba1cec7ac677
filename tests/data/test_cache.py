import os
import warnings

import pytest

from paradigms.data import cache


def test_makes_an_entry_once_and_again_for_another_key():
    made = []

    def make():
        made.append(1)
        return b"payload"

    assert cache.cached("kind", {"a": 1, "b": 2}, make) == b"payload"
    assert cache.cached("kind", {"b": 2, "a": 1}, make) == b"payload"
    assert len(made) == 1
    cache.cached("kind", {"a": 2, "b": 2}, make)
    cache.cached("other", {"a": 1, "b": 2}, make)
    assert len(made) == 3


@pytest.mark.parametrize("damage", [lambda entry: entry[:-1], lambda entry: entry[:10], lambda entry: b"x" + entry[1:]])
def test_a_damaged_entry_is_noticed_and_made_again(cache_folder, damage):
    cache.cached("kind", {}, lambda: b"payload")
    (path,) = cache_folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(UserWarning, match="damaged"):
        assert cache.cached("kind", {}, lambda: b"payload") == b"payload"
    assert cache.cached("kind", {}, pytest.fail) == b"payload"


def test_a_failing_make_leaves_nothing_behind(cache_folder):
    with pytest.raises(ZeroDivisionError):
        cache.cached("kind", {}, lambda: bytes(1 // 0))
    assert not cache_folder.exists() or not list(cache_folder.iterdir())


def test_a_failing_move_leaves_nothing_behind(cache_folder, monkeypatch):
    def refuse(source, target):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.warns(UserWarning, match="Permission denied"):
        assert cache.cached("kind", {}, lambda: b"payload") == b"payload"
    assert list(cache_folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_warns_once(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("PARADIGMS_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match="PARADIGMS_CACHE"):
        assert cache.cached("kind", {}, lambda: b"payload") == b"payload"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.cached("kind", {}, lambda: b"payload") == b"payload"


def test_the_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("PARADIGMS_CACHE", str(tmp_path / "own"))
    assert cache.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("PARADIGMS_CACHE")
    assert cache.cache_folder() == tmp_path / "xdg" / "paradigms"
