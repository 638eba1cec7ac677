"""Real loading through `datasets`, from small local files; the hub is only asked while it is switched off."""

import json

import datasets
import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet
import pytest

from paradigms.data.dataset_text import DatasetText
from paradigms.data.splits import SPLITS

TEXTS = [
    f"Document {number}: Grüße, and enough words to be kept by the length limit, which is low." for number in range(200)
]


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def write(path, builder, texts, field="text"):
    rows = [{field: text, "number": number} for number, text in enumerate(texts)]
    if builder == "text":
        path.write_text("\n\n".join(texts), encoding="utf-8")
    elif builder == "json":
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    else:
        pa.parquet.write_table(pa.Table.from_pylist(rows), path)


def documents(corpus):
    return sorted(document for split in SPLITS for document in corpus.documents[split])


@pytest.mark.parametrize("builder", ["text", "json", "parquet"])
def test_every_kind_of_file_gives_the_same_corpus(tmp_path, builder):
    path = tmp_path / f"mine[1].{builder}"
    write(path, builder, TEXTS)
    corpus = DatasetText(builder=builder, path=str(path)).load()
    assert documents(corpus) == sorted(TEXTS)
    write(tmp_path / "reference.txt", "text", TEXTS)
    assert corpus.sha256 == DatasetText(builder="text", path=str(tmp_path / "reference.txt")).load().sha256


def test_a_json_array_a_named_field_and_null_rows(tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps([{"body": text} for text in [*TEXTS, None]]))
    corpus = DatasetText(builder="json", path=str(tmp_path / "mine.json"), text_field="body").load()
    assert documents(corpus) == sorted(TEXTS)


def test_several_files_at_once(tmp_path):
    write(tmp_path / "a.txt", "text", TEXTS[:100])
    write(tmp_path / "b.txt", "text", TEXTS[100:])
    (tmp_path / "empty.txt").touch()
    from_list = DatasetText(builder="text", path=[str(tmp_path / "b.txt"), str(tmp_path / "a.txt")]).load()
    from_folder = DatasetText(builder="text", path=str(tmp_path)).load()
    assert documents(from_list) == documents(from_folder) == sorted(TEXTS)


@pytest.mark.parametrize("sample_by", ["line", "paragraph", "document"])
def test_what_one_document_is(tmp_path, sample_by):
    pieces = {"line": 2, "paragraph": 1, "document": 1}
    for number in range(120):
        first, second = f"First line of file {number} " + "x" * 60, f"Second line of file {number} " + "y" * 60
        (tmp_path / f"{number}.txt").write_text(f"{first}\n{second}\n")
    corpus = DatasetText(builder="text", path=str(tmp_path), sample_by=sample_by).load()
    assert len(documents(corpus)) == 120 * pieces[sample_by]


def test_part_of_a_set(tmp_path):
    write(tmp_path / "mine.jsonl", "json", TEXTS)
    corpus = DatasetText(builder="json", path=str(tmp_path / "mine.jsonl"), split="train[:75%]").load()
    assert documents(corpus) == sorted(TEXTS[:150])


def test_files_are_read_again_only_when_they_change(tmp_path, monkeypatch):
    path = tmp_path / "mine.txt"
    write(path, "text", TEXTS)
    config = DatasetText(builder="text", path=str(path))
    first = config.load()
    with monkeypatch.context() as patch:
        patch.setattr(datasets, "load_dataset", pytest.fail)
        assert config.load() == first
    write(path, "text", [*TEXTS, "One more document, which makes the file longer than it was when it was cached."])
    assert config.load().sha256 != first.sha256


@pytest.mark.parametrize(
    ("builder", "content", "fields", "message"),
    [
        ("text", b"Good start\n\xff", {}, r"mine\.text is not UTF-8: byte 0xff at offset 11"),
        ("json", b'{"text": "\xe9"}', {}, r"mine\.json is not UTF-8: byte 0xe9 at offset 10"),
        ("json", b'{"text": "a"}\n{"te', {}, "cannot be read as json: JSON parse error"),
        ("json", b'{"body": "a"}', {}, "text_field='text' is not a field of .* it has body"),
        ("json", b'{"text": 7}', {}, "holds int in row 0, not text"),
        ("json", b'{"text": "short"}', {}, "is empty: it has no document of at least 64"),
        ("json", b'{"text": "short"}', {"split": "test"}, "Unknown split"),
        ("json", b'{"text": "\\ud800 is half of a character"}', {"min_characters": 1}, "surrogate"),
        ("parquet", b"no parquet", {}, "cannot be read as parquet"),
        ("text", b"", {}, "is empty"),
    ],
)
def test_bad_files(tmp_path, builder, content, fields, message):
    path = tmp_path / f"mine.{builder}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        DatasetText(builder=builder, path=str(path), **fields).load()


def test_parquet_with_bytes_that_are_not_utf8(tmp_path):
    column = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0"), pa.py_buffer(b"okb\xff"))
    pa.parquet.write_table(pa.table({"text": column}), tmp_path / "bad.parquet")
    with pytest.raises(ValueError, match="not UTF-8"):
        DatasetText(builder="parquet", path=str(tmp_path / "bad.parquet")).load()


def test_too_few_documents(tmp_path):
    write(tmp_path / "mine.txt", "text", TEXTS[:2])
    with pytest.raises(ValueError, match="split empty"):
        DatasetText(builder="text", path=str(tmp_path / "mine.txt")).load()


def test_a_set_on_the_hub_without_network():
    with pytest.raises(ValueError, match="'Salesforce/wikitext' cannot be read from the hub"):
        DatasetText(builder="hub", path="Salesforce/wikitext", subset="wikitext-2-raw-v1").load()


def test_the_hub_is_asked_for_the_set_its_subset_and_split(monkeypatch):
    asked = []

    def load_dataset(*args, **options):
        asked.append((args, options))
        return datasets.Dataset.from_dict({"body": TEXTS})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    config = DatasetText(builder="hub", path="some/set", subset="small", split="train[:1%]", text_field="body")
    assert documents(config.load()) == sorted(TEXTS)
    assert asked == [(("some/set",), {"name": "small", "split": "train[:1%]"})]


def test_a_missing_path_is_found_before_anything_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", pytest.fail)
    with pytest.raises(ValueError, match="neither a file"):
        DatasetText(builder="text", path=str(tmp_path / "absent.txt")).check()


def test_a_local_folder_is_not_a_hub_set(tmp_path):
    with pytest.raises(ValueError, match="not a set on the hub"):
        DatasetText(builder="hub", path=str(tmp_path)).check()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"builder": "csv"}, "corpus.builder='csv' is unknown; it is one of text, json, parquet, hub"),
        ({"path": ""}, "corpus.path is empty"),
        ({"path": []}, "corpus.path is empty"),
        ({"builder": "hub", "path": ["a/b", "c/d"]}, "builder=hub reads one"),
        ({"subset": "small"}, "needs corpus.builder=hub"),
        ({"builder": "json", "sample_by": "line"}, "needs corpus.builder=text"),
        ({"text_field": "body"}, "has no meaning in text files"),
        ({"sample_by": "page"}, "it is one of line, paragraph, document"),
        ({"min_characters": 0}, "min_characters=0 is too small"),
        ({"heldout_fraction": 0.0}, "heldout_fraction=0.0 must be above 0"),
        ({"validation_fraction": 0.5}, "validation_fraction=0.5 must be above 0 and below 0.5"),
    ],
)
def test_bad_settings(fields, message):
    with pytest.raises(ValueError, match=message):
        DatasetText(**{"builder": "text", "path": "mine.txt", **fields})
