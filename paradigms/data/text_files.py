"""A user's files: found before anything is read, and checked to be UTF-8 with an error that says where they are not."""

from __future__ import annotations

import codecs
import glob
from collections.abc import Iterable
from pathlib import Path


def find_files(paths: Iterable[str], suffixes: tuple[str, ...]) -> list[Path]:
    """The non-empty files that paths name, absolute, sorted, each once.

    Args:
        paths: files, folders (their files with one of the suffixes, at any depth) or globs.
        suffixes: with the dot.

    Raises:
        ValueError: for a path that names nothing, and when all files are empty.
    """
    paths = list(paths)
    files: set[Path] = set()
    for given in paths:
        path = Path(given).expanduser()
        if path.is_dir():
            found = [file for file in path.rglob("*") if file.suffix in suffixes]
            lacking = f"a folder without {' or '.join(suffixes)} files"
        else:
            found = [path] if path.exists() else [Path(name) for name in glob.glob(str(path), recursive=True)]
            lacking = "neither a file, nor a folder, nor a glob that matches a file"
        found = {file.resolve() for file in found if file.is_file()}
        if not found:
            raise ValueError(f"corpus.path={given!r} is {lacking}; give the path of text (seen from {Path.cwd()})")
        files |= found
    full = sorted(file for file in files if file.stat().st_size)
    if not full:
        raise ValueError(f"corpus.path={','.join(paths)!r} is empty: {len(files)} file(s), no bytes; give some text")
    return full


def require_utf8(path: Path) -> None:
    """Raises ValueError with the offset of the first byte that is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    with path.open("rb") as file:
        while True:
            chunk = file.read(2**20)
            num_held_back = len(decoder.getstate()[0])
            try:
                decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path} is not UTF-8: byte 0x{error.object[error.start]:02x} at offset "
                    f"{offset - num_held_back + error.start} ({error.reason}); convert the file to UTF-8"
                ) from None
            if not chunk:
                return
            offset += len(chunk)
