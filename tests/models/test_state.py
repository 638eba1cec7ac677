"""Going back, branches, and rows that come and go: as if what was taken back had never been."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from models.test_exactness import CONFIGS, assert_close, random_model, tokens

from paradigms.models.state import GROWTH, State

CAUSAL = [name for name, config in CONFIGS.items() if config.causal]
CHAINS = [name for name in CAUSAL if not CONFIGS[name].recurrent]


@pytest.fixture(params=CAUSAL)
def model(request):
    return random_model(CONFIGS[request.param], torch.float64)


def padded(rows: list[torch.Tensor]) -> tuple[torch.Tensor, list[int]]:
    """Rows right-aligned, and their lengths."""
    T = max(map(len, rows))
    tokens_BT = torch.zeros(len(rows), T, dtype=torch.long)
    for row, ids in enumerate(rows):
        tokens_BT[row, T - len(ids) :] = ids
    return tokens_BT, [len(ids) for ids in rows]


def read(model, rows: list[torch.Tensor], state: State | None = None) -> State:
    """A state that has seen these tokens."""
    state = state or model.new_state(len(rows), 60)
    tokens_BT, num_tokens = padded(rows)
    model(tokens_BT, state, num_tokens=num_tokens)
    return state


def assert_same_future(model, state: State, histories: list[torch.Tensor]) -> None:
    """The next tokens get the logits that the histories alone would give them."""
    assert state.lengths == [len(history) for history in histories]
    next_BT = tokens(model, len(histories), 5).flip(1)
    for step in (slice(0, 1), slice(1, 5)):
        logits = model(next_BT[:, step], state)
        for row, history in enumerate(histories):
            alone = model(torch.cat((history, next_BT[row, : step.stop]))[None])
            assert_close(logits[row], alone[0, len(history) + step.start :])


@pytest.mark.parametrize(
    ("chunks", "accepted"),
    [((7,), 0), ((7,), 4), ((1,) * 7, 1), ((1,) * 7, 7), ((3, 4), 3), ((3, 4), 4), ((1, 5, 1), 4), ((1, 5, 1), 7)],
    ids=str,
)
def test_rolled_back_is_never_having_gone_there(model, chunks, accepted):
    text = tokens(model, 1, 18)[0]
    state = read(model, [text[:11]])
    mark = state.mark()
    start = 11
    for size in chunks:
        model(text[None, start : start + size], state)
        start += size
    state.rollback(mark, [accepted])
    assert_same_future(model, state, [text[: 11 + accepted]])


def test_ragged_rows_roll_back_each_by_its_own(model):
    text = tokens(model, 3, 30)
    before, drafted, again, accepted = [4, 9, 2], [5, 3, 6], [1, 4, 2], [6, 0, 3]
    state = read(model, [text[row, :length] for row, length in enumerate(before)])
    mark = state.mark()
    ends = [a + b for a, b in zip(before, drafted, strict=True)]
    read(model, [text[row, before[row] : end] for row, end in enumerate(ends)], state)
    read(model, [text[row, end : end + again[row]] for row, end in enumerate(ends)], state)
    state.rollback(mark, accepted)
    assert_same_future(model, state, [text[row, : before[row] + accepted[row]] for row in range(3)])


def test_what_a_mark_keeps_is_counted_and_released(model):
    text = tokens(model, 2, 20)
    state = read(model, list(text[:, :8]))
    alone = state.used_bytes
    mark = state.mark()
    assert (state.used_bytes > alone) == model.config.recurrent
    read(model, list(text[:, 8:12]), state)
    state.release(mark)
    assert state.used_bytes == read(model, list(text[:, :12])).used_bytes
    assert_same_future(model, state, list(text[:, :12]))
    with pytest.raises(ValueError, match="this mark is gone"):
        state.rollback(mark, [0, 0])


def test_more_than_came_cannot_be_accepted(model):
    text = tokens(model, 1, 9)[0]
    state = read(model, [text[:5]])
    mark = state.mark()
    with pytest.raises(ValueError, match="does not lie between 0 and"):
        state.rollback(mark, [1])
    model(text[None, 5:], state)
    state.rollback(mark, [2])  # what was refused has changed nothing
    assert_same_future(model, state, [text[:7]])


@pytest.mark.parametrize("name", CHAINS)
def test_a_tree_is_read_at_once_and_a_branch_kept(name):
    """Two drafts of different lengths after one root, against each branch read by itself."""
    model = random_model(CONFIGS[name], torch.float64)
    text = tokens(model, 2, 20)
    histories = [text[0, :9], text[1, :6]]
    tree = text[:, 10:16]  # root, a, b (both after the root), c after a, d after b, e after d
    parents = [None, 0, 0, 1, 2, 4]
    depth = torch.tensor([0, 1, 1, 2, 2, 3])
    sees = torch.eye(6, dtype=torch.bool)
    for column, parent in enumerate(parents):
        if parent is not None:
            sees[column] |= sees[parent]
    state = read(model, histories)
    mark = state.mark()
    lengths = torch.tensor(state.lengths)[:, None]
    logits = model(tree, state, positions_BT=lengths + depth, among_BTT=sees)
    paths = {3: [0, 1, 3], 5: [0, 2, 4, 5]}
    for row, history in enumerate(histories):
        for leaf, path in paths.items():
            alone = model(torch.cat((history, tree[row, path]))[None])
            assert_close(logits[row, leaf], alone[0, -1])
    state.keep(mark, [paths[5], paths[3][:2]])
    kept = [torch.cat((histories[0], tree[0, paths[5]])), torch.cat((histories[1], tree[1, paths[3][:2]]))]
    assert_same_future(model, state, kept)


def test_a_recurrence_reads_no_tree():
    model = random_model(CONFIGS["hybrid"], torch.float64)
    state = read(model, [tokens(model, 1, 5)[0]])
    with pytest.raises(ValueError, match="cannot read a tree"):
        model(tokens(model, 1, 3), state, among_BTT=torch.eye(3, dtype=torch.bool))
    mark, drafts = state.mark(), tokens(model, 1, 3)
    model(drafts, state)
    with pytest.raises(ValueError, match="cannot keep a branch"):
        state.keep(mark, [[0, 2]])
    state.keep(mark, [[0, 1]])
    assert_same_future(model, state, [torch.cat((tokens(model, 1, 5)[0], drafts[0, :2]))])


def test_rows_leave_enter_and_are_replaced(model):
    text = tokens(model, 5, 20)
    state = read(model, [text[0, :9], text[1, :4], text[2, :12]])
    state.select_rows([2, 0, 0])
    state.insert(read(model, [text[3, :7]]))
    state.insert(read(model, [text[4, :3]]), at=[1])
    assert_same_future(model, state, [text[2, :12], text[4, :3], text[0, :9], text[3, :7]])


def test_a_growing_state_grows_as_it_is_filled():
    model = random_model(dataclasses.replace(CONFIGS["attention"], max_positions=3 * GROWTH), torch.float64)
    state, static = model.new_state(1, 2 * GROWTH + 5), model.new_state(1, 2 * GROWTH + 5, form="static")
    text = tokens(model, 1, 2 * GROWTH)
    per_token = model.config.state_bytes(batch_size=1, length=1, itemsize=8)
    for size, allocated in ((GROWTH, GROWTH), (1, 2 * GROWTH), (GROWTH - 1, 2 * GROWTH)):
        start = state.lengths[0]
        logits = model(text[:, start : start + size], state)
        assert state.allocated_bytes == allocated * per_token
        assert_close(logits, model(text[:, start : start + size], static))
    assert static.allocated_bytes == (2 * GROWTH + 5) * per_token


def test_a_static_state_keeps_its_tensors_and_rows():
    model = random_model(CONFIGS["hybrid"], torch.float64)
    text = tokens(model, 4, 20)
    state = model.new_state(2, 40, form="static")
    places = [tensor.data_ptr() for layer in state.layers if layer for tensor in layer.tensors()]
    read(model, [text[0, :9], text[1, :4]], state)
    state.insert(read(model, [text[2, :6]]), at=[0])
    assert_same_future(model, state, [text[2, :6], text[1, :4]])
    assert state.lengths_B.tolist() == state.lengths
    assert places == [tensor.data_ptr() for layer in state.layers if layer for tensor in layer.tensors()]
    with pytest.raises(ValueError, match="never moves its tensors"):
        state.select_rows([0])
    mark = state.mark()
    with pytest.raises(ValueError, match="fixed number of rows"):
        state.insert(read(model, [text[2, :6]]))
    state.release(mark)
