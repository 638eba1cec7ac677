"""From raw texts to a corpus: duplicates removed, every document put in its split by a hash of its content.

The hash decides, never the position: a document stays in its split when others are added, removed or reordered, and the
same text can never be both trained on and scored. Texts that differ in whitespace only count as the same one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tasks.task import Task

SPLITS = ("train", "validation", "heldout")
MIN_CHARACTERS = 64
VALIDATION_FRACTION = 0.05
HELDOUT_FRACTION = 0.05


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Text, deduplicated and split.

    Attributes:
        name: for captions.
        documents: documents of each split, in the order of their hashes.
        sha256: hash of the documents and of their splits, whatever order they were read in.
        num_bytes: UTF-8 bytes of each split.
        prompt_lens: characters of each document that are a prompt, which is given and never scored; None of plain text.
            See `pairs`.
        symbols, separator: what the text is made of, where it has symbols of its own (`symbols`); None of plain text.
        task: what draws training instances and checks answers, of corpora that are tasks (`tasks`); their "train"
            split holds no document.
    """

    name: str
    documents: Mapping[str, tuple[str, ...]] = field(repr=False)
    sha256: str
    num_bytes: Mapping[str, int]
    prompt_lens: Mapping[str, tuple[int, ...]] | None = field(default=None, repr=False)
    symbols: tuple[str, ...] | None = field(default=None, repr=False)
    separator: str = ""
    task: Task | None = field(default=None, repr=False)


def build_corpus(
    name: str,
    texts: Iterable[str],
    *,
    min_characters: int = MIN_CHARACTERS,
    validation_fraction: float = VALIDATION_FRACTION,
    heldout_fraction: float = HELDOUT_FRACTION,
) -> Corpus:
    """Deduplicate and split texts; those shorter than min_characters are dropped.

    Raises:
        ValueError: when nothing is left, or a split gets no document.
    """
    by_digest: dict[bytes, str] = {}
    for text in texts:
        normalised = " ".join(text.split())
        if len(normalised) < min_characters:
            continue
        digest = hashlib.sha256(normalised.encode("utf-8", "surrogatepass")).digest()
        by_digest[digest] = min(text, by_digest.get(digest, text))
    if not by_digest:
        raise ValueError(
            f"corpus {name!r} is empty: it has no document of at least {min_characters} characters; "
            "check the path and the text field, or lower min_characters"
        )

    documents: dict[str, list[str]] = {split: [] for split in SPLITS}
    total = hashlib.sha256()
    for digest in sorted(by_digest):
        split = split_of(digest, validation_fraction=validation_fraction, heldout_fraction=heldout_fraction)
        text = by_digest[digest]
        documents[split].append(text)
        total.update(split.encode() + hashlib.sha256(_utf8(name, text)).digest())

    for split, members in documents.items():
        if not members:
            raise ValueError(
                f"corpus {name!r} leaves the {split} split empty: it has only {len(by_digest)} distinct documents; "
                "give it more or shorter documents (a text file can be cut at paragraphs), or larger split fractions"
            )
    return Corpus(
        name=name,
        documents={split: tuple(members) for split, members in documents.items()},
        sha256=total.hexdigest(),
        num_bytes={split: sum(len(text.encode()) for text in members) for split, members in documents.items()},
    )


def split_of(digest: bytes, *, validation_fraction: float, heldout_fraction: float) -> str:
    """The split of a document with this SHA-256, whose place in the range of hashes falls in one of three parts."""
    position = int.from_bytes(digest[:8], "big") / 2**64
    if position < heldout_fraction:
        return "heldout"
    if position < heldout_fraction + validation_fraction:
        return "validation"
    return "train"


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"corpus {name!r} has a document with the lone surrogate {text[error.start]!r} at character {error.start}, "
            "which UTF-8 cannot hold; remove it or repair the source's encoding"
        ) from None
