"""Tokenizers: bytes, or byte-level BPE trained on the training split. Both lose nothing and know no unknown token.

Ids are laid out alike: 0 <bos>, 1 <eos>, 2 <mask>, 3 to 258 the bytes, then one id for each merge. A byte tokenizer is
the BPE without merges. Text never turns into a special token, whatever it says.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .cache import cached
from .splits import Corpus

BOS_ID, EOS_ID, MASK_ID = 0, 1, 2
SPECIALS = ("<bos>", "<eos>", "<mask>")
FIRST_BYTE_ID = len(SPECIALS)
BYTE_VOCAB_SIZE = FIRST_BYTE_ID + 256
MAX_VOCAB_SIZE = 2**16
_FORMAT = "paradigms-tokenizer-1"


class Tokenizer:
    """Byte-level BPE given by its merges, in order of priority.

    Attributes:
        merges: pairs of ids; the merged token gets the next free id, or keeps the one its bytes already have.
        token_bytes: bytes of each id; empty for the specials.
        vocab_size: number of ids.
        sha256: hash of the merges, hence of everything the tokenizer does.
    """

    bos_id: int = BOS_ID
    eos_id: int = EOS_ID
    mask_id: int | None = MASK_ID  # None where a model has no mask token

    def __init__(self, merges: Iterable[tuple[int, int]] = ()) -> None:
        self.merges = tuple((int(left), int(right)) for left, right in merges)
        self.token_bytes = _token_bytes(self.merges)
        self.vocab_size = len(self.token_bytes)
        self.sha256 = hashlib.sha256(self._json().encode()).hexdigest()
        self._bpe = _bpe(self.merges, self.token_bytes) if self.merges else None

    @property
    def plain_ids(self) -> Sequence[int]:
        """Ids that are not special, in order."""
        return range(FIRST_BYTE_ID, self.vocab_size)

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without specials. Raises ValueError for lone surrogates, which have no UTF-8."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without specials."""
        encoded = [_utf8(text) for text in texts]
        if self._bpe is None:
            return [[byte + FIRST_BYTE_ID for byte in data] for data in encoded]
        return [encoding.ids for encoding in self._bpe.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The exact bytes of ids, specials dropped. Raises ValueError for an id outside the vocabulary."""
        ids = [int(token) for token in ids]
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            wrong = next(token for token in ids if not 0 <= token < self.vocab_size)
            raise ValueError(f"token id {wrong} is not in the vocabulary; ids are 0 to {self.vocab_size - 1}")
        return b"".join([self.token_bytes[token] for token in ids])

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, specials dropped; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode(errors="replace")

    def save(self, path: str | Path) -> None:
        """Write the tokenizer as a JSON file that `from_file` reads."""
        Path(path).write_text(self._json(), encoding="utf-8")

    @classmethod
    def from_file(cls, path: str | Path) -> Tokenizer:
        """Read what `save` wrote. Raises ValueError when the file is something else or damaged."""
        return cls._from_json(Path(path).read_bytes(), str(path))

    def _json(self) -> str:
        return json.dumps({"format": _FORMAT, "specials": SPECIALS, "merges": self.merges}, separators=(",", ":"))

    @classmethod
    def _from_json(cls, data: bytes, origin: str) -> Tokenizer:
        try:
            content = json.loads(data)
            if content["format"] != _FORMAT or tuple(content["specials"]) != SPECIALS:
                raise ValueError(f"format {content['format']!r}, specials {content['specials']}")
            return cls(content["merges"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{origin} is not a tokenizer file of format {_FORMAT} ({error}); save the tokenizer again"
            ) from None


class StreamDecoder:
    """Turns ids into text as they arrive, holding back the bytes of a character that is not complete yet."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: Iterable[int]) -> str:
        """The text that is certain once these ids have arrived; it may be empty."""
        return self._decoder.decode(self._tokenizer.decode_bytes(ids))

    def finish(self) -> str:
        """What was held back, as U+FFFD. All pieces together equal `Tokenizer.decode` of all ids."""
        return self._decoder.decode(b"", final=True)


@dataclass(frozen=True, kw_only=True)
class ByteTokenizer:
    """One token a byte: nothing to train, long sequences.

    Attributes:
        vocab_size: always 259, the bytes and the specials; here so that a model can follow it in a config.
    """

    vocab_size: int = BYTE_VOCAB_SIZE

    def __post_init__(self) -> None:
        if self.vocab_size != BYTE_VOCAB_SIZE:
            raise ValueError(
                f"tokenizer.vocab_size={self.vocab_size} is no choice with tokenizer=byte, which has {BYTE_VOCAB_SIZE} "
                "ids; for more use tokenizer=bpe2048"
            )

    def load(self, corpus: Corpus) -> Tokenizer:
        return Tokenizer()


@dataclass(frozen=True, kw_only=True)
class BpeTokenizer:
    """Byte-level BPE, trained on the training split by the `tokenizers` library and cached.

    Attributes:
        vocab_size: ids in all, specials and bytes included.
    """

    vocab_size: int = 2048

    def __post_init__(self) -> None:
        if not BYTE_VOCAB_SIZE < self.vocab_size <= MAX_VOCAB_SIZE:
            raise ValueError(
                f"tokenizer.vocab_size={self.vocab_size} must be from {BYTE_VOCAB_SIZE + 1} (specials, bytes, a merge) "
                f"to {MAX_VOCAB_SIZE} (token streams hold 16 bits); for bytes alone use tokenizer=byte"
            )

    def load(self, corpus: Corpus) -> Tokenizer:
        """Train on corpus.documents["train"]. Raises ValueError when the text has too few distinct pairs to merge."""
        import tokenizers

        key = {"corpus": corpus.sha256, "vocab_size": self.vocab_size, "tokenizers": tokenizers.__version__}
        data = cached("tokenizer", key, lambda: self._train(corpus)._json().encode())
        return Tokenizer._from_json(data, "the cached tokenizer")

    def _train(self, corpus: Corpus) -> Tokenizer:
        from tokenizers import Tokenizer as Library
        from tokenizers import models, pre_tokenizers, trainers

        library = Library(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size - FIRST_BYTE_ID,
            initial_alphabet=[_CHARACTER_OF_BYTE[byte] for byte in range(256)],
            show_progress=False,
        )
        library.train_from_iterator(corpus.documents["train"], trainer)
        tokenizer = Tokenizer(_merges_of_ids(json.loads(library.to_str())["model"]["merges"]))
        if tokenizer.vocab_size != self.vocab_size:
            raise ValueError(
                f"tokenizer.vocab_size={self.vocab_size} is too large for corpus {corpus.name!r}, whose training split "
                f"yields {tokenizer.vocab_size} tokens; choose at most that, or tokenizer=byte"
            )
        return tokenizer


def _token_bytes(merges: Sequence[tuple[int, int]]) -> tuple[bytes, ...]:
    tokens = [b""] * FIRST_BYTE_ID + [bytes([byte]) for byte in range(256)]
    known = set(tokens)
    for rank, (left, right) in enumerate(merges):
        if not (FIRST_BYTE_ID <= left < len(tokens) and FIRST_BYTE_ID <= right < len(tokens)):
            raise ValueError(f"merge {rank} joins ids {left} and {right}, of which one is special or not defined yet")
        token = tokens[left] + tokens[right]
        if token not in known:
            known.add(token)
            tokens.append(token)
    return tuple(tokens)


def byte_alphabet() -> list[str]:
    """The library's alphabet: bytes that print as Latin-1 stand for themselves, the others for U+0100 onwards."""
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    replacements = iter(range(0x100, 0x200))
    return [chr(byte if byte in prints else next(replacements)) for byte in range(256)]


_CHARACTER_OF_BYTE = byte_alphabet()


def _spell(token: bytes) -> str:
    return "".join([_CHARACTER_OF_BYTE[byte] for byte in token])


def _merges_of_ids(spelled: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
    ids = {character: FIRST_BYTE_ID + byte for byte, character in enumerate(_CHARACTER_OF_BYTE)}
    merges = []
    for left, right in spelled:
        merges.append((ids[left], ids[right]))
        ids.setdefault(left + right, FIRST_BYTE_ID + len(ids))
    return merges


def _bpe(merges: Sequence[tuple[int, int]], token_bytes: Sequence[bytes]):
    """The library's tokenizer over these merges. Specials are not in it, so no text can produce them."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, pre_tokenizers

    spelled = [_spell(token) for token in token_bytes]
    vocab = {spelled[token]: token for token in range(FIRST_BYTE_ID, len(spelled))}
    library = Library(models.BPE(vocab=vocab, merges=[(spelled[left], spelled[right]) for left, right in merges]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return library


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text has the lone surrogate {text[error.start]!r} at character {error.start}, which UTF-8 cannot hold; "
            "remove it before encoding"
        ) from None
