"""The sources behind the table of metrics and defects, and that the table can fail."""

import math

import numpy as np
import pytest
import tiny
from scipy import stats

from paradigms.quality import defects, mauve
from paradigms.quality.intervals import Estimate
from paradigms.quality.ngram import ByteNgram
from paradigms.quality.sources import Chain, HeldOut, next_bytes, pieces_of, sample_judge, stationary


def test_the_chain_keeps_its_distribution_and_knows_its_likelihood():
    chain = Chain.of(symbols=4, concentration=1.0, documents=1, length=10)
    np.testing.assert_allclose(chain.start_V @ chain.next_VV, chain.start_V, atol=1e-12)
    assert chain.start_V.sum() == pytest.approx(1)
    words = [bytes([97 + i, 97 + j, 97 + k]) for i in range(4) for j in range(4) for k in range(4)]
    chances = [math.exp(-chain.nats(word)) for word in words]
    assert sum(chances) == pytest.approx(1)
    expected = sum(chance * chain.nats(word) for chance, word in zip(chances, words, strict=True)) / 3
    assert chain.ideal_nats(3) == pytest.approx(expected)


@pytest.mark.parametrize("cold", [False, True])
def test_the_chain_draws_what_it_says(cold):
    """Pairs of letters against their probabilities; the other temperature, as a control, is refused."""
    chain = Chain.of(symbols=3, concentration=1.0, documents=1, length=10)
    sharp_VV = chain.next_VV**2 / (chain.next_VV**2).sum(1, keepdims=True)
    draw = chain.cold if cold else chain.draw
    pairs = draw(20_000, 2, np.random.default_rng(3))
    counts = np.array([pairs.count(bytes([97 + i, 97 + j])) for i in range(3) for j in range(3)])
    p = {}
    for name, next_VV in (("plain", chain.next_VV), ("cold", sharp_VV)):
        p[name] = stats.chisquare(counts, (chain.start_V[:, None] * next_VV).ravel() * 20_000).pvalue
    assert p["cold" if cold else "plain"] > 0.001 > p["plain" if cold else "cold"]


def test_stationary_of_a_known_chain():
    np.testing.assert_allclose(stationary(np.array([[0.9, 0.1], [0.3, 0.7]])), [0.75, 0.25])


def test_next_bytes_are_those_of_the_judge():
    judge = ByteNgram.fit([text.encode() for text in tiny.texts(40)], order=4)
    for context in (b"", b"t", b"th", b"the", b"zqx"):
        (chance_V,) = next_bytes(judge, np.frombuffer(context, np.uint8)[None])
        assert chance_V.sum() == pytest.approx(1)
        for byte in (*b"abe m", 0, 200):
            assert -math.log(chance_V[byte]) == pytest.approx(judge.nats(bytes([byte]), context=context)[0])


def test_the_judge_writes_what_it_expects():
    """Its own texts cost their entropy: the mean of −ln p and that of Σ −p ln p agree; cold ones cost less."""
    judge = ByteNgram.fit([text.encode() for text in tiny.texts(40)], order=3)
    written = sample_judge(judge, 400, 20, np.random.default_rng(0))
    cost, entropy = [], []
    for text in written:
        cost.append(judge.nats(text).sum())
        chances = [next_bytes(judge, np.frombuffer(text[max(0, t - 2) : t], np.uint8)[None])[0] for t in range(20)]
        entropy.append(sum(-(chance_V * np.log(chance_V)).sum() for chance_V in chances))
    difference = np.array(cost) - np.array(entropy)
    assert abs(difference.mean()) < 4 * difference.std() / 20
    cold = sample_judge(judge, 100, 20, np.random.default_rng(0), temperature=0.5)
    assert np.mean([judge.nats(text).sum() for text in cold]) < 0.8 * np.mean(cost)


def test_defects_are_what_they_say():
    chain, draw = Chain.of(documents=50), np.random.default_rng(0)
    texts = chain.draw(20, 32, draw)
    spoilt = {defect: defects.spoil(defect, texts, chain, 32, draw) for defect in defects.DEFECTS}
    assert {defect: {len(text) for text in texts} for defect, texts in spoilt.items()} == {
        defect: {16 if defect == "truncated" else 32} for defect in defects.DEFECTS
    }
    assert all(text == text[:8] * 4 for text in spoilt["phrase"])
    assert all(any(text in document for document in chain.training) for text in spoilt["memorised"])
    assert not any(text in document for text in spoilt["exact"] for document in chain.training)
    assert spoilt["exact"] == texts != spoilt["shuffled"]
    assert [sorted(text) for text in texts] == [sorted(text) for text in spoilt["shuffled"]]


