import pytest

from paradigms.data import corpora, stdlib_text
from paradigms.data.splits import SPLITS


def test_documentation_is_about_two_megabytes_of_known_english():
    corpus = corpora.StdlibDocs().load()
    assert 1_500_000 < sum(corpus.num_bytes.values()) < 4_000_000
    documents = [document for split in SPLITS for document in corpus.documents[split]]
    assert len(documents) == len(set(documents)) > 3000
    assert any(document.startswith('The "if" statement') for document in documents)  # a topic of help()
    assert any("Return a list of words" in d or "JSON (JavaScript Object Notation)" in d for d in documents)


def test_what_comes_from_the_cache_equals_what_was_extracted(monkeypatch):
    monkeypatch.setattr(
        stdlib_text, "docstrings", lambda: [f"Docstring number {number} " + "x" * 80 for number in range(300)]
    )
    first = corpora.StdlibDocs().load()
    monkeypatch.setattr(stdlib_text, "docstrings", pytest.fail)
    assert corpora.StdlibDocs().load() == first


def test_source_is_the_library_without_tests_and_installed_packages(tmp_path, monkeypatch):
    files = {
        "json/decoder.py": "kept",
        "json/tests/test_decoder.py": "left out",
        "site-packages/torch/nn.py": "left out",
        "test/test_json.py": "left out",
        "pydoc_data/topics.py": "left out",
        "_sysconfigdata__linux.py": "left out",
        "latin.py": "# -*- coding: latin-1 -*-\n# kept é",
        "tests.py": "kept",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="latin-1")
    (tmp_path / "broken.py").write_bytes(b"# \xff is not UTF-8, and nothing says what it is")
    monkeypatch.setattr(stdlib_text.sysconfig, "get_path", lambda name: str(tmp_path))
    assert list(stdlib_text.sources()) == ["kept", "# -*- coding: latin-1 -*-\n# kept é", "kept"]


def test_docstrings_are_those_of_modules_classes_and_functions(monkeypatch):
    source = '''"""Module."""
class C:
    """Class.

    Indented.
    """
    async def f(self):
        "Method."
x = "no docstring"
'''
    monkeypatch.setattr(stdlib_text, "sources", lambda: ["this does not parse (", source])
    monkeypatch.setattr(stdlib_text, "_help_topics", lambda: {"if": "The if statement\n  and more\n"})
    assert sorted(stdlib_text.docstrings()) == sorted(
        ["Module.", "Class.\n\nIndented.", "Method.", "The if statement\n  and more"]
    )


def test_a_python_without_help_topics_is_named(monkeypatch):
    def absent(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(stdlib_text.importlib, "import_module", absent)
    with pytest.raises(ValueError, match=r"no pydoc_data\.topics"):
        stdlib_text._help_topics()
