"""Samplers: forwards as derived for each loop, shares over blocks, times, thresholds by hand, and what is refused."""

from __future__ import annotations

from functools import cache
from math import comb
from types import SimpleNamespace

import pytest
import torch
from decoding.exact_denoiser import SEEDS, Independent, close, forwards, sample
from hypothesis import given
from hypothesis import strategies as some

from paradigms.decoding import draws
from paradigms.decoding.diffusion.contract import Step
from paradigms.decoding.diffusion.decoder import MaskedDiffusion
from paradigms.decoding.diffusion.guess import Guess
from paradigms.decoding.diffusion.samplers.ancestral import Ancestral
from paradigms.decoding.diffusion.samplers.entropy import Entropy
from paradigms.decoding.diffusion.samplers.factor import Factor
from paradigms.decoding.diffusion.samplers.first_hitting import FirstHitting
from paradigms.decoding.diffusion.samplers.low_confidence import LowConfidence
from paradigms.decoding.diffusion.samplers.margin import Margin
from paradigms.decoding.diffusion.samplers.random import Random
from paradigms.decoding.diffusion.samplers.ranking import highest, one_highest, rank
from paradigms.decoding.diffusion.samplers.remasking import Remasking
from paradigms.decoding.diffusion.samplers.threshold import Threshold
from paradigms.decoding.diffusion.samplers.top1 import Top1
from paradigms.decoding.diffusion.schedule import num_steps, share_of_block, steps_of_block

# ---------------------------------------------------------------- forwards

BITS = Independent([0.85, 0.15], length=8)


@pytest.mark.parametrize(("steps", "length"), [(20, 12), (12, 12), (6, 12), (64, 64)])
def test_ancestral_forwards(steps, length):
    """With reuse the bins that are not empty; without it up to the last of them. Alone as in a batch."""
    model = Independent([0.5, 0.5], length)
    number = min(SEEDS, 24_000 // length)
    done_N, deciding_N = forwards(Ancestral(steps=steps), model, number)
    assert torch.equal(done_N, deciding_N), "every forward decides something"
    assert close(done_N, steps * (1 - (1 - 1 / steps) ** length))
    until_N, changes_N = forwards(Ancestral(steps=steps, reuse=False), model, number)
    assert torch.equal(changes_N, deciding_N)
    assert close(until_N, steps - sum((k / steps) ** length for k in range(1, steps)))
    for seed in range(3):
        for reuse, expected_N in ((True, done_N), (False, until_N)):
            before = model.forwards
            sample(MaskedDiffusion(sampler=Ancestral(steps=steps, reuse=reuse)), model, 1, first_seed=seed)
            assert model.forwards - before == expected_N[seed]


def test_ancestral_at_1024_steps_for_1024_positions():
    """1024 (1 − (1 − 1/1024)^1024) = 647 forwards."""
    done_N, _ = forwards(Ancestral(), Independent([0.5, 0.5], 1024), number=4)
    assert abs(1024 * (1 - (1 - 1 / 1024) ** 1024) - 647.5) < 0.05
    assert abs(float(done_N.mean()) - 647.5) < 15  # 3 standard errors: it varies by sqrt(1024 (1/e − 2/e²)) = 10


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (FirstHitting(), 8),
        (Random(), 8),
        (Random(steps=3), 3),
        (Random(steps="L/4"), 2),
        (LowConfidence(steps=5), 5),
        (Top1(steps=5), 5),
        (Margin(steps=5), 5),
        (Entropy(steps=5, choice_temperature=1.0), 5),
        (Threshold(threshold=1e-6), 1),
        (Threshold(threshold=1.0), 8),
        (Factor(factor=9.0), 1),
        (Factor(factor=1e-6), 8),
        (Remasking(steps=5, eta=0.5), 5),
        (Remasking(steps=20, schedule="rescale", eta=1.0), 20),
        (Remasking(steps=20, schedule="confidence", eta=None), 20),
        (Remasking(steps=20, schedule="loop", eta=0.3, t_on=0.6, t_off=0.2, alpha_on=0.7), 20),
    ],
    ids=str,
)
def test_forwards_that_are_fixed(sampler, expected):
    before = BITS.forwards
    steps_N, _ = forwards(sampler, BITS, number=50)
    assert bool((steps_N == expected).all())
    assert BITS.forwards - before == expected


