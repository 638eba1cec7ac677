"""Tiny random `transformers` models, and their logits against the native ones: whole, by token, in chunks, padded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from paradigms.models.families import family_of, family_of_native, to_native, to_theirs
from paradigms.models.stack import Model

TOLERANCE = 1e-4


def random_transformers_model(config: dict[str, Any], *, scale: float = 3.0) -> Any:
    """A model of random weights, large enough that what it says depends on what it has seen."""
    torch.manual_seed(0)
    values = dict(config)
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(values.pop("model_type"), **values))
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if (parameter.dim() == 2 and "A_log" not in name) or ".experts." in name:
                parameter.mul_(scale)
            elif name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return theirs.float().eval().requires_grad_(False)


def native_of(theirs: Any) -> Model:
    """The same function in the native stack, by its family's table."""
    family = family_of(theirs.config.to_dict())
    assert family is not None, theirs.config.model_type
    config = family.from_transformers(theirs.config.to_dict())
    native = config.build()
    native.load_state_dict(to_native(family, config, dict(theirs.state_dict())))
    return native.float().eval().requires_grad_(False)


def tokens(vocab_size: int, *shape: int) -> Tensor:
    return torch.randint(3, vocab_size, shape, generator=torch.Generator().manual_seed(1))


def check_equal_logits(theirs: Any, native: Model, *, length: int = 40, padded: bool = True) -> None:
    """Float32 logits within 1e-4 of the largest: whole, token by token, in chunks, and left-padded.

    The reference is always their full forward: their cached ones are wrong for some models. `padded` False leaves the
    padded batch out, for models whose own padding is known to be wrong.
    """
    tokens_BT = tokens(native.config.vocab_size, 3, length)
    want = theirs(tokens_BT, use_cache=False).logits
    assert want.std() > 0.05, "the logits hardly differ, so that anything would agree"
    _assert_close(native(tokens_BT), want, "whole")
    for chunks in ([1] * length, [7, 1, 13, 2, length - 23], [length - 2, 1, 1]):
        state, start, pieces = native.new_state(3, length), 0, []
        for size in chunks:
            pieces.append(native(tokens_BT[:, start : start + size], state))
            start += size
        _assert_close(torch.cat(pieces, 1), want, f"chunks {chunks}")
    if not padded:
        return
    lengths = [length, length - 13, 2]
    left_BT = torch.zeros_like(tokens_BT)
    seen_BT = torch.zeros_like(tokens_BT)
    for row, size in enumerate(lengths):
        left_BT[row, length - size :] = tokens_BT[row, :size]
        seen_BT[row, length - size :] = 1
    position_BT = (seen_BT.cumsum(-1) - 1).clamp(min=0)
    takes_positions = "position_ids" in theirs.forward.__code__.co_varnames
    options = {"position_ids": position_BT} if takes_positions else {}
    padded_want = theirs(left_BT, attention_mask=seen_BT, use_cache=False, **options).logits
    ours = native(left_BT, num_tokens=lengths)
    for row, size in enumerate(lengths):
        _assert_close(ours[row, length - size :], padded_want[row, length - size :], f"left-padded row of {size}")
        _assert_close(ours[row, length - size :], want[row, :size], f"left-padded row of {size} against alone")


def check_there_and_back(theirs: Any, native: Model) -> None:
    """The native config and weights, handed back, are the model they came from."""
    found = family_of_native(native.config)
    assert found is not None
    family, config = found
    values = dict(config)
    rebuilt = AutoModelForCausalLM.from_config(AutoConfig.for_model(values.pop("model_type"), **values)).eval()
    missing = rebuilt.load_state_dict(to_theirs(family, native.config, native.state_dict()), strict=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}
    rebuilt.tie_weights()
    tokens_BT = tokens(native.config.vocab_size, 2, 20)
    _assert_close(rebuilt(tokens_BT, use_cache=False).logits, theirs(tokens_BT, use_cache=False).logits, "back")


def _assert_close(actual: Tensor, expected: Tensor, what: str) -> None:
    error = (actual - expected).abs().max().item()
    scale = max(1.0, expected.abs().max().item())
    assert error <= TOLERANCE * scale, f"{what}: largest difference {error:.1e}, of logits up to {scale:.1f}"
