"""Any paradigm of the suite as a model of lm-evaluation-harness, so that its tasks can be asked (`lm-eval`, an extra).

    python -m paradigms.harness paradigm=ar --tasks hellaswag --limit 100

What is equal to lm-eval's own `hf` model, given the same weights: where a context ends and an answer begins (`text`),
what is cut from the left when it is too long, the windows of a rolling likelihood, stop strings. What a text interface
has no place for is kept beside lm-eval's results (`results`): which likelihoods are bounds, the standard error from
drawing masks, how many contexts were cut, forwards and tokens of what was generated.
"""