def expected_forwards(decided, length):
    """Of a loop over independent bits that decides `decided(n, zeros)` of n masks where `zeros` of them draw a 0."""

    @cache
    def left(n):
        if n == 0:
            return 0.0
        weights = [comb(n, zeros) * 0.85**zeros * 0.15 ** (n - zeros) for zeros in range(n + 1)]
        return 1 + sum(weight * left(n - decided(n, zeros)) for zeros, weight in enumerate(weights))

    return left(length)


@pytest.mark.parametrize(
    ("sampler", "decided"),
    [
        (Threshold(threshold=0.5), lambda n, zeros: max(zeros, 1)),  # all 0s, or one 1
        (Threshold(threshold=0.1), lambda n, zeros: n),
        (Factor(factor=1.0), lambda n, zeros: max(min(zeros, 5), 1)),  # (n + 1) 0.15 < 1 up to n = 5
        (Factor(factor=0.5), lambda n, zeros: max(min(zeros, 2), 1)),  # (n + 1) 0.15 < 0.5 up to n = 2
    ],
    ids=lambda value: type(value).__name__ if callable(value) else str(value),
)
def test_forwards_that_depend_on_what_is_drawn(sampler, decided):
    """By recursion over the number of masks."""
    assert sampler.depends_on_values
    steps_N, deciding_N = forwards(sampler, BITS)
    assert torch.equal(steps_N, deciding_N) and steps_N.min() >= 1 and steps_N.max() <= 8
    expected = expected_forwards(decided, 8)
    assert float(steps_N.mean()) == expected if expected == 1 else close(steps_N, expected)


# ---------------------------------------------------------------- shares


@given(
    steps=some.one_of(some.integers(1, 40), some.sampled_from(["L", "L/2", "L/3", "L/7"])),
    blocks=some.lists(some.integers(0, 9), min_size=1, max_size=8).filter(any),
)
def test_shares_add_up(steps, blocks):
    """Over blocks of any lengths: every position once, at least one a step, even shares within a block, K in all."""
    total, before, taken = sum(blocks), 0, 0
    for opened in blocks:
        shares = [share_of_block(steps, before, opened, total, index) for index in range(max(60, opened))]
        used = [share for share in shares if share]
        assert sum(shares) == opened and shares[: len(used)] == used, "no empty step before the last one"
        assert not used or max(used) - min(used) <= 1
        assert len(used) == min(opened, steps_of_block(steps, before, opened, total))
        before, taken = before + opened, taken + len(used)
    whole = min(num_steps(steps, total), total)
    assert whole <= taken <= whole + sum(map(bool, blocks))
    if len(set(blocks)) == 1 and whole % len(blocks) == 0:
        assert taken == whole


