"""Arithmetic operations of what is no matrix product, by definition and not by the kernel that computes it.

One operation is an addition, subtraction, multiplication or division of two numbers, or an elementary function of one:
exponential, logarithm, root, sigmoid, softplus, hyperbolic tangent, error function, sine, cosine, remainder, rounding.
What only compares, chooses, negates or moves counts nothing: masks, the largest of a row, the choice of experts,
clamping, gathering, padding, tables that are read (rotary positions).

tests/models/test_other_flops.py holds each against a loop over numbers that count what is done to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paradigms.models.forward_pass import ForwardPass

SILU = 2  # x sigmoid(x)
GELU = 5  # x (1 + erf(x / root(2))) / 2, the root known
GELU_TANH = 9  # x (1 + tanh(a (x + b x x x))) / 2
ROTARY = 3  # x cos + x' sin, of each number that is turned


def rms_norm(width: int, *, weighted: bool = True) -> int:
    """x / root(mean(x x) + eps) x weight: squares and their sum, mean, eps, reciprocal root, scale, weight."""
    return (2 * width - 1) + 3 + width + weighted * width


def layer_norm(width: int) -> int:
    """(x - mean(x)) / deviation(x) x weight: a mean, differences, and the norm of these."""
    return width + width + rms_norm(width)


NORMS = {"rms": rms_norm, "layer": layer_norm}


def softmax(width: int) -> int:
    """Less the largest, exponentials, their sum, a division each."""
    return 4 * width - 1


def attention_weights(queries: int, pairs: int) -> int:
    """Scale and softmax of scores, of one head."""
    return 5 * pairs - queries


def convolution(width: int, *, bias: bool) -> int:
    """silu of a causal convolution at one place of one channel."""
    return 2 * width - 1 + bias + SILU


def stored(width: int, run: ForwardPass, slots: int) -> int:
    """One head's keys, or values, to the form in which a state keeps them and back, where it is not as computed: of
    each new one its scale, a division and rounding a number; of each of the slots that are read a multiplication.
    """
    if run.kv_dtype is None or not run.has_state:
        return 0
    return run.positions * (1 + 2 * width) + slots * width


def chunked_scan(*, tokens: int, chunk_len: int, heads: int, inner: int, states: int, has_state: bool) -> int:
    """State-space duality in chunks (`ssd.ssd_scan`) of one row, beside its matrix products: within a chunk the sum of
    the decays, their differences, exponentials and the product with C B^T; to the end of a chunk a difference, its
    exponential and the product with u; the state decayed and added to; the answer of a chunk's start decayed and added.
    """
    length, chunks = chunks_of(tokens, chunk_len)
    passed = chunks - (not has_state)
    within = heads * (length - 1 + 3 * length * length)
    to_end = heads * 2 * length + length * inner
    added_to = passed if has_state else max(passed - 1, 0)  # nothing stands before the first
    passed_on = passed * heads + added_to * 2 * inner * states
    carried = heads * length + 2 * length * inner
    return chunks * within + passed * (to_end + carried) + passed_on


def chunked_products(*, tokens: int, chunk_len: int, shared: int, inner: int, states: int, has_state: bool) -> int:
    """Operations of its four matrix products: C B^T, which `shared` / `states` groups or heads make; that with u; into
    the state; out of it. Without a state, nothing comes into the first chunk and nothing leaves the last.
    """
    length, chunks = chunks_of(tokens, chunk_len)
    passed = chunks - (not has_state)
    return 2 * length * (chunks * length * (shared + inner) + passed * 2 * inner * states)


def chunked_hidden(*, tokens: int, chunk_len: int, shared: int, inner: int, states: int, has_state: bool) -> int:
    """Those of them whose results are thrown away: what comes later in a chunk, and padding of the last one."""
    length, chunks = chunks_of(tokens, chunk_len)
    full, rest = divmod(tokens, length)
    seen = full * (length * (length + 1) // 2) + rest * (rest + 1) // 2
    padding = chunks * length - tokens
    products_of_padding = 1 + has_state  # out of the state, and into it
    return 2 * (chunks * length * length - seen) * (shared + inner) + 2 * products_of_padding * padding * inner * states


def chunked_numbers(
    *, tokens: int, chunk_len: int, heads: int, shared: int, inner: int, states: int, has_state: bool
) -> int:
    """Numbers that live at its widest moment, for one row: while the weights within chunks are made, while the answers
    of the chunks' starts are, or while these are added; of a single chunk without a state, while its own are laid out.
    """
    length, chunks = chunks_of(tokens, chunk_len)
    passed = chunks - (not has_state)
    padded = chunks * length
    state = inner * states
    padding = padded * (2 * shared + heads) if padded > tokens else 0
    weights = padded * (3 * heads * length + shared // states * length)
    within = padded * 2 * heads * length
    if not passed:
        return padded * (inner + 2 * heads) + max(weights, within + 2 * padded * inner)
    moved = passed * length  # tokens that a state goes to
    starts = (2 * passed - (not has_state)) * state  # what each chunk adds, and starts from
    answers = within + padded * inner + moved * (inner + heads * states + 2 * heads) + starts + passed * state
    added = within + 2 * padded * inner + moved * (inner + 3 * heads) + starts
    return padding + padded * (inner + 2 * heads) + max(weights, answers, added)


def chunks_of(tokens: int, chunk_len: int) -> tuple[int, int]:
    """Tokens of a chunk, and chunks: as few as `chunk_len` allows, and as short as their number allows, so that at most
    one token a chunk is padding.
    """
    chunks = -(-tokens // chunk_len)
    return -(-tokens // chunks), chunks
