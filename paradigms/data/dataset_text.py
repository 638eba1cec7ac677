"""A user's own text through `datasets`: text, JSON and Parquet files, or a set on the Hugging Face hub.

Files are looked for before anything is loaded, and what was read is cached, because importing `datasets` alone takes
longer than everything else that a benchmark child does with its text.
"""

from __future__ import annotations

import glob
import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import splits
from .cache import cached
from .splits import Corpus
from .text_files import find_files, require_utf8

SUFFIXES = {"text": (".txt",), "json": (".json", ".jsonl"), "parquet": (".parquet",)}
SAMPLES = ("line", "paragraph", "document")


@dataclass(frozen=True, kw_only=True)
class DatasetText:
    """Text that `datasets` reads.

    Attributes:
        builder: `text`, `json` (lines or one array), `parquet`, or `hub`.
        path: a file, a folder (its *.txt, *.json and *.jsonl, or *.parquet at any depth), a glob, or several of them;
            with builder=hub the set's name.
        text_field: the column that holds the text; rows where it is null are left out.
        sample_by: with builder=text, what one document is: `line`, `paragraph` (between blank lines, the default) or
            `document` (a whole file). Splitting by content needs dozens of documents.
        subset: with builder=hub, the set's configuration.
        split: what to read of the set, in the notation of `datasets`, such as `train` or `train[:1%]`. Files are
            `train`. Training, validation and held-out text are then cut from it by content.
        min_characters: shorter documents are dropped.
        validation_fraction, heldout_fraction: shares of the documents.
    """

    builder: str
    path: str | Sequence[str]
    text_field: str = "text"
    sample_by: str | None = None
    subset: str | None = None
    split: str = "train"
    min_characters: int = splits.MIN_CHARACTERS
    validation_fraction: float = splits.VALIDATION_FRACTION
    heldout_fraction: float = splits.HELDOUT_FRACTION

    def __post_init__(self) -> None:
        if not isinstance(self.path, str):
            object.__setattr__(self, "path", tuple(self.path))  # YAML gives a list, and a config must be hashable
        if self.builder not in (*SUFFIXES, "hub"):
            raise ValueError(f"corpus.builder={self.builder!r} is unknown; it is one of {', '.join(SUFFIXES)}, hub")
        if not self.paths or not all(self.paths):
            raise ValueError("corpus.path is empty; name a file, a folder, a glob or a set on the hub")
        if self.builder == "hub" and len(self.paths) > 1:
            raise ValueError(f"corpus.path={list(self.paths)} names several sets; builder=hub reads one")
        if self.builder != "hub" and self.subset is not None:
            raise ValueError(f"corpus.subset={self.subset!r} needs corpus.builder=hub; files have no subsets")
        if self.builder != "text" and self.sample_by is not None:
            raise ValueError(f"corpus.sample_by={self.sample_by!r} needs corpus.builder=text; else a row is a document")
        if self.builder == "text" and self.text_field != "text":
            raise ValueError(f"corpus.text_field={self.text_field!r} has no meaning in text files; use json or parquet")
        if self.sample_by not in (None, *SAMPLES):
            raise ValueError(f"corpus.sample_by={self.sample_by!r} is unknown; it is one of {', '.join(SAMPLES)}")
        if self.min_characters < 1:
            raise ValueError(f"corpus.min_characters={self.min_characters} is too small; it must be at least 1")
        for name in ("validation_fraction", "heldout_fraction"):
            if not 0 < getattr(self, name) < 0.5:
                raise ValueError(f"corpus.{name}={getattr(self, name)} must be above 0 and below 0.5")

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,) if isinstance(self.path, str) else tuple(self.path)

    def check(self) -> None:
        """Raises ValueError when the files are missing or empty; whether a hub set exists shows only in `load`."""
        if self.builder != "hub":
            find_files(self.paths, SUFFIXES[self.builder])
        elif Path(self.paths[0]).exists():
            raise ValueError(
                f"corpus.path={self.paths[0]!r} is a file or folder here, not a set on the hub; "
                "use corpus.builder=text, json or parquet"
            )

    def load(self) -> Corpus:
        """Read the text; files are read again only when their path, size or time has changed.

        Raises:
            ValueError: for files that are missing, empty, damaged or not UTF-8, an unknown field, a set that cannot be
                reached, and for too little text.
        """
        self.check()
        texts = self._read(self.paths[0], name=self.subset) if self.builder == "hub" else self._read_files()
        return splits.build_corpus(
            ",".join(self.paths),
            texts,
            min_characters=self.min_characters,
            validation_fraction=self.validation_fraction,
            heldout_fraction=self.heldout_fraction,
        )

    def _read_files(self) -> list[str]:
        files = find_files(self.paths, SUFFIXES[self.builder])

        def read() -> bytes:
            if self.builder != "parquet":
                for file in files:
                    require_utf8(file)
            options = {"sample_by": self.sample_by or "paragraph"} if self.builder == "text" else {}
            names = [glob.escape(str(file)) for file in files]
            return json.dumps(self._read(self.builder, data_files=names, **options)).encode()

        key = {
            "files": [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files],
            "read": [self.builder, self.text_field, self.sample_by, self.split],
            "datasets": importlib.metadata.version("datasets"),
        }
        return json.loads(cached("files", key, read))

    def _read(self, source: str, **options: Any) -> list[str]:
        import datasets
        from datasets.exceptions import DatasetsError

        shown = ",".join(self.paths)
        if self.builder != "hub":
            datasets.disable_progress_bars()  # which speak of downloading local files
        try:
            dataset: Any = datasets.load_dataset(source, split=self.split, **options)
        except ConnectionError as error:
            raise ValueError(
                f"corpus.path={shown!r} cannot be read from the hub ({error}); connect to the network, "
                "or use local files with corpus.builder=text, json or parquet"
            ) from error
        except (ValueError, OSError, RuntimeError, DatasetsError) as error:
            reason = " ".join(str(error.__cause__ or error).split())
            raise ValueError(f"corpus.path={shown!r} cannot be read as {self.builder}: {reason}") from error

        fields = ", ".join(dataset.column_names)
        if self.text_field not in dataset.column_names:
            raise ValueError(f"corpus.text_field={self.text_field!r} is not a field of {shown!r}; it has {fields}")
        texts: list[str] = []
        try:
            for row, text in enumerate(dataset[self.text_field]):
                if isinstance(text, str):
                    texts.append(text)
                elif text is not None:
                    raise ValueError(
                        f"corpus.text_field={self.text_field!r} of {shown!r} holds {type(text).__name__} in row {row}, "
                        f"not text; choose another of {fields}"
                    )
        except UnicodeDecodeError as error:
            raise ValueError(
                f"corpus.path={shown!r} has text that is not UTF-8 in field {self.text_field!r}: byte "
                f"0x{error.object[error.start]:02x} at offset {error.start} of a value; write the file again as UTF-8"
            ) from None
        return texts
