"""A small disk cache for what is slow to derive and cheap to check: extracted text, tokenizers, token streams.

An entry is named by its kind and a hash of everything that determines it, so it never needs invalidating. It is written
beside its place and moved there, so that parallel processes never see half an entry, and it starts with the hash of its
payload, so that a damaged one is noticed and made again. A cache that cannot be written costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

_warned_folders: set[Path] = set()


def cache_folder() -> Path:
    """The folder of the cache: $PARADIGMS_CACHE, else `paradigms` in $XDG_CACHE_HOME or the platform's cache folder."""
    if own := os.environ.get("PARADIGMS_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "paradigms"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "paradigms"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "paradigms" / "cache"
    return Path.home() / ".cache" / "paradigms"


def cached(kind: str, key: Mapping[str, object], make: Callable[[], bytes]) -> bytes:
    """The bytes that `make` returns, from disk when they were made before.

    Args:
        kind: what it is, first part of the file's name.
        key: everything that determines the result, as JSON values.
        make: derives the bytes; called when there is no sound entry.
    """
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
    path = cache_folder() / f"{kind}-{name}"
    payload = _read(path)
    if payload is None:
        payload = make()
        _write(path, payload)
    return payload


def _read(path: Path) -> bytes | None:
    try:
        entry = path.read_bytes()
    except OSError:
        return None
    digest, payload = entry[:32], entry[32:]
    if hashlib.sha256(payload).digest() == digest:
        return payload
    warnings.warn(f"cache entry {path} is damaged; it is made again", stacklevel=4)
    return None


def _write(path: Path, payload: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(payload).digest())
                file.write(payload)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        if path.parent not in _warned_folders:
            _warned_folders.add(path.parent)
            warnings.warn(
                f"cannot write the cache folder {path.parent} ({error.strerror or error}); text and tokens are derived "
                "afresh each time; set PARADIGMS_CACHE to a folder that can be written",
                stacklevel=4,
            )