@pytest.mark.parametrize(
    ("sampler", "block_len", "expected"),
    [
        (Random(steps=4), 4, [2, 2, 2, 2]),
        (Random(steps=3), 4, [4, 2, 2]),
        (FirstHitting(), 4, [1] * 8),
        (LowConfidence(steps="L/2"), 2, [2, 2, 2, 2]),
        (Threshold(threshold=1e-6), 2, [2, 2, 2, 2]),
    ],
    ids=str,
)
def test_blocks_are_decided_one_after_another(sampler, block_len, expected):
    samples = sample(MaskedDiffusion(sampler=sampler, block_len=block_len), BITS, 20)
    counts = samples.decided_SNL.sum(-1)
    assert bool((counts == torch.tensor(expected)[:, None]).all())
    for row in range(20):
        order = [position // block_len for step in samples.decided_SNL[:, row] for position in step.nonzero()[:, 0]]
        assert order == sorted(order)


# ---------------------------------------------------------------- choices by hand


def step_of(masked, seeds=(0,), index=0, opened=None):
    masked_BW = torch.tensor(masked)
    full = [masked_BW.shape[1]] * len(masked_BW)
    return Step(
        seeds=list(seeds), position_BW=torch.arange(masked_BW.shape[1]).expand_as(masked_BW), masked_BW=masked_BW,
        open_BW=torch.ones_like(masked_BW), index=index, draw=index, opened=opened or full, before=[0] * len(full),
        total=opened or full,
    )  # fmt: skip


def guess_of(probabilities, step, decoder=None, confidence="before"):
    logits = torch.tensor(probabilities, dtype=torch.float64).log()
    return Guess(logits, step.masked_BW, step, decoder or MaskedDiffusion(temperature=0), confidence=confidence)


def test_rankings_by_hand():
    """The same three distributions, ranked four ways; the position that is not masked is never chosen."""
    step = step_of([[True, False, True, True]], opened=[3])
    guess = guess_of([[0.48, 0.47, 0.03, 0.02], [0.46, 0.18, 0.18, 0.18], [0.45, 0.35, 0.1, 0.1]], step)
    for sampler, best in ((Top1(), 0), (Margin(), 2), (Entropy(), 0), (LowConfidence(), 0)):
        assert sampler.choose(step, guess).nonzero().tolist() == [[0, best]]
    assert Margin(steps=1).choose(step, guess).nonzero()[:, 1].tolist() == [0, 2, 3]


def test_ties_go_to_the_left():
    score_BW, masked_BW = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0]]), torch.tensor([[True, False, True, True, True]])
    assert rank(score_BW, masked_BW).tolist() == [[3, 4, 0, 2, 1]]
    assert highest(score_BW, masked_BW, [2]).tolist() == [[False, False, True, False, True]]
    assert one_highest(score_BW, masked_BW).tolist() == [[False, False, True, False, False]]
    assert not highest(score_BW, torch.zeros_like(masked_BW), [1]).any()


@pytest.mark.parametrize(("confidence", "best"), [("before", 0), ("after", 1)])
@pytest.mark.parametrize("sampler", [Top1(), Margin(), Entropy()], ids=str)
def test_confidence_before_and_after_top_k(sampler, confidence, best):
    """0.5 against 0.45 as the model has it; 0.5/0.95 against 0.45/0.75 of the two most probable tokens."""
    step = step_of([[True, True]])
    guess = guess_of([[0.5, 0.45, 0.05, 0.0], [0.45, 0.1, 0.3, 0.15]], step, MaskedDiffusion(top_k=2), confidence)
    if isinstance(sampler, Margin):
        best = 1  # 0.05 against 0.15, too
    assert sampler.choose(step, guess).nonzero().tolist() == [[0, best]]


@pytest.mark.parametrize("sampler", [Top1(), Margin(), Entropy(), LowConfidence(), Threshold(threshold=0.5)], ids=str)
def test_greedy_draws_do_not_make_all_positions_sure(sampler):
    """The second of two positions is the surer one, before as after temperature 0."""
    step = step_of([[True, True]])
    for confidence in ("before", "after"):
        guess = guess_of([[0.4, 0.3, 0.3], [0.2, 0.7, 0.1]], step, confidence=confidence)
        assert sampler.choose(step, guess).nonzero().tolist() == [[0, 1]]
        assert guess.tokens_BW.tolist() == [[0, 1]]


def test_choice_temperature_draws_in_proportion():
    """One of three positions, exp(score / c) each: against its formula over many seeds."""
    number, c = 20_000, 0.5
    step = step_of([[True] * 3] * number, seeds=range(number))
    guess = guess_of([[0.9, 0.1], [0.6, 0.4], [0.5, 0.5]] * number, step)
    chosen = Top1(choice_temperature=c).choose(step, guess).double().mean(0)
    expected = (torch.tensor([0.9, 0.6, 0.5], dtype=torch.float64) / c).softmax(-1)
    assert bool(((chosen - expected).abs() < 4 * (expected * (1 - expected) / number).sqrt()).all())


