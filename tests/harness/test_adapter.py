"""A cell as a model of lm-eval: draws, limits, and what it cannot be asked."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from harness.asking import asked, opened

from paradigms.harness.results import notes, summaries
from paradigms.weights import Zoo


def test_the_same_question_is_answered_alike_in_any_company():
    lm = opened("paradigm=ar", "workload.batch_size=4")
    how = {"max_gen_toks": 8, "do_sample": True, "temperature": 1.0}
    contexts = ["Return the", "If", "Raise a ValueError when", "Return the"]
    together = lm.generate_until(asked("generate_until", *((context, how) for context in contexts)))
    alone = [lm.generate_until(asked("generate_until", (context, how)))[0] for context in contexts]
    assert together[:3] == alone[:3]
    assert together[3] != together[0] == alone[3]  # asked again in one call, drawn again
    assert lm.generated[0].temperature == 1.0


def test_what_a_model_cannot_be_asked():
    lm = opened("paradigm=ar")
    with pytest.raises(ValueError, match=r"mine, document 1, request 0: the answer '' has no tokens"):
        lm.loglikelihood(asked("loglikelihood", ("a", " b"), ("a", "")))
    with pytest.raises(ValueError, match=r"max_gen_toks=575 leaves no room .* 575 tokens"):
        lm.generate_until(asked("generate_until", ("a", {"max_gen_toks": 575})))
    lm.cell = SimpleNamespace(model=SimpleNamespace(noise="uniform"))
    with pytest.raises(ValueError, match=r"not computed under uniform noise \(model.noise=uniform\)"):
        lm.loglikelihood(asked("loglikelihood", ("a", " b")))
    steps = opened("paradigm=diffusion_16")
    with pytest.raises(ValueError, match=r"decoder.sampler.steps=16 .*generation_kwargs.max_gen_toks=8"):
        steps.generate_until(asked("generate_until", ("a", {"max_gen_toks": 8})))


def test_a_decoder_of_its_own_rules_is_said_and_draws_are_refused():
    lm = opened("paradigm=ar")

    @dataclasses.dataclass(frozen=True)
    class Own:
        """Greedy, by a rule of its own."""

        engine = "native"
        inner: object

        def check(self, model, *, output_len):
            self.inner.check(model, output_len=output_len)

        def decode(self, model, requests, vocabulary):
            return self.inner.decode(model, requests, vocabulary)

    plain = dataclasses.replace(lm.cell.decoder, temperature=0.0)
    lm.cell = dataclasses.replace(lm.cell, decoder=Own(plain))
    lm.generate_until(asked("generate_until", ("Return", {"max_gen_toks": 3})))
    assert lm.generated[-1].temperature is None
    assert any("rules of its own" in note for note in notes(summaries([], lm.generated), num_masks=1, mask_seed=0))
    with pytest.raises(ValueError, match=r"temperature=0.5 asks for draws"):
        lm.generate_until(asked("generate_until", ("Return", {"max_gen_toks": 3, "temperature": 0.5})))


def test_no_window_is_longer_than_what_was_trained_on(monkeypatch):
    monkeypatch.setattr(Zoo, "trained_len", lambda self, wanted: 100)
    lm = opened("paradigm=ar", "measure.quality=false", "workload.prompt_len=8", "workload.output_len=8")
    assert (lm.max_positions, lm.max_length) == (100, 99)
