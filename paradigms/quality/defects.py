"""Which metric sees which defect: metrics of samples on texts whose faults are known, against what was expected.

A metric that cannot tell good text from a known fault says nothing about unknown ones. Texts of a source are taken as
they are and spoilt in one way each; every metric is the difference from the source's ideal, with its interval:

    exact             new texts of the source                     at the ideal in every metric
    temperature 0.5   the source, sharpened                       likelihood, entropy, distinct-n, self-BLEU, MAUVE
    phrase            a text's first 8 bytes, over and over       repetition and entropy
    shuffled          a text's bytes in random order              likelihood and MAUVE; neither entropy nor distinct-1
    memorised         pieces of the training text                 novelty, and nothing else
    truncated         the first half of a text                    the share of truncated texts

`EXPECTED` has that in full, and was written before the figures. A source is a Markov chain of ours, whose likelihood is
exact, or the held-out text of a corpus: its judge (`ngram`) then gives the likelihood, has read the training text, and
is what is sampled at temperature 0.5. Since held-out documents are few, `phrase`, `shuffled` and `truncated` spoil the
very texts of `exact`.

A metric sees a defect when its interval leaves out 0. There are some sixty looks at once, so intervals are of 99.9 %.

Dimension letters: N texts, T bytes of a text, V symbols.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paradigms.quality import mauve
from paradigms.quality.diversity import Grams, rep_n
from paradigms.quality.intervals import Estimate, mean, of_set, ratio
from paradigms.quality.novelty import TrainingText, novelty_columns
from paradigms.quality.samples import distinct_n, token_entropy_nats
from paradigms.quality.sources import Source, pieces_of

LEVEL = 0.999
DRAWN_SETS = 3  # two are the reference, and one is judged as it is and spoilt
PHRASE = 8
METRICS = {
    "nats": "nats per byte under the source",
    "entropy": "token entropy, nats",
    "distinct_1": "distinct-1 of a text",
    "distinct_2": "distinct-2 of a text",
    "set_distinct_4": "distinct-4 of the set",
    "self_bleu": "self-BLEU",
    "rep_4": "rep-4",
    "mauve": "MAUVE, lost",
    "longest_match": "longest match with training / length",
    "truncated": "truncated share",
}
_SEES, _BLIND = True, False
EXPECTED: dict[str, dict[str, bool]] = {  # defect -> metric -> whether it must see it; not named: either
    "exact": dict.fromkeys(METRICS, _BLIND),
    "temperature 0.5": {
        **dict.fromkeys(("nats", "entropy", "distinct_1", "distinct_2", "set_distinct_4", "self_bleu", "mauve"), _SEES),
        "truncated": _BLIND,
    },
    "phrase": {"rep_4": _SEES, "entropy": _SEES, "truncated": _BLIND},
    "shuffled": {"nats": _SEES, "mauve": _SEES, "entropy": _BLIND, "distinct_1": _BLIND, "truncated": _BLIND},
    "memorised": {**dict.fromkeys(METRICS, _BLIND), "longest_match": _SEES},
    "truncated": {"truncated": _SEES},
}
DEFECTS = tuple(EXPECTED)


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a metric says of a defect.

    Attributes:
        difference: from the ideal.
        sees: whether its interval leaves out 0.
        expected: whether it must; None: either.
    """

    metric: str
    defect: str
    difference: Estimate
    sees: bool
    expected: bool | None

    @property
    def holds(self) -> bool:
        return self.expected is None or self.sees == self.expected


def check_size(*, texts: int, length: int) -> None:
    """Raise ValueError unless so many texts of so many bytes can show anything."""
    if texts < mauve.FEWEST_TEXTS or length < 2 * PHRASE:
        raise ValueError(
            f"--texts {texts} --length {length} is too little to see anything; give at least {mauve.FEWEST_TEXTS} "
            f"texts of {2 * PHRASE} bytes"
        )


