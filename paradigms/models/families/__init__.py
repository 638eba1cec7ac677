"""Families of other people's models that the native stack computes; see `family`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paradigms.models.config import ModelConfig
from paradigms.models.families.deepseek import DeepSeek
from paradigms.models.families.dream import Dream
from paradigms.models.families.family import Entry, Family, native_tensors, to_native, to_theirs
from paradigms.models.families.jamba import Jamba
from paradigms.models.families.llada import LLaDA
from paradigms.models.families.llama import Llama
from paradigms.models.families.mamba import Mamba
from paradigms.models.families.mamba2 import Mamba2
from paradigms.models.families.mamba_ssm import MambaSSM
from paradigms.models.families.mdlm import MDLM
from paradigms.models.families.mixtral import Mixtral
from paradigms.models.families.zamba import Zamba

FAMILIES: tuple[Family, ...] = (
    Llama(),
    Mamba2(),
    Mamba(),
    MambaSSM(),
    Jamba(),
    Zamba(),
    DeepSeek(),
    Mixtral(),
    LLaDA(),
    Dream(),
    MDLM(),
)

__all__ = ["FAMILIES", "Entry", "Family", "family_of", "family_of_native", "native_tensors", "to_native", "to_theirs"]


def family_of(config: Mapping[str, Any]) -> Family | None:
    """The family that reads a transformers config, or None."""
    return next((family for family in FAMILIES if config.get("model_type") in family.model_types), None)


def family_of_native(config: ModelConfig) -> tuple[Family, dict[str, Any]] | None:
    """A family that has this network, and its transformers config; None when transformers has no such model."""
    for family in FAMILIES:
        theirs = family.to_transformers(config)
        if theirs is not None:
            return family, theirs
    return None
