"""Rotary positions of `transformers` configs, from and to ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paradigms.models.rotary import RopeScaling

_NAMES = {  # theirs -> ours, by kind
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "original_max_position_embeddings": "original_max_positions",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
    },
    "yarn": {
        "factor": "factor",
        "original_max_position_embeddings": "original_max_positions",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "attention_factor": "attention_factor",
    },
}


def rope_from(rope: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Base of the frequencies and their scaling, of `rope_parameters`.

    Raises:
        ValueError: a kind, or a setting of one, that the native stack does not compute.
    """
    values = {name: value for name, value in rope.items() if value is not None}
    theta, kind = values.pop("rope_theta"), values.pop("rope_type", "default")
    values.pop("type", None)  # the old name of rope_type
    for name, computed in (("partial_rotary_factor", 1.0), ("truncate", True)):
        if values.pop(name, computed) != computed:
            raise ValueError(f"{name}={rope[name]} is not computed by the native stack; it has {computed}")
    mscale, all_dim = values.pop("mscale", None), values.pop("mscale_all_dim", None)
    if kind == "default":
        return theta, None
    if kind not in _NAMES:
        raise ValueError(f"rope_type={kind!r} is not computed by the native stack; it has {', '.join(_NAMES)}")
    if mscale and all_dim and "attention_factor" not in values:  # DeepSeek's form of the factor
        values["attention_factor"] = _grown(values["factor"], mscale) / _grown(values["factor"], all_dim)
    if unknown := sorted(values.keys() - _NAMES[kind].keys()):
        raise ValueError(f"rope_type={kind!r} with {', '.join(unknown)} is not computed by the native stack")
    return theta, RopeScaling(kind=kind, **{_NAMES[kind][name]: value for name, value in values.items()})


def rope_to(theta: float, scaling: RopeScaling | None) -> dict[str, Any]:
    """`rope_parameters` of ours."""
    if scaling is None:
        return {"rope_type": "default", "rope_theta": theta}
    given = {theirs: getattr(scaling, ours) for theirs, ours in _NAMES[scaling.kind].items()}
    given = {name: value for name, value in given.items() if value is not None}
    return {"rope_type": scaling.kind, "rope_theta": theta, **given}


def _grown(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0