def test_pieces_are_of_different_documents_as_long_as_there_are_some():
    documents = [bytes([97 + n]) * 9 for n in range(5)] + [b"short"]
    pieces = pieces_of(documents, 9, np.random.default_rng(0))
    assert len(set(pieces)) == len(pieces) == 5
    assert len(pieces_of(documents, 6, np.random.default_rng(0), count=12)) == 12
    with pytest.raises(ValueError, match="no document has 10 bytes"):
        pieces_of(documents, 10, np.random.default_rng(0))


def test_every_expectation_names_a_metric():
    for defect, wanted in defects.EXPECTED.items():
        assert set(wanted) <= set(defects.METRICS), defect


@pytest.fixture
def quick_mauve(monkeypatch):
    """MAUVE is slow and has its own tests: here, what it should see is told by the mean point alone."""

    def compare(generated_NE, reference_NE, *, seed=0):
        half = len(reference_NE) // 2
        apart = [
            float(np.linalg.norm(side.mean(0) - reference_NE[:half].mean(0)))
            for side in (generated_NE, reference_NE[half:])
        ]
        lost = Estimate(apart[0] - apart[1], apart[1] / 2, half)
        return mauve.Mauve(score=lost, ceiling=lost, lost=lost, texts=half)

    monkeypatch.setattr(mauve, "compare", compare)


def test_the_exact_source_is_at_its_ideal_and_every_defect_is_seen(quick_mauve):
    looks = defects.check(Chain.of(), texts=100, length=48)
    assert len(looks) == len(defects.DEFECTS) * len(defects.METRICS)
    assert [(look.metric, look.defect) for look in looks if not look.holds] == []
    assert "not as expected" not in defects.table(looks)


def test_a_blind_metric_fails_the_table(quick_mauve, monkeypatch):
    monkeypatch.setattr(defects, "token_entropy_nats", lambda text: 2.0 + text[0] / 100)
    looks = defects.check(Chain.of(), texts=60, length=48)
    wrong = {(look.metric, look.defect) for look in looks if not look.holds}
    assert {("entropy", "temperature 0.5"), ("entropy", "phrase")} & wrong
    assert "not as expected" in defects.table(looks)


@pytest.mark.slow
def test_a_metric_that_sees_too_much_fails_the_table(quick_mauve, monkeypatch):
    """One that takes the length of the words for novelty."""
    columns = defects.novelty_columns

    def wrong_columns(stretches):
        return columns(stretches) | {"longest_match_share": 0.5}

    monkeypatch.setattr(defects, "novelty_columns", wrong_columns)
    looks = defects.check(Chain.of(), texts=60, length=48)
    wrong = [(look.metric, look.defect) for look in looks if not look.holds and look.metric != "mauve"]
    assert wrong == [("longest_match", "memorised")]


def test_held_out_text_is_a_source(tmp_path, monkeypatch):
    monkeypatch.setenv("PARADIGMS_CACHE", str(tmp_path))
    source = HeldOut.of(tiny.corpus(), length=60)
    available = len(source.pieces)
    drawn = source.draw(5, 60, np.random.default_rng(0))
    assert len(source.pieces) == available - 5 and all(len(text) == 60 for text in drawn)
    assert all(any(text in document.encode() for document in tiny.corpus().documents["heldout"]) for text in drawn)
    with pytest.raises(ValueError, match=f"has {available - 5} more texts of 60 bytes, not 10000"):
        source.draw(10_000, 60, np.random.default_rng(0))


def test_held_out_text_suffices_for_as_many_texts_as_are_said(quick_mauve, tmp_path, monkeypatch):
    monkeypatch.setenv("PARADIGMS_CACHE", str(tmp_path))
    whole = HeldOut.of(tiny.corpus(), length=16)
    pieces = [bytes([97 + n % 26]) * 16 for n in range(160)]

    def source(count):
        return HeldOut(pieces[:count], whole.judge, whole.training, whole.name)

    assert [defects.most_texts(source(count), at_most=52) for count in (150, 160, 149, 9)] == [50, 52, 50, 50]
    assert defects.most_texts(Chain.of(documents=1), at_most=200) == 200
    assert len(defects.check(source(150), texts=50, length=16)) == len(defects.DEFECTS) * len(defects.METRICS)
    with pytest.raises(ValueError, match=r"--texts 50 --length 16 needs 150 documents of 16 bytes, and .* has 149"):
        defects.check(source(149), texts=50, length=16)


def test_too_little_is_refused():
    with pytest.raises(ValueError, match="--texts 49"):
        defects.check(Chain.of(), texts=49)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_whole_table_with_mauve(seed):
    pytest.importorskip("mauve")
    looks = defects.check(Chain.of(seed=seed), seed=seed)
    assert [(look.metric, look.defect) for look in looks if not look.holds] == []
