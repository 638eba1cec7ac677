"""Our attention stack as transformers' `LlamaForCausalLM`: the same function, its matrices laid out as transformers
does."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from paradigms.models.config import ModelConfig
from paradigms.models.stack import Model

_converted: WeakKeyDictionary[Model, Any] = WeakKeyDictionary()


def as_llama(model: Model) -> Any:
    """A `LlamaForCausalLM` with the model's weights, laid out as transformers does; made once a model.

    Raises:
        ValueError: the stack is not attention and feed-forward in turn, or sees the whole canvas.
    """
    llama = _converted.get(model)
    if llama is None or (llama.device, llama.dtype) != (model.device, model.dtype):
        llama = _converted[model] = _convert(model)
    return llama


def require_llama(config: ModelConfig) -> None:
    """Raise ValueError for a stack that is no Llama."""
    if config.block != "AF" or not config.causal:
        raise ValueError(
            f"model.block={config.block!r} with model.causal={config.causal} is no Llama; transformers_generate needs "
            "model.block=AF and model.causal=true"
        )


def _convert(model: Model) -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = model.config
    require_llama(config)
    attention, feed_forward = config.part("A"), config.part("F")
    llama_config = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.d_model,
        intermediate_size=feed_forward.width,
        num_hidden_layers=config.num_blocks,
        num_attention_heads=attention.num_heads,
        num_key_value_heads=attention.kv_heads,
        head_dim=attention.width(config.d_model),
        max_position_embeddings=config.max_positions,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": attention.rope_theta},
        tie_word_embeddings=config.tied_head,
        bos_token_id=None,
        eos_token_id=None,
    )
    llama = AutoModelForCausalLM.from_config(llama_config, attn_implementation="sdpa")
    llama = llama.to(device=model.device, dtype=model.dtype)
    llama.load_state_dict(_llama_weights(model), strict=True, assign=True)
    llama.tie_weights()
    return llama.eval().requires_grad_(False)


def _llama_weights(model: Model) -> dict[str, Tensor]:
    """The model's weights under Llama's names, laid out as `from_pretrained` does: [out, in] and contiguous."""
    c, ours = model.config, model.state_dict()
    attention = c.part("A")
    heads = [n * attention.width(c.d_model) for n in (attention.num_heads, attention.kv_heads, attention.kv_heads)]
    embedding = ours["embedding"].t().contiguous()
    weights = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": embedding if c.tied_head else ours["head"].t().contiguous(),
        "model.norm.weight": ours["norm"],
    }
    for i in range(c.num_blocks):
        mixing, feed_forward, block = f"layers.{2 * i}", f"layers.{2 * i + 1}", f"model.layers.{i}"
        q, k, v = ours[f"{mixing}.mixer.qkv"].t().split(heads)
        gate, up = ours[f"{feed_forward}.mixer.gate_up"].t().chunk(2)
        weights |= {
            f"{block}.input_layernorm.weight": ours[f"{mixing}.norm"],
            f"{block}.self_attn.q_proj.weight": q,
            f"{block}.self_attn.k_proj.weight": k,
            f"{block}.self_attn.v_proj.weight": v,
            f"{block}.self_attn.o_proj.weight": ours[f"{mixing}.mixer.out"].t(),
            f"{block}.post_attention_layernorm.weight": ours[f"{feed_forward}.norm"],
            f"{block}.mlp.gate_proj.weight": gate,
            f"{block}.mlp.up_proj.weight": up,
            f"{block}.mlp.down_proj.weight": ours[f"{feed_forward}.mixer.down"].t(),
        }
    return {name: weight.contiguous() for name, weight in weights.items()}
