"""A model as `transformers` has it: the same function, its weights laid out as the library does.

A native network is handed over by its family's table of names (`paradigms.models.families`); a model that is computed
by the library anyway is taken as it is.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch

from paradigms.models.config import ModelConfig
from paradigms.models.families import family_of_native, to_theirs
from paradigms.models.network import NetworkConfig
from paradigms.models.transformers_model import TransformersModel, keep_wide

_converted: WeakKeyDictionary[torch.nn.Module, Any] = WeakKeyDictionary()


def as_theirs(model: Any) -> Any:
    """A causal language model of `transformers` with the model's weights; made once a model.

    Raises:
        ValueError: no model of the library is this network.
    """
    if isinstance(model, TransformersModel):
        return model.theirs
    theirs = _converted.get(model)
    if theirs is None or (theirs.device, theirs.dtype) != (model.device, model.dtype):
        theirs = _converted[model] = _convert(model)
    return theirs


def require_theirs(config: NetworkConfig) -> None:
    """Raise ValueError for a network that the library does not have, or that it does not decode left to right."""
    if not isinstance(config, ModelConfig) and not config.causal:
        raise ValueError(
            f"decoder=transformers_generate writes left to right, and this model undoes noise on a canvas "
            f"(model.noise={config.noise}); use decoder=canvas_generate, or decoder=uniform_diffusion"
        )
    if isinstance(config, ModelConfig) and family_of_native(config) is None:
        raise ValueError(
            f"no model of transformers computes this network (model.block={config.block}, "
            f"model.causal={config.causal}); transformers_generate needs one that the library has too, as "
            "model=transformer or model=mamba2"
        )


def _convert(model: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config: ModelConfig = model.config
    require_theirs(config)
    found = family_of_native(config)
    assert found is not None
    family, values = found
    values = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, **values}
    model_type = values.pop("model_type")
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **values), dtype=model.dtype)
    tensors = to_theirs(family, config, model.state_dict())
    result = theirs.load_state_dict(tensors, strict=False, assign=True)
    tied = {"lm_head.weight", *theirs.all_tied_weights_keys} if config.tied_head else {*theirs.all_tied_weights_keys}
    assert not result.unexpected_keys and set(result.missing_keys) <= tied, result
    theirs.tie_weights()
    keep_wide(theirs)
    theirs.generation_config = GenerationConfig()  # no hidden end of text or top-k
    return theirs.to(model.device).eval().requires_grad_(False)
