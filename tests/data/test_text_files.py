import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paradigms.data.text_files import find_files, require_utf8


@pytest.fixture
def folder(tmp_path):
    for name in ("b.txt", "a.txt", "deep/c.txt", "note.md"):
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    (tmp_path / "texts" / "empty.txt").touch()
    return tmp_path / "texts"


@pytest.mark.parametrize(
    ("given_paths", "found"),
    [
        (["."], ["a.txt", "b.txt", "deep/c.txt"]),
        (["note.md"], ["note.md"]),
        (["*.txt"], ["a.txt", "b.txt"]),
        (["**/*.txt"], ["a.txt", "b.txt", "deep/c.txt"]),
        (["b.txt", "a.txt", "*.txt"], ["a.txt", "b.txt"]),
    ],
)
def test_files_folders_and_globs(folder, monkeypatch, given_paths, found):
    monkeypatch.chdir(folder)
    assert find_files(given_paths, (".txt",)) == [folder.resolve() / name for name in found]


def test_a_file_whose_name_looks_like_a_glob(folder):
    (folder / "x[1].txt").write_text("text")
    assert find_files([str(folder / "x[1].txt")], (".txt",)) == [folder.resolve() / "x[1].txt"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("absent.txt", "'absent.txt' is neither a file"),
        ("*.csv", "neither a file, nor a folder, nor a glob"),
        ("deep", r"a folder without \.json or \.jsonl files"),
        ("empty.txt", r"'empty\.txt' is empty"),
    ],
)
def test_paths_that_name_no_text(folder, monkeypatch, path, message):
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match=message):
        find_files([path], (".json", ".jsonl"))


@pytest.mark.parametrize(
    ("data", "byte", "offset"),
    [
        (b"\xff", "0xff", 0),
        ("é".encode() + b"ab\xe9 c", "0xe9", 4),
        (b"cut \xe2\x82", "0xe2", 4),
        (b"a" * (2**20 - 1) + b"\xe2\x28\xa1", "0xe2", 2**20 - 1),  # across two chunks
        (b"a" * 2**21 + b"\x80", "0x80", 2**21),
    ],
)
def test_the_first_bad_byte_is_named_with_its_offset(tmp_path, data, byte, offset):
    (tmp_path / "bad.txt").write_bytes(data)
    with pytest.raises(ValueError, match=rf"bad\.txt is not UTF-8: byte {byte} at offset {offset} "):
        require_utf8(tmp_path / "bad.txt")


@given(st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_passes(tmp_path, text):
    (tmp_path / "good.txt").write_bytes(text.encode())
    require_utf8(tmp_path / "good.txt")


def test_a_character_across_two_chunks_passes(tmp_path):
    (tmp_path / "good.txt").write_bytes(b"a" * (2**20 - 1) + "€".encode())
    require_utf8(tmp_path / "good.txt")
