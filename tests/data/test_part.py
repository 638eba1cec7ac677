"""A part of a corpus: its training text alone is shorter, and everything that is keyed by the corpus knows."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass

import pytest

from paradigms.data.pairs import LocalPairs, PairRows
from paradigms.data.part import Part
from paradigms.data.splits import Corpus, build_corpus
from paradigms.data.tasks.star_graph import StarGraph
from paradigms.data.tokenizers import Tokenizer

TEXTS = [f"document {number} " + "and more of it " * (5 + number % 7) for number in range(400)]


@dataclass(frozen=True, kw_only=True)
class Whole:
    def load(self) -> Corpus:
        return build_corpus("whole", TEXTS)


def test_training_text_alone_is_cut() -> None:
    whole, part = Whole().load(), Part(of=Whole(), train_share=0.1).load()
    count = -(-len(whole.documents["train"]) // 10)
    assert part.documents["train"] == whole.documents["train"][:count] and count > 20
    assert part.num_bytes["train"] == sum(len(text.encode()) for text in part.documents["train"])
    for split in ("validation", "heldout"):
        assert part.documents[split] == whole.documents[split] and part.num_bytes[split] == whole.num_bytes[split]
    assert part.name == "10 % of whole" and part.prompt_lens is None


def test_smaller_parts_lie_within_larger_ones_and_none_is_empty() -> None:
    parts = [Part(of=Whole(), train_share=share).load().documents["train"] for share in (1e-6, 0.01, 0.2, 0.9)]
    assert len(parts[0]) == 1
    for small, large in itertools.pairwise(parts):
        assert large[: len(small)] == small and len(large) > len(small)


def test_another_part_is_another_corpus_and_the_whole_is_the_same() -> None:
    whole = Whole().load()
    assert Part(of=Whole()).load() == whole
    hashes = {Part(of=Whole(), train_share=share).load().sha256 for share in (0.1, 0.2, 1.0)}
    assert len(hashes) == 3 and whole.sha256 in hashes


def test_prompts_stay_with_their_answers(tmp_path) -> None:
    path = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"{number}:", "answer": "x" * (1 + number % 5)} for number in range(200)]
    path.write_text("\n".join(map(json.dumps, rows)))
    part = Part(of=LocalPairs(path=str(path)), train_share=0.25)
    assert part.scores_answers and not Part(of=Whole()).scores_answers
    corpus = part.load()
    found = PairRows.of(corpus, Tokenizer(), "train")
    assert len(found.ids) == len(corpus.documents["train"]) == len(corpus.prompt_lens["train"])  # type: ignore[index]
    for ids, length in zip(found.ids, found.prompt_lens, strict=True):
        assert bytes(Tokenizer().decode_bytes(ids[1:length])).endswith(b":")


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=rf"corpus\.train_share={share} must be above 0, and at most 1"):
        Part(of=Whole(), train_share=share)


def test_a_task_has_no_part(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"corpus\.of=star_graph is a task, .*train on fewer with train\.num_tokens"):
        Part(of=StarGraph(num_heldout=2, num_validation=2), train_share=0.5).load()


def test_missing_files_are_found_before_anything_is_read(tmp_path) -> None:
    with pytest.raises(ValueError, match="neither a file, nor a folder"):
        Part(of=LocalPairs(path=str(tmp_path / "none.jsonl")), train_share=0.5).check()
    Part(of=Whole(), train_share=0.5).check()