def test_samplers_that_choose_first_look_at_nothing_else():
    """Random, first-hitting and ancestral ask for what they decide, and rank without drawing tokens elsewhere."""
    asked = []
    plain = BITS.logits_where

    def watch(tokens_BT, wanted_BT, **more):
        asked.append(int(wanted_BT.sum()))
        return plain(tokens_BT, wanted_BT, **more)

    BITS.logits_where = watch  # type: ignore[method-assign]
    try:
        for sampler in (Random(), FirstHitting(), Ancestral(steps=1 << 20)):
            asked.clear()
            sample(MaskedDiffusion(sampler=sampler), BITS, 1)
            assert asked == [1] * 8
    finally:
        del BITS.logits_where
    for sampler in (Top1(), Margin(), Entropy()):
        step = step_of([[True] * 4])
        guess = guess_of([[0.5, 0.3, 0.2]] * 4, step)
        sampler.choose(step, guess)
        assert "tokens_BW" not in vars(guess)


# What is written hardly tells how doubt is shared out: that takes 10^5 samples. So it is looked at where it is.


def test_doubted_tokens_are_given_up_in_proportion():
    """exp(−ψ) of each, normalised, times σ_max = 1: against its formula over many seeds; masks are not given up."""
    number, psi = 20_000, [0.95, 0.05, 0.5]
    step = step_of([[False, False, False, True]] * number, seeds=range(number), index=1)
    step.drawn_BW = torch.tensor([[*psi, 0.0]] * number, dtype=torch.float64)
    sampler = Remasking(steps=4, schedule="confidence", eta=None)
    given_up = sampler.remask(step, guess_of([[0.5, 0.5]] * number, step)).double().mean(0)
    expected = torch.cat([(-torch.tensor(psi, dtype=torch.float64)).softmax(-1), torch.zeros(1)])
    assert bool(((given_up - expected).abs() <= 4 * (expected * (1 - expected) / number).sqrt()).all())


def test_remasking_by_confidence_is_told_how_probable_each_token_was_when_drawn(monkeypatch):
    own, plain, told = torch.zeros(20, 8, dtype=torch.float64), Remasking.remask, []

    def remask(self, step, guess):
        decided_BW = step.open_BW & ~step.masked_BW
        torch.testing.assert_close(step.drawn_BW[decided_BW], own[decided_BW])
        told.extend(own[decided_BW].tolist())
        own[guess.wanted_BW] = torch.tensor([0.85, 0.15], dtype=torch.float64)[guess.tokens_BW[guess.wanted_BW]]
        return plain(self, step, guess)

    monkeypatch.setattr(Remasking, "remask", remask)
    sample(MaskedDiffusion(sampler=Remasking(steps=12, schedule="confidence", eta=None)), BITS, 20)
    assert set(told) == {0.85, 0.15}


# ---------------------------------------------------------------- times


def test_first_hitting_times():
    """They fall, and the first is distributed as u^(1/L): mean L/(L + 1)."""
    number, length = 4000, 6
    masked = torch.ones(number, length, dtype=torch.bool)
    times = []
    for index in range(length):
        step = step_of(masked.tolist(), seeds=range(number), index=index)
        times.append(FirstHitting().times(step))
        masked &= ~FirstHitting().chosen_before(step)
    falling = torch.stack(times)
    assert bool((falling[1:] < falling[:-1]).all())
    expected = torch.arange(length, 0, -1, dtype=torch.float64) / (length + 1)  # order statistics
    spread = (expected * (1 - expected) / (length + 2)).sqrt()
    assert bool(((falling.mean(1) - expected).abs() < 4 * spread / number**0.5).all())


@pytest.mark.parametrize("reuse", [True, False])
def test_ancestral_reads_at_the_time_of_its_step(reuse):
    """The time at the beginning of the bin, which is the share of masks that is expected there."""
    sampler = Ancestral(steps=10, reuse=reuse)
    step = step_of([[True] * 5] * 50, seeds=range(50))
    position_times = draws.uniform(step.seeds, step.position_BW, 0, "order")
    chosen, time_B = sampler.chosen_before(step), sampler.times(step)
    assert chosen is not None
    for row in range(50):
        decided = position_times[row][chosen[row]]
        assert bool((decided <= time_B[row]).all()) and bool((decided > time_B[row] - 0.1 - 1e-9).all())
        others = position_times[row][~chosen[row]]
        assert bool((others < time_B[row] - 0.1 + 1e-9).all())
    assert bool((time_B == 1).all()) is not reuse


