"""A tokenizer over symbols with names of their own: one token a symbol, so that a task's length is what it says.

Its text is every symbol followed by the separator ("3 14 | "); where symbols are single letters, without any. Ids 0 to
2 are those of every tokenizer of ours (<bos>, <eos>, <mask>), then the symbols in their order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paradigms.data.splits import Corpus
from paradigms.data.tokenizers import SPECIALS, Tokenizer

FIRST_SYMBOL_ID = len(SPECIALS)
FORMAT = "paradigms-symbols-1"


class SymbolTokenizer(Tokenizer):
    """Attributes:
    symbols: names, in the order of their ids.
    separator: what follows each symbol in a text; empty where every symbol is one character.
    """

    def __init__(self, symbols: Iterable[str], separator: str = " ") -> None:
        self.symbols, self.separator = tuple(symbols), separator
        wrong = [name for name in self.symbols if name in ("", *SPECIALS) or (separator and separator in name)]
        if wrong or len(set(self.symbols)) != len(self.symbols):
            raise ValueError(
                f"symbols {wrong or 'repeat themselves'}: names must differ, be no empty text, no special token, and "
                f"not hold the separator {separator!r}"
            )
        if not separator and any(len(name) != 1 for name in self.symbols):
            raise ValueError("symbols of several characters need a separator between them")
        self.merges = ()
        self.token_bytes = (b"",) * FIRST_SYMBOL_ID + tuple((name + separator).encode() for name in self.symbols)
        self.vocab_size = len(self.token_bytes)
        self.sha256 = hashlib.sha256(self._json().encode()).hexdigest()
        self._ids = {name: FIRST_SYMBOL_ID + number for number, name in enumerate(self.symbols)}

    @property
    def plain_ids(self) -> Sequence[int]:
        return range(FIRST_SYMBOL_ID, self.vocab_size)

    def ids(self, names: Iterable[str]) -> list[int]:
        """Ids of symbols.

        Raises:
            ValueError: a name that is no symbol.
        """
        try:
            return [self._ids[name] for name in names]
        except KeyError as error:
            raise ValueError(
                f"{error.args[0]!r} is none of the {len(self.symbols)} symbols of this tokenizer"
            ) from None

    def names(self, ids: Iterable[int]) -> list[str]:
        """Symbols of ids; specials keep names that no symbol has."""
        return [self.symbols[token - FIRST_SYMBOL_ID] if token >= FIRST_SYMBOL_ID else SPECIALS[token] for token in ids]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; the last separator may be missing."""
        if not self.separator:
            return [self.ids(text) for text in texts]
        return [self.ids(name for name in text.split(self.separator) if name) for text in texts]

    @classmethod
    def from_file(cls, path: str | Path) -> SymbolTokenizer:
        """Read what `save` wrote. Raises ValueError when the file is something else or damaged."""
        try:
            content = json.loads(Path(path).read_bytes())
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']!r}")
            return cls(content["symbols"], content["separator"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a file of symbols, format {FORMAT} ({error}); train again") from None

    def _json(self) -> str:
        return json.dumps({"format": FORMAT, "symbols": self.symbols, "separator": self.separator})


@dataclass(frozen=True, kw_only=True)
class Symbols:
    """The symbols of the corpus, which must have some: of a task, or of a known process.

    Attributes:
        vocab_size: ids in all; follows from the corpus, and is here so that a model can follow it in a config.
    """

    vocab_size: int

    def load(self, corpus: Corpus) -> SymbolTokenizer:
        """Raises ValueError for a corpus of ordinary text, or a number of ids that is not its own."""
        if corpus.symbols is None:
            raise ValueError(
                f"tokenizer=symbols is for tasks and known processes, and corpus {corpus.name!r} is ordinary text; use "
                "tokenizer=bpe2048 or byte"
            )
        tokenizer = SymbolTokenizer(corpus.symbols, corpus.separator)
        if tokenizer.vocab_size != self.vocab_size:
            raise ValueError(
                f"tokenizer.vocab_size={self.vocab_size}, but corpus {corpus.name!r} has {len(corpus.symbols)} symbols "
                f"and {FIRST_SYMBOL_ID} specials; leave it out"
            )
        return tokenizer
