"""Every file of conf/corpus and conf/tokenizer names a config that builds itself."""

from pathlib import Path

import hydra
import pytest
from omegaconf import OmegaConf

import paradigms
from paradigms.data.corpora import DatasetText, StdlibDocs, StdlibSource
from paradigms.data.pairs import LocalPairs
from paradigms.data.pretrained_tokenizer import PretrainedTokenizer
from paradigms.data.tokenizers import BpeTokenizer, ByteTokenizer

CONF = Path(paradigms.__file__).parents[1] / "conf"
EXPECTED = {
    "corpus/stdlib_docs": StdlibDocs(),
    "corpus/stdlib_source": StdlibSource(),
    "corpus/local_text": DatasetText(builder="text", path="here", sample_by="paragraph"),
    "corpus/local_json": DatasetText(builder="json", path="here"),
    "corpus/local_parquet": DatasetText(builder="parquet", path="here"),
    "corpus/local_pairs": LocalPairs(path="here"),
    "corpus/hub": DatasetText(builder="hub", path="here"),
    "tokenizer/bpe2048": BpeTokenizer(vocab_size=2048),
    "tokenizer/bpe1024": BpeTokenizer(vocab_size=1024),
    "tokenizer/byte": ByteTokenizer(),
    "tokenizer/pretrained": PretrainedTokenizer(path="here"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_builds_what_its_name_says(name):
    config = OmegaConf.load(CONF / f"{name}.yaml")
    if OmegaConf.is_missing(config, "path") or OmegaConf.is_interpolation(config, "path"):
        config.path = "here"
    assert hydra.utils.instantiate(config) == EXPECTED[name]


@pytest.mark.parametrize("group", ["corpus", "tokenizer"])
def test_no_file_is_left_out(group):
    assert {f"{group}/{path.stem}" for path in (CONF / group).glob("*.yaml")} <= set(EXPECTED)


def test_a_list_of_paths_reaches_the_config():
    config = OmegaConf.load(CONF / "corpus" / "local_text.yaml")
    config.path = ["a.txt", "b.txt"]
    assert hydra.utils.instantiate(config).paths == ("a.txt", "b.txt")
