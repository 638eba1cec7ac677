"""All blocks in one forward over noisy and clean text, against a loop over the blocks."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from test_canvas_state import CLOSE, V, build, tokens

from paradigms.models.block_diffusion import block_logits_where

MASK = V - 1


def texts(B, T):
    clean = tokens(B, T) % MASK
    masked = torch.rand(B, T, generator=torch.Generator().manual_seed(2)) < 0.5
    masked[:, 0] = False
    return clean.masked_fill(masked, MASK), clean, masked


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("W", [1, 3, 4, 20])
def test_all_blocks_at_once_are_the_loop_over_blocks(W, shift):
    model, T = build(W, shift=shift), 11  # no multiple of 3, 4 or 20
    noisy, clean, masked = texts(3, T)
    parts = []
    for start in range(0, T, W):
        seen = torch.cat((clean[:, :start], noisy[:, start : start + W]), 1)
        parts.append(model(seen)[:, start:])
    everywhere = torch.ones_like(masked)
    everywhere[:, 0] = not shift
    loop = torch.cat(parts, 1)
    torch.testing.assert_close(block_logits_where(model, noisy, clean, everywhere), loop[everywhere], **CLOSE)
    torch.testing.assert_close(block_logits_where(model, noisy, clean, masked), loop[masked], **CLOSE)
    assert (loop - model(noisy))[masked].abs().amax() > 1e-3 or W == 20, "clean blocks before make a difference"


def test_a_shifted_block_of_one_is_the_autoregressive_model_of_the_same_weights():
    denoiser = build(1, shift=True)
    causal = dataclasses.replace(denoiser.config, causal=True, noise=None, canvas_block=None, shift_logits=False)
    autoregressive = causal.build().double()
    autoregressive.load_state_dict(denoiser.state_dict())
    noisy, clean, _ = texts(2, 11)
    scored = torch.ones_like(clean, dtype=torch.bool)
    scored[:, 0] = False
    found = block_logits_where(denoiser, noisy, clean, scored)
    torch.testing.assert_close(found, autoregressive(clean[:, :-1]).flatten(0, 1), **CLOSE)


def test_a_noisy_block_sees_no_noise_of_others_and_no_clean_token_of_its_own():
    """Without gradients of the loss through what must not be seen: tokens are changed, and logits looked at."""
    model = build(4)
    noisy, clean, _ = texts(1, 12)
    wanted = torch.zeros(1, 12, dtype=torch.bool)
    wanted[:, 4:8] = True  # block 1
    base = block_logits_where(model, noisy, clean, wanted)

    def changes(half, column):
        other = half.clone()
        other[:, column] = (other[:, column] + 1) % MASK
        pair = (other, clean) if half is noisy else (noisy, other)
        return bool((block_logits_where(model, *pair, wanted) - base).abs().amax() > 1e-9)

    assert [changes(noisy, column) for column in (1, 5, 9)] == [False, True, False]
    assert [changes(clean, column) for column in (1, 5, 9)] == [True, False, False]


def test_a_text_may_be_as_long_as_the_model_is_built_for_and_no_longer():
    model = build(4)
    T = model.config.max_positions
    assert block_logits_where(model, *texts(1, T)).shape[1] == V
    with pytest.raises(ValueError, match=f"{T + 1} positions asked for, {T} are available"):
        block_logits_where(model, *texts(1, T + 1))


def test_a_model_without_blocks_is_refused():
    with pytest.raises(ValueError, match=r"needs model\.canvas_block \(it is None\)"):
        block_logits_where(build(), *texts(1, 5))
