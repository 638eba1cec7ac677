"""Every file of conf/corpus and conf/tokenizer names a config that builds itself."""

import dataclasses
import re
from pathlib import Path

import hydra
import pytest
from omegaconf import DictConfig, OmegaConf

import paradigms
from paradigms.data.corpora import DatasetText, StdlibDocs, StdlibSource
from paradigms.data.pairs import LocalPairs
from paradigms.data.part import Part
from paradigms.data.pretrained_tokenizer import PretrainedTokenizer
from paradigms.data.symbols import Symbols
from paradigms.data.tokenizers import BpeTokenizer, ByteTokenizer

CONF = Path(paradigms.__file__).parents[1] / "conf"
GIVEN = {"path": "here", "vocab_size": 30}  # for what a file leaves open
EXPECTED = {
    "corpus/stdlib_docs": StdlibDocs(),
    "corpus/stdlib_source": StdlibSource(),
    "corpus/part": Part(of=StdlibDocs(), train_share=0.1),
    "corpus/local_text": DatasetText(builder="text", path="here", sample_by="paragraph"),
    "corpus/local_json": DatasetText(builder="json", path="here"),
    "corpus/local_parquet": DatasetText(builder="parquet", path="here"),
    "corpus/local_pairs": LocalPairs(path="here"),
    "corpus/hub": DatasetText(builder="hub", path="here"),
    "tokenizer/bpe2048": BpeTokenizer(vocab_size=2048),
    "tokenizer/bpe1024": BpeTokenizer(vocab_size=1024),
    "tokenizer/byte": ByteTokenizer(),
    "tokenizer/pretrained": PretrainedTokenizer(path="here"),
    "tokenizer/symbols": Symbols(vocab_size=30),
}
GENERATED = [  # tasks and known processes: one file each, found and not listed
    name for name in sorted(f"corpus/{path.stem}" for path in (CONF / "corpus").glob("*.yaml")) if name not in EXPECTED
]


def file(name: str) -> DictConfig:
    config = OmegaConf.load(CONF / f"{name}.yaml")
    assert isinstance(config, DictConfig)
    for key, value in GIVEN.items():
        if key in list(config) and (OmegaConf.is_missing(config, key) or OmegaConf.is_interpolation(config, key)):
            config[key] = value
    return config


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_builds_what_its_name_says(name):
    assert hydra.utils.instantiate(file(name)) == EXPECTED[name]


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_corpus_has_the_name_of_its_file_and_spells_out_every_field(name):
    config = file(name)
    made = hydra.utils.instantiate(config)
    short = name.partition("/")[2]
    assert type(made).__module__ in (f"paradigms.data.tasks.{short}", f"paradigms.data.processes.{short}")
    assert made.name == short
    assert {str(key) for key in config} - {"_target_"} == {field.name for field in dataclasses.fields(made)}
    assert hash(made) == hash(hydra.utils.instantiate(config)), "a corpus is looked up by its config"
    assert made.vocab_size >= 3 + 2


def test_no_file_is_left_out():
    assert {f"tokenizer/{path.stem}" for path in (CONF / "tokenizer").glob("*.yaml")} <= set(EXPECTED)
    assert "corpus/star_graph" in GENERATED and all(re.fullmatch(r"corpus/[a-z0-9_]+", name) for name in GENERATED)


def test_a_list_of_paths_reaches_the_config():
    config = OmegaConf.load(CONF / "corpus" / "local_text.yaml")
    config.path = ["a.txt", "b.txt"]
    assert hydra.utils.instantiate(config).paths == ("a.txt", "b.txt")
