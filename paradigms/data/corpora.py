"""Where text comes from: the standard library of the running Python, or a user's own through `datasets`.

Each config validates itself when it is made, `check()` looks at what can be seen without reading the text, and `load()`
returns a `Corpus`. The embedded text differs between Python versions: its hash is recorded with every run.
"""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from . import splits, stdlib_text
from .cache import cached
from .dataset_text import DatasetText
from .splits import Corpus

__all__ = ["Corpus", "DatasetText", "StdlibDocs", "StdlibSource"]


@dataclass(frozen=True, kw_only=True)
class StdlibDocs:
    """Docstrings of the standard library and the topics of `help()`: about 2 MB of technical English."""

    def check(self) -> None:
        """Nothing to check: it comes with Python."""

    def load(self) -> Corpus:
        return splits.build_corpus("stdlib_docs", _stdlib_texts("docs", stdlib_text.docstrings))


@dataclass(frozen=True, kw_only=True)
class StdlibSource:
    """Source of the standard library: about 11 MB of Python, one document a file."""

    def check(self) -> None:
        """Nothing to check: it comes with Python."""

    def load(self) -> Corpus:
        return splits.build_corpus("stdlib_source", _stdlib_texts("source", stdlib_text.sources))


def _stdlib_texts(kind: str, extract: Callable[[], Iterable[str]]) -> list[str]:
    code = hashlib.sha256(Path(stdlib_text.__file__).read_bytes()).hexdigest()
    key = {"python": sys.version, "stdlib": sysconfig.get_path("stdlib"), "code": code}
    return json.loads(cached(f"stdlib-{kind}", key, lambda: json.dumps(list(extract())).encode()))
