"""The external scorer against the library's own forwards, token by token; what cannot be scored is said."""

import math

import numpy as np
import pytest
import theirs
import torch

from paradigms.models.checkpoint_files import SMOLLM2
from paradigms.models.smollm2 import is_there
from paradigms.quality import external
from paradigms.quality.external import ExternalScorer, Text

PROMPT, OUTPUT = b"the cache keeps", b" every state. a model reads the prompt"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(model_type: str = "llama", tokenizer: str = "byte level", **changes) -> str:
        key = f"{model_type}-{tokenizer}-{changes}"
        if key not in made:
            made[key] = str(
                theirs.write_folder(tmp_path_factory.mktemp("scorer"), model_type, tokenizer=tokenizer, **changes)
            )
        return made[key]

    return folder


@pytest.fixture(scope="module")
def scorer(folders) -> ExternalScorer:
    return ExternalScorer.load(folders())


def library_nats(folder: str, scorer: ExternalScorer, data: bytes, first_byte: int) -> tuple[float, int, int]:
    """Σ −ln p over tokens that begin at or after a byte, by transformers; their number and bytes."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = scorer.tokenizer.encode(data.decode())
    begins = np.cumsum([0, *(len(scorer.tokenizer.token_bytes[token]) for token in ids)])
    with torch.no_grad():
        log_p = model(torch.tensor([[scorer.tokenizer.bos_id, *ids]])).logits[0].log_softmax(-1)
    chosen = [i for i in range(len(ids)) if begins[i] >= first_byte]
    nats = -sum(log_p[i, ids[i]].item() for i in chosen)  # row i has read begin-of-text and i tokens
    return nats, len(chosen), int(begins[-1] - begins[chosen[0]])


@pytest.mark.parametrize("model_type", ["llama", "bamba"])
@pytest.mark.parametrize("output", [OUTPUT, b"e", "naïve café, 日本".encode()], ids=["long", "a letter", "not ASCII"])
def test_nats_are_those_of_the_library(folders, model_type, output):
    folder = folders(model_type)
    scorer = ExternalScorer.load(folder)
    (got,) = scorer.score([Text.of(PROMPT, output)])
    nats, num_tokens, num_bytes = library_nats(folder, scorer, PROMPT + output, len(PROMPT))
    assert got.rejected is None
    assert (got.num_tokens, got.num_bytes) == (num_tokens, num_bytes)
    assert got.num_bytes + got.bytes_across == len(output)
    assert got.nats == pytest.approx(nats, rel=1e-4)
    columns = got.columns()
    assert columns["external_nats_per_token"] == pytest.approx(nats / num_tokens, rel=1e-4)
    assert columns["external_bits_per_byte"] == pytest.approx(nats / math.log(2) / num_bytes, rel=1e-4)


def test_a_token_across_the_boundary_is_context(scorer):
    """Cut within a token of several bytes: its rest is told, and neither scored nor counted."""
    whole = PROMPT + OUTPUT
    ids = scorer.tokenizer.encode(whole.decode())
    ends = np.cumsum([len(scorer.tokenizer.token_bytes[token]) for token in ids]).tolist()
    number = next(i for i, token in enumerate(ids) if i > 2 and len(scorer.tokenizer.token_bytes[token]) > 1)
    at_edge, within = ends[number], ends[number] - 1
    edge, across = scorer.score([Text.of(whole[:cut], whole[cut:]) for cut in (at_edge, within)])
    assert (edge.bytes_across, across.bytes_across) == (0, 1)
    assert across.nats == pytest.approx(edge.nats, rel=1e-6)
    assert (across.num_tokens, across.num_bytes) == (edge.num_tokens, edge.num_bytes)
    earlier = scorer.score([Text.of(whole[: ends[number - 1]], whole[ends[number - 1] :])])[0]
    assert earlier.nats > edge.nats and earlier.num_tokens == edge.num_tokens + 1


def test_batches_do_not_matter_and_the_order_is_kept(scorer):
    texts = [Text.of(PROMPT, OUTPUT[:n]) for n in (30, 3, 17, 0, 8)]
    one, many = scorer.score(texts, batch_size=1), scorer.score(texts, batch_size=8)
    assert [found.nats for found in one if found.nats] == pytest.approx([found.nats for found in many if found.nats])
    assert [found.num_bytes + found.bytes_across for found in many] == [30, 3, 17, 0, 8]


def test_parts_of_a_text_add_up(scorer):
    """Chain rule: scoring the second half after the first, and the first, is scoring both."""
    first, second = b"a model reads the prompt.", b" the clock waits for every state"
    both = Text.of(PROMPT, first + second)
    apart = [Text(PROMPT + first, both.is_output[: len(PROMPT + first)]), Text.of(PROMPT + first, second)]
    whole, *parts = scorer.score([both, *apart])
    assert whole.bytes_across == parts[1].bytes_across == 0, "choose texts whose halves meet between tokens"
    assert sum(part.num_tokens for part in parts) == whole.num_tokens
    assert sum(part.nats for part in parts) == pytest.approx(whole.nats, rel=1e-5)


def test_text_behind_a_gap_is_read_and_not_scored(scorer):
    data, given = PROMPT + OUTPUT, np.arange(len(PROMPT + OUTPUT))
    text = Text(data, (given >= len(PROMPT)) & (given < len(data) - 10))
    cut = Text.of(PROMPT, OUTPUT[:-10])
    got, before = scorer.score([text, cut])
    assert got.num_bytes + got.bytes_across <= len(OUTPUT) - 10 + 8
    assert got.num_tokens in range(before.num_tokens - 3, before.num_tokens + 1)


@pytest.mark.parametrize(
    ("prompt", "output", "reason"),
    [
        (PROMPT, b"", external.EMPTY),
        (PROMPT, "caf\u00e9".encode()[:-1], external.ENDS_WITHIN),
        (PROMPT, "\u65e5".encode()[:2], external.ENDS_WITHIN),
        (PROMPT, b"a\xff b", external.NOT_UTF8),
        (PROMPT, b"a\x80", external.NOT_UTF8),
        (b"\xe6\x97", b"\xa5 good", None),  # a character that begins in the prompt is whole with its output
        ("\u65e5".encode()[1:] + b" then", b" more", None),  # a prompt that was cut within a character
    ],
    ids=["empty", "ends within two", "ends within three", "ff", "lone", "joined", "cut prompt"],
)
def test_what_cannot_be_scored_is_rejected_with_its_reason(scorer, prompt, output, reason):
    (got,) = scorer.score([Text.of(prompt, output)])
    assert got.rejected == reason
    assert (got.nats is None) == (reason is not None)
    assert (got.columns()["external_nats_per_token"] is None) == (reason is not None)
    assert np.isnan(scorer.features([Text.of(prompt, output)])).any() == (reason is not None)


def test_an_output_within_one_token_of_the_prompt_is_rejected(scorer):
    wide = next(piece for piece in scorer.tokenizer.token_bytes if len(piece) > 2 and piece.isalpha())
    (got,) = scorer.score([Text.of(b"x " + wide[:1], wide[1:])])
    if scorer.tokenizer.encode((b"x " + wide).decode())[-1] == scorer.tokenizer.token_bytes.index(wide):
        assert got.rejected == external.NO_TOKEN
    else:
        assert got.rejected is None


def test_a_prompt_that_is_too_long_loses_its_beginning(folders):
    folder = folders(max_position_embeddings=40)
    scorer = ExternalScorer.load(folder)
    long = PROMPT * 10
    (got,) = scorer.score([Text.of(long, b" a model")])
    assert got.rejected is None and got.context_cut
    kept = 39  # behind begin-of-text
    ids = scorer.tokenizer.encode((long + b" a model").decode())[-kept:]
    tail = scorer.tokenizer.decode_bytes(ids)
    (same,) = scorer.score([Text.of(tail[: -len(b" a model")], b" a model")])
    if scorer.tokenizer.encode(tail.decode()) == ids:
        assert same.nats == pytest.approx(got.nats) and not same.context_cut
    (got,) = scorer.score([Text.of(b"a", long)])
    assert got.rejected == external.TOO_LONG


def test_sentencepiece_puts_a_space_before_the_text(folders):
    folder = folders(tokenizer="sentencepiece")
    scorer = ExternalScorer.load(folder)
    got, no_prompt = scorer.score([Text.of(b"the theo", b" the quo"), Text.of(b"", b"the quo")])
    assert got.rejected is None and got.num_bytes + got.bytes_across == 8
    assert no_prompt.rejected is None and no_prompt.num_bytes == 7


def test_a_tokenizer_without_bytes_is_refused(folders):
    with pytest.raises(ValueError, match="cannot be mapped to bytes"):
        ExternalScorer.load(folders(tokenizer="word piece"))
    with pytest.raises(ValueError, match="--scorer nowhere"):
        ExternalScorer.load("nowhere")


def test_a_text_that_the_tokenizer_changes_is_rejected(scorer):
    class Lowers:
        """A tokenizer that normalises."""

        token_bytes, bos_id = scorer.tokenizer.token_bytes, scorer.tokenizer.bos_id

        def encode(self, text: str) -> list[int]:
            return scorer.tokenizer.encode(text.lower())

    changed = ExternalScorer(scorer.model, Lowers(), "x", "x")  # type: ignore[arg-type]
    upper, lower = changed.score([Text.of(b"The", b" cache"), Text.of(b"the", b" cache")])
    assert (upper.rejected, lower.rejected) == (external.CHANGED, None)


def test_identity_follows_the_weights(folders, scorer):
    assert ExternalScorer.load(folders()).identity == scorer.identity
    assert ExternalScorer.load(folders(max_position_embeddings=40)).identity != scorer.identity


@pytest.mark.parametrize("model_type", ["llama", "bamba"])
def test_features_are_means_of_hidden_states(folders, model_type):
    scorer = ExternalScorer.load(folders(model_type))
    texts = [Text.of(PROMPT, OUTPUT), Text.of(PROMPT, b" every"), Text.of(b"", b"the clock forgets no byte")]
    together = scorer.features(texts)
    alone = np.concatenate([scorer.features([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=2e-4)
    assert len({tuple(row) for row in together.round(3).tolist()}) == 3


@pytest.mark.slow
@pytest.mark.skipif(not is_there(), reason="make smollm2")
def test_smollm2_prefers_english():
    scorer = ExternalScorer.load("smollm2")
    assert scorer.name == "smollm2" and str(SMOLLM2) == external.NAMES["smollm2"]
    english, shuffled = scorer.score(
        [
            Text.of(b"Return a list of", b" the names of all files in the folder, sorted by their size."),
            Text.of(b"Return a list of", b" folder the in, of their sorted names size files by all the."),
        ]
    )
    assert english.nats < 0.7 * shuffled.nats
    assert english.columns()["external_bits_per_byte"] < 1.2
