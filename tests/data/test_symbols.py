"""A token a symbol: text and ids are the same thing, and what is no symbol is refused by name."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import tiny

from paradigms.data.splits import Corpus
from paradigms.data.symbols import FORMAT, Symbols, SymbolTokenizer
from paradigms.data.tasks.star_graph import StarGraph
from paradigms.data.tasks.task import text
from paradigms.data.tokenizers import SPECIALS, StreamDecoder, Tokenizer
from paradigms.training import checkpoint

WORDS = ("0", "10", "|", "é", "two", "<", "日本")
LETTERS = tuple("abcé|日")


@pytest.fixture(params=[(WORDS, " "), (LETTERS, ""), (WORDS, ", ")], ids=["words", "letters", "commas"])
def tokenizer(request: pytest.FixtureRequest) -> SymbolTokenizer:
    return SymbolTokenizer(*request.param)


def test_text_ids_and_names_say_the_same(tokenizer: SymbolTokenizer) -> None:
    source = random.Random(0)
    for length in (0, 1, 2, 30):
        names = source.choices(tokenizer.symbols, k=length)
        written = "".join(name + tokenizer.separator for name in names)
        ids = tokenizer.encode(written)
        assert ids == [3 + tokenizer.symbols.index(name) for name in names] == tokenizer.ids(names)
        assert tokenizer.names(ids) == names and tokenizer.decode(ids) == written
        assert tokenizer.decode([0, *ids, 1, 2]) == written, "specials have no text"
        assert sum(len(tokenizer.token_bytes[token]) for token in ids) == len(written.encode())
    assert tokenizer.vocab_size == len(tokenizer.token_bytes) == 3 + len(tokenizer.symbols)
    assert list(tokenizer.plain_ids) == list(range(3, tokenizer.vocab_size))
    assert tokenizer.names([0, 1, 2]) == list(SPECIALS)


def test_texts_are_encoded_each_by_itself_and_need_no_last_separator() -> None:
    tokenizer = SymbolTokenizer(WORDS)
    assert tokenizer.encode_batch(["0 10 |", "0 10 | ", ""]) == [[3, 4, 5], [3, 4, 5], []]


def test_text_arrives_symbol_by_symbol(tokenizer: SymbolTokenizer) -> None:
    ids = tokenizer.ids(tokenizer.symbols)
    decoder = StreamDecoder(tokenizer)
    pieces = [decoder.feed([token]) for token in ids]
    assert pieces == [name + tokenizer.separator for name in tokenizer.symbols] and decoder.finish() == ""


@pytest.mark.parametrize("written", ["0 11 ", "zero", "0  1O ", "<bos> "])
def test_what_is_no_symbol_is_named(written: str) -> None:
    wrong = next(name for name in written.split(" ") if name and name not in WORDS)
    with pytest.raises(ValueError, match=f"'{wrong}' is none of the 7 symbols of this tokenizer"):
        SymbolTokenizer(WORDS).encode(written)
    with pytest.raises(ValueError, match="token id 10 is not in the vocabulary; ids are 0 to 9"):
        SymbolTokenizer(WORDS).decode([3, 10])


@pytest.mark.parametrize(
    ("symbols", "separator", "words"),
    [
        (("a", "b", "a"), " ", "repeat themselves"),
        (("a", ""), " ", r"\[''\]: names must differ"),
        (("a", "<mask>"), " ", r"\['<mask>'\]"),
        (("a", "b c"), " ", r"\['b c'\].* not hold the separator ' '"),
        (("a", "bc"), "", "symbols of several characters need a separator"),
    ],
    ids=str,
)
def test_names_that_cannot_be_read_back_are_refused(symbols: tuple[str, ...], separator: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SymbolTokenizer(symbols, separator)


def test_a_file_gives_the_same_tokenizer_and_its_kind_is_told_from_it(tokenizer: SymbolTokenizer, tmp_path) -> None:
    tokenizer.save(tmp_path / checkpoint.TOKENIZER)
    for found in (SymbolTokenizer.from_file(tmp_path / checkpoint.TOKENIZER), checkpoint.load_tokenizer(tmp_path)):
        assert isinstance(found, SymbolTokenizer)
        assert (found.symbols, found.separator, found.sha256) == (
            tokenizer.symbols,
            tokenizer.separator,
            tokenizer.sha256,
        )
    bpe = Tokenizer([(3 + ord("a"), 3 + ord("b"))])
    bpe.save(tmp_path / checkpoint.TOKENIZER)
    found = checkpoint.load_tokenizer(tmp_path)
    assert not isinstance(found, SymbolTokenizer) and found.sha256 == bpe.sha256
    (tmp_path / checkpoint.TOKENIZER).unlink()
    with pytest.raises(ValueError, match=r"tokenizer\.json is missing; delete the folder"):
        checkpoint.load_tokenizer(tmp_path)


def test_the_hash_is_of_names_order_and_separator() -> None:
    variants = [SymbolTokenizer("abc", ""), SymbolTokenizer("acb", ""), SymbolTokenizer("abc"), SymbolTokenizer("abcd")]
    assert len({one.sha256 for one in variants}) == 4
    assert SymbolTokenizer(iter("abc"), "").sha256 == variants[0].sha256


WHOLE = json.dumps({"format": FORMAT, "symbols": [*"abcdefghijklmnopqrstuvwxyz"], "separator": " "})


@pytest.mark.parametrize(
    "damaged",
    [
        WHOLE[:-20],
        WHOLE.replace(FORMAT, "paradigms-symbols-2"),
        WHOLE.replace('"separator"', '"between"'),
        WHOLE.replace('"b"', '"a"'),
        WHOLE.replace('"b"', "7"),
        "[]",
        "",
    ],
    ids=["cut off", "another format", "no separator", "twice", "a number", "a list", "empty"],
)
def test_a_damaged_file_is_one_clear_error(damaged: str, tmp_path: Path) -> None:
    path = tmp_path / checkpoint.TOKENIZER
    path.write_text(damaged)
    with pytest.raises(
        ValueError, match=r"tokenizer\.json is not a file of symbols, format paradigms-symbols-1 \(.*\)"
    ):
        SymbolTokenizer.from_file(path)
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a (file of symbols|tokenizer file)"):
        checkpoint.load_tokenizer(tmp_path)


def corpus(**more: object) -> Corpus:
    documents = {"train": (), "validation": ("0 10 ",), "heldout": ("10 0 ",)}
    return Corpus(name="known", documents=documents, sha256="0", num_bytes={}, **more)  # type: ignore[arg-type]


def test_a_config_reads_the_symbols_of_its_corpus() -> None:
    found = Symbols(vocab_size=10).load(corpus(symbols=WORDS, separator=" "))
    assert found.symbols == WORDS and found.separator == " "
    task = StarGraph(path_len=3, num_nodes=9, num_heldout=3, num_validation=3)
    made = task.load()
    tokenizer = Symbols(vocab_size=task.vocab_size).load(made)
    for instance, document in zip(task.heldout, made.documents["heldout"], strict=True):
        assert tokenizer.encode(document) == tokenizer.ids(instance.prompt + instance.answer)
        assert tokenizer.decode(tokenizer.ids(instance.answer)) == text(instance.answer)


def test_a_config_that_does_not_fit_its_corpus_is_refused() -> None:
    with pytest.raises(ValueError, match="corpus 'tiny' is ordinary text; use tokenizer=bpe2048 or byte"):
        Symbols(vocab_size=10).load(tiny.corpus())
    with pytest.raises(ValueError, match=r"tokenizer\.vocab_size=11, but corpus 'known' has 7 symbols and 3 specials"):
        Symbols(vocab_size=11).load(corpus(symbols=WORDS, separator=" "))
