"""States of denoisers: what is appended block by block, written over, or only looked at, against one whole forward."""

from __future__ import annotations

import pytest
import torch

from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig

V = 30
CLOSE = {"atol": 1e-10, "rtol": 0}


def build(canvas_block=None, *, shift=False, block="AF", **more):
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=V, d_model=32, block=block, num_blocks=2, max_positions=64, causal=False, noise="absorbing",
        canvas_block=canvas_block, shift_logits=shift, attention=AttentionConfig(num_heads=2), **more,
    )  # fmt: skip
    model = config.build()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(6)
    return model.double().eval().requires_grad_(False)


def tokens(B, T):
    return torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("W", [1, 3, 4])
def test_blocks_appended_one_by_one_are_the_whole(W):
    model, x = build(W), tokens(2, 11)
    state, parts = model.new_state(2, 11), []
    for start in range(0, 11, W):
        looked = model(x[:, start : start + W], state, write="none")
        parts.append(model(x[:, start : start + W], state))
        torch.testing.assert_close(looked, parts[-1], **CLOSE)
    torch.testing.assert_close(torch.cat(parts, 1), model(x), **CLOSE)


def test_a_block_sees_itself_and_what_is_before():
    model, x = build(4), tokens(1, 12)
    other = x.clone()
    other[:, 6] = (other[:, 6] + 1) % V
    changed = (model(x) - model(other)).abs().amax((0, 2)) > 0
    assert changed.tolist() == [False] * 4 + [True] * 8


@pytest.mark.parametrize("W", [3, 4])
def test_several_blocks_at_once_behind_ragged_rows(W):
    """Rows stand at different blocks, and bring different numbers of tokens."""
    model = build(W)
    lengths, more = (2 * W, 0, W), (5, W + 2, 1)
    rows = [tokens(1, length + new)[0] for length, new in zip(lengths, more, strict=True)]
    state = model.new_state(3, 40)
    T = max(lengths)
    first = torch.zeros(3, T, dtype=torch.long)
    for b, length in enumerate(lengths):
        first[b, T - length :] = rows[b][:length]
    model(first, state, num_tokens=list(lengths))
    T = max(more)
    second = torch.zeros(3, T, dtype=torch.long)
    for b, new in enumerate(more):
        second[b, T - new :] = rows[b][-new:]
    logits = model(second, state, num_tokens=list(more), write="none")
    for b, new in enumerate(more):
        torch.testing.assert_close(logits[b, T - new :], model(rows[b][None])[0, -new:], **CLOSE)
    assert state.lengths == list(lengths)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_canvas_written_over_is_as_if_it_had_been_so(ragged, as_tensor):
    """Exact where everything is written over: keys and values of one layer depend on the layer before."""
    model, T = build(), 9
    lengths = [9, 7] if ragged else [9, 9]
    before, after = tokens(2, T), (tokens(2, T) + 3) % V
    state = model.new_state(2, T)
    model(before, state, num_tokens=lengths)
    over = torch.arange(T) - torch.tensor([[T - length] for length in lengths]) if as_tensor else [0, 0]
    found = model(after, state, num_tokens=lengths, write="overwrite", over=over)
    for b, length in enumerate(lengths):
        torch.testing.assert_close(found[b, T - length :], model(after[b : b + 1, T - length :])[0], **CLOSE)
    assert state.lengths == lengths


@pytest.mark.parametrize("over", [[2, 2], [1, 4], "tensor"])
def test_a_window_written_over_reads_the_rest_from_the_state(over):
    """One layer of attention reads keys of the embeddings alone, so that even a part written over is exact."""
    model, T = _one_layer(), 8
    before = tokens(2, T)
    state = model.new_state(2, T)
    model(before, state)
    new = (tokens(2, 3) + 5) % V
    slots = torch.tensor([[0, 3, 6], [1, 2, 7]]) if over == "tensor" else torch.tensor(over)[:, None] + torch.arange(3)
    found = model(new, state, write="overwrite", over=slots if over == "tensor" else over)
    whole = before.scatter(1, slots, new)
    torch.testing.assert_close(found, model(whole).gather(1, slots[..., None].expand(-1, -1, V)), **CLOSE)
    again = model(new, state, write="overwrite", over=slots)
    torch.testing.assert_close(again, found, **CLOSE)


def _one_layer():
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=V, d_model=32, block="A", num_blocks=1, causal=False, noise="absorbing",
        attention=AttentionConfig(num_heads=2),
    )  # fmt: skip
    return config.build().double().eval().requires_grad_(False)


def test_looking_changes_nothing_that_is_seen():
    model, x = build(4), tokens(2, 8)
    state = model.new_state(2, 16)
    model(x[:, :4], state)
    expected = model(x[:, 4:], state, write="none")
    model((x[:, 4:] + 1) % V, state, write="none")
    torch.testing.assert_close(model(x[:, 4:], state, write="none"), expected, **CLOSE)
    assert state.lengths == [4, 4]


def test_copied_rows_go_their_own_way():
    model, x = build(4), tokens(3, 8)
    state = model.new_state(3, 16)
    model(x[:, :4], state)
    some = state.rows([2, 0])
    found = model(x[[2, 0], 4:], some)
    assert (state.lengths, some.lengths) == ([4, 4, 4], [8, 8])
    torch.testing.assert_close(found, model(x[:, 4:], state)[[2, 0]], **CLOSE)


def test_wrong_slots_are_refused():
    model = build()
    state = model.new_state(1, 8)
    model(tokens(1, 6), state)
    with pytest.raises(ValueError, match="slots 5 to 6 are not among the 6"):
        model(tokens(1, 2), state, write="overwrite", over=[5])
    with pytest.raises(ValueError, match="give both, or neither"):
        model(tokens(1, 2), state, write="overwrite")
    with pytest.raises(ValueError, match="needs a state"):
        model(tokens(1, 2), write="overwrite", over=[0])