def test_remasking_times_are_expected_shares():
    loop = Remasking(steps=5, schedule="loop", eta=0.2, t_on=0.6, t_off=0.25, alpha_on=0.8)
    for sampler, expected in ((loop, [1, 0.6, 0.2, 0.2, 0.16]), (Remasking(steps=5), [1, 0.8, 0.6, 0.4, 0.2])):
        times = [float(sampler.times(step_of([[True] * 4], index=index))) for index in range(5)]
        assert times == pytest.approx(expected)


class Told(Independent):
    """Reads the time, and remembers it."""

    config = SimpleNamespace(noise="absorbing", reads_time=True)

    def logits_where(self, tokens_BT, wanted_BT, *, num_tokens=None, time_B):
        self.times.append(time_B.tolist())
        return super().logits_where(tokens_BT, wanted_BT)


@pytest.mark.parametrize(
    ("decoder", "expected"),
    [
        (MaskedDiffusion(sampler=Random(steps=4)), [1, 0.75, 0.5, 0.25]),
        (MaskedDiffusion(sampler=Entropy(steps=4), block_len=4), [1, 0.5, 1, 0.5]),
        (MaskedDiffusion(sampler=Threshold(threshold=1.0), block_len=2), [1, 0.5] * 4),
        (MaskedDiffusion(sampler=Ancestral(steps=4, reuse=False)), [1, 0.75, 0.5, 0.25]),
        (MaskedDiffusion(sampler=Remasking(steps=5)), [1, 0.8, 0.6, 0.4, 0.2]),
        (MaskedDiffusion(sampler=FirstHitting()), None),
    ],
    ids=str,
)
def test_the_model_is_told_the_samplers_time_or_the_share_of_masks_in_the_block(decoder, expected):
    model = Told([0.5, 0.5], length=8)
    model.times = []
    sample(decoder, model, 1)
    if expected is None:
        own = draws.uniform([0], torch.arange(8), 0, "order")[0]
        expected = own.sort(descending=True).values.tolist()
    assert [time for (time,) in model.times] == pytest.approx(expected)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Random(steps="half"), ["steps='half'", "L/n"]),
        (lambda: Ancestral(steps=0), ["steps=0"]),
        (lambda: Random(steps=32).check(canvas_len=16, num_blocks=1), ["steps=32", "output_len=16"]),
        (lambda: Random(steps=3).check(canvas_len=16, num_blocks=4), ["steps=3", "4 blocks", "block_len"]),
        (lambda: Ancestral(steps=3).check(canvas_len=16, num_blocks=4), ["steps=3", "4 blocks"]),
        (lambda: Remasking(steps="L/8").check(canvas_len=16, num_blocks=4), ["steps=L/8", "4 blocks"]),
        (lambda: Entropy(choice_temperature=0), ["choice_temperature=0", "null"]),
        (lambda: Ancestral(draws="bfloat16"), ["draws='bfloat16'", "float64", "float32"]),
        (lambda: Ancestral(draws="float32"), ["reuse=false"]),
        (lambda: Threshold(threshold=0), ["threshold=0", "(0, 1]"]),
        (lambda: Threshold(threshold=1.1), ["threshold=1.1"]),
        (lambda: Factor(factor=0), ["factor=0"]),
        (lambda: Remasking(schedule="linear"), ["schedule='linear'", "cap, rescale, confidence, loop"]),
        (lambda: Remasking(eta=1.5), ["eta=1.5", "[0, 1]"]),
        (lambda: Remasking(eta=None), ["eta=None"]),
        (lambda: Remasking(schedule="confidence"), ["eta=0.02", "no effect"]),
        (lambda: Remasking(t_on=0.5), ["t_on", "schedule=cap"]),
        (lambda: Remasking(schedule="loop"), ["needs t_on", "0.55"]),
        (lambda: Remasking(schedule="loop", t_on=0.2, t_off=0.5, alpha_on=0.9), ["t_on=0.2", "t_on > t_off"]),
    ],
)  # fmt: skip
def test_impossible_samplers_say_why(make, words):
    with pytest.raises(ValueError) as error:
        make()
    for word in words:
        assert word in str(error.value)