def most_texts(source: Source, *, at_most: int) -> int:
    """Texts of a set that a source has, if that is enough to see anything."""
    return (
        at_most if source.available is None else min(at_most, max(mauve.FEWEST_TEXTS, source.available // DRAWN_SETS))
    )


def check(
    source: Source,
    *,
    texts: int = 200,
    length: int = 64,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[Look]:
    """Every metric on every defect.

    Args:
        texts: of a set; the reference has twice as many, for MAUVE.
        length: bytes of a text.
        progress: told which defect comes next.

    Raises:
        ValueError: too few texts or documents.
    """
    check_size(texts=texts, length=length)
    if source.available is not None and DRAWN_SETS * texts > source.available:
        raise ValueError(
            f"--texts {texts} --length {length} needs {DRAWN_SETS * texts} documents of {length} bytes, and "
            f"{source.name} has {source.available}; ask for fewer texts or shorter ones"
        )
    random = np.random.default_rng([seed, 2])
    training = TrainingText.of(source.training)
    reference = source.draw(2 * texts, length, random)
    ideal = measure(reference[:texts], source, training, length=length)
    exact_nats = source.ideal_nats(length)
    if exact_nats is not None:
        ideal["nats"] = Estimate(exact_nats, 0.0, texts)
    reference_NE = mauve.byte_gram_features(reference)
    drawn = source.draw(texts, length, random)
    looks = []
    for defect in DEFECTS:
        if progress is not None:
            progress(defect)
        spoilt = spoil(defect, drawn, source, length, random)
        found = measure(spoilt, source, training, length=length)
        differences = {name: minus(found[name], ideal[name]) for name in found}
        differences["mauve"] = mauve.compare(mauve.byte_gram_features(spoilt), reference_NE, seed=seed).lost
        for metric in METRICS:
            expected = EXPECTED[defect].get(metric)
            looks.append(
                Look(
                    metric=metric,
                    defect=defect,
                    difference=differences[metric],
                    sees=_leaves_out_zero(differences[metric]),
                    expected=None if (defect, metric) in source.free else expected,
                )
            )
    return looks


def measure(texts: Sequence[bytes], source: Source, training: TrainingText, *, length: int) -> dict[str, Estimate]:
    """The metrics of a set but MAUVE.

    Args:
        length: bytes that were asked of a text.
    """
    grams = Grams(texts)
    matches = [novelty_columns([training.matches(text)]) for text in texts]
    return {
        "nats": ratio([source.nats(text) for text in texts], [len(text) for text in texts]),
        "entropy": mean([token_entropy_nats(text) for text in texts]),
        "distinct_1": mean([distinct_n(text, 1) for text in texts]),
        "distinct_2": mean([distinct_n(text, 2) for text in texts]),
        "set_distinct_4": of_set(lambda chosen: grams.distinct(4, chosen), len(texts)),
        "self_bleu": of_set(grams.self_bleu, len(texts)),
        "rep_4": mean([rep_n(text) for text in texts]),
        "longest_match": mean([columns["longest_match_share"] for columns in matches]),
        "truncated": mean([float(len(text) < length) for text in texts]),
    }


def spoil(defect: str, texts: Sequence[bytes], source: Source, length: int, random: np.random.Generator) -> list[bytes]:
    """A set of as many texts with a defect: these, spoilt, or others of the source."""
    if defect == "temperature 0.5":
        return source.cold(len(texts), length, random)
    if defect == "memorised":
        return pieces_of(source.training, length, random, count=len(texts))
    if defect == "phrase":
        return [(text[:PHRASE] * length)[:length] for text in texts]
    if defect == "shuffled":
        return [random.permutation(np.frombuffer(text, np.uint8)).tobytes() for text in texts]
    if defect == "truncated":
        return [text[: length // 2] for text in texts]
    return list(texts)


def minus(found: Estimate, ideal: Estimate) -> Estimate:
    """The difference of two independent estimates."""
    if found.value is None or ideal.value is None:
        return Estimate(None, None, min(found.count, ideal.count))
    se = None if found.se is None or ideal.se is None else math.hypot(found.se, ideal.se)
    return Estimate(found.value - ideal.value, se, min(found.count, ideal.count))


def table(looks: Sequence[Look]) -> str:
    """Markdown: a row a metric, a column a defect."""
    by: Mapping[tuple[str, str], Look] = {(look.metric, look.defect): look for look in looks}
    lines = ["| difference from the ideal | " + " | ".join(DEFECTS) + " |", "|---|" + "---:|" * len(DEFECTS)]
    for metric, label in METRICS.items():
        lines.append(f"| {label} | " + " | ".join(_shown(by[metric, defect]) for defect in DEFECTS) + " |")
    return "\n".join(lines)


def _shown(look: Look) -> str:
    value, interval = look.difference.value, look.difference.interval(LEVEL)
    if value is None or interval is None:
        return "?"
    mark = "**sees**" if look.sees else "·"
    wrong = "" if look.holds else " (not as expected)"
    return f"{value:+.3f} ± {(interval[1] - interval[0]) / 2:.3f} {mark}{wrong}"


def _leaves_out_zero(estimate: Estimate) -> bool:
    interval = estimate.interval(LEVEL)
    return interval is not None and not interval[0] <= 0 <= interval[1]
