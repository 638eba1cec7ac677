"""`python -m paradigms.metric_check`: which metric sees which defect, on texts whose faults are known.

Without overrides the texts are those of a Markov chain, whose likelihood is exact; with them they are the held-out text
of a corpus: `python -m paradigms.metric_check --length 96 corpus=stdlib_docs`. The table has for each metric the
difference from the ideal, with its interval; `quality.defects` says what was expected before.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from paradigms.build import build
from paradigms.cli import compose, exit_code, explain
from paradigms.data.tasks.task import Task
from paradigms.quality import defects
from paradigms.quality.sources import Chain, HeldOut, Source
from paradigms.weights import load_corpus

FAILED = 1
TEXTS = 200


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 0 when all is as expected, 1 when it is not."""
    parser = argparse.ArgumentParser(
        prog="python -m paradigms.metric_check", description=(__doc__ or "").partition(": ")[2].partition("\n")[0]
    )
    parser.add_argument("--texts", type=int, help=f"of a set (default {TEXTS}, or what held-out documents allow)")
    parser.add_argument("--length", type=int, default=64, help="bytes of a text (default 64)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("overrides", nargs="*", help="hydra overrides that name a corpus, such as corpus=stdlib_docs")
    options = parser.parse_intermixed_args(arguments)

    def run() -> int:
        texts = TEXTS if options.texts is None else options.texts
        defects.check_size(texts=texts, length=options.length)
        if options.seed < 0:
            raise ValueError(f"--seed {options.seed} must be at least 0")
        source = _source(options.overrides, texts=texts, length=options.length, seed=options.seed)
        if options.texts is None:
            texts = defects.most_texts(source, at_most=texts)
        looks = defects.check(source, texts=texts, length=options.length, seed=options.seed, progress=_say)
        wrong = [look for look in looks if not look.holds]
        promised = sum(look.expected is not None for look in looks)
        print(f"{source.name}, {texts} texts of {options.length} bytes a set; intervals of {defects.LEVEL:.1%}\n")
        print(defects.table(looks))
        print(f"\n{promised - len(wrong)} of {promised} expectations hold; {len(looks) - promised} looks have none")
        return FAILED if wrong else 0

    return exit_code(run)


def _source(overrides: Sequence[str], *, texts: int, length: int, seed: int) -> Source:
    if not overrides:
        return Chain.of(seed=seed, documents=2 * texts, length=max(400, 2 * length))
    try:
        config = compose(overrides)
    except Exception as error:
        raise ValueError(explain(error)) from error
    corpus = build(config["corpus"], "corpus")
    if isinstance(corpus, Task):
        raise ValueError(f"corpus={corpus.name} is a task and has no training text; choose one of text: stdlib_docs")
    return HeldOut.of(load_corpus(corpus), length=length, seed=seed)


def _say(defect: str) -> None:
    print(f"defect: {defect}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
