"""`transformers` generate as a peer of the native autoregressive decoder, on the very same weights.

It runs whatever the library has: native networks of a known family, and any model that the library computes anyway.
Peers run in their best documented setting: a growing cache (`DynamicCache`), SDPA attention, logits of the last column
only, and no logits processor but the one that keeps a mask token out, as the native decoder does. Tokens come as they
come to users of the library: `generate` hands each to a streamer, and the events are what the reader's side sees.

Compiled (device.execution=compile), the setting is the library's own for that: a `StaticCache` of fixed length, which
successive texts share, and steps under torch.compile; prompts run eagerly.

Draws come from torch's generator in float32, so sampled texts differ from the native ones; greedy ones do not.

Dimension letters: B requests, T columns of the padded prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from paradigms.decoding.autoregressive import token_by_token
from paradigms.decoding.pace import check_pace
from paradigms.decoding.prompts import nothing_given, right_align
from paradigms.decoding.sampling import Sampling
from paradigms.decoding.stopping import Vocabulary, finish
from paradigms.engines import compiled_steps
from paradigms.engines.streaming import stream
from paradigms.engines.theirs import as_theirs, require_theirs
from paradigms.models.network import NetworkConfig
from paradigms.models.transformers_cache import cache_argument, cache_bytes, new_cache
from paradigms.paradigm import Event, Request, StateBytes
from paradigms.work import BatchShape, ForwardShape


@dataclass(frozen=True, kw_only=True)
class TransformersGenerate(Sampling):
    """Decoding by `transformers`.

    Attributes:
        use_cache: False reads the whole text again at each step.
    """

    use_cache: bool = True
    engine: ClassVar[str] = "transformers"
    depends_on_values: ClassVar[bool] = False
    execution_prompts: ClassVar[str] = "eager"

    @property
    def executions(self) -> tuple[str, ...]:
        """What `generate` can do: it compiles steps behind a static cache, and nothing else."""
        return ("eager", "compile") if self.use_cache else ("eager",)

    def check(self, model: NetworkConfig, *, output_len: int) -> None:
        """Raise ValueError when this engine cannot drive such a model."""
        require_theirs(model)
        if self.use_cache and not model.has_state:
            raise ValueError(
                "decoder.use_cache=true: this model of transformers keeps its state in a way of its own, of which "
                "nothing could be told; set decoder.use_cache=false"
            )

    def forwards(
        self, model: NetworkConfig, batch: BatchShape, *, tokens_per_forward: float | None = None
    ) -> Iterator[ForwardShape]:
        """See `decoding.native.Decoder`."""
        self.check(model, output_len=batch.output_len)
        check_pace(self, tokens_per_forward)
        return token_by_token(batch, cached=self.use_cache)

    def compile_flags(self, model: Any) -> str | None:
        """How the library compiles its steps, where it is told to."""
        if getattr(model, "execution", "eager") != "compile":
            return None
        config = compiled_steps.compile_config(model.device)
        return f"fullgraph={config.fullgraph} dynamic={config.dynamic} mode={config.mode}"

    def weights_read(self, model: Any) -> list[Tensor]:
        """The library's copy of the weights."""
        return list(as_theirs(model).parameters())

    def decode(self, model: Any, requests: Sequence[Request], vocabulary: Vocabulary) -> Iterator[Event]:
        """One event a forward, each with one token of every row.

        Raises:
            ValueError: a network that the library does not have, requests of which only some ignore end-of-text, or
                text that is given in a canvas.
        """
        nothing_given(requests, "transformers_generate")
        natural = {not request.ignore_eos for request in requests}
        if len(natural) > 1:
            raise ValueError(
                "generate ends all rows of a batch by one rule; let all requests ignore end-of-text, or none"
            )
        theirs = as_theirs(model)
        prompt_BT, lengths = right_align([request.prompt for request in requests], model.device)
        B, T = prompt_BT.shape
        prompt_lens = lengths or [T] * B
        arguments, cache = self._arguments(theirs, prompt_BT, prompt_lens)
        is_compiled = getattr(model, "execution", "eager") == "compile"
        if is_compiled:
            cache = compiled_steps.static_cache(theirs, B, T + max(request.max_new_tokens for request in requests))
            arguments[cache_argument(theirs)] = cache
        if vocabulary.mask_id is not None:
            arguments["logits_processor"] = [_NoMask(vocabulary.mask_id)]
        arguments["generation_config"] = self._config(requests, vocabulary, natural=natural.pop())
        if is_compiled:
            arguments["generation_config"].compile_config = compiled_steps.compile_config(theirs.device)

        def generate(hand_out: Callable[[Tensor], Any]) -> None:
            if self.temperature > 0:
                torch.manual_seed(requests[0].seed)
            theirs.generate(**arguments, streamer=_Streamer(hand_out))

        rows: list[list[int]] = [[] for _ in requests]
        unfinished = set(range(B))
        with closing(stream(generate)) as tokens:
            for n, token_B in enumerate(compiled_steps.counting(tokens, model) if is_compiled else tokens):
                finished: dict[int, str] = {}
                for row, token in enumerate(token_B.tolist()):
                    rows[row].append(token)
                    if row in unfinished and (ended := finish(requests[row], rows[row], vocabulary)):
                        finished[row] = ended[0]
                unfinished -= finished.keys()
                yield Event(
                    phase="decode" if n else "prefill",
                    positions_K=(n,),
                    token_ids_BK=token_B[:, None],
                    forwards={"model": 1},
                    positions_computed=B * (1 if n and self.use_cache else T + n),
                    finished=finished,
                    state=_state_bytes(cache, prompt_lens, n) if cache is not None else None,
                )
                if not unfinished:
                    return

    def _arguments(self, theirs: Any, prompt_BT: Tensor, prompt_lens: Sequence[int]) -> tuple[dict[str, Any], Any]:
        """What generate is given, and the cache among it."""
        column_T = torch.arange(prompt_BT.shape[1], device=prompt_BT.device)
        pads_B1 = prompt_BT.shape[1] - torch.tensor(prompt_lens, device=prompt_BT.device)[:, None]
        arguments: dict[str, Any] = {"inputs": prompt_BT, "attention_mask": (column_T >= pads_B1).long()}
        if not self.use_cache:
            return arguments, None
        cache = new_cache(theirs)
        assert cache is not None, "checked before"
        arguments[cache_argument(theirs)] = cache
        return arguments, cache

    def _config(self, requests: Sequence[Request], vocabulary: Vocabulary, *, natural: bool) -> Any:
        from transformers import GenerationConfig

        greedy = self.temperature == 0
        sampling = {"temperature": self.temperature, "top_k": self.top_k or 0, "top_p": self.top_p or 1.0}
        return GenerationConfig(
            max_new_tokens=max(request.max_new_tokens for request in requests),
            use_cache=self.use_cache,
            eos_token_id=vocabulary.eos_id if natural else None,
            pad_token_id=vocabulary.eos_id,
            do_sample=not greedy,
            **({} if greedy else sampling),
        )


def _state_bytes(cache: Any, prompt_lens: Sequence[int], n: int) -> Callable[[], StateBytes]:
    """Bytes when n + 1 tokens are out, the newest not read back yet; the engine may be further when somebody asks."""

    def state() -> StateBytes:
        used, allocated = cache_bytes(cache, [length + n for length in prompt_lens], max(prompt_lens) + n)
        static = compiled_steps.allocated_bytes(cache)
        return StateBytes(used, allocated if static is None else static)

    return state


class _NoMask:
    """Logits processor that keeps the mask token out, in place: transformers' own costs ten times as much."""

    def __init__(self, mask_id: int) -> None:
        self.mask_id = mask_id

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores[:, self.mask_id] = float("-inf")
        return scores


class _Streamer:
    """What generate calls with the prompt and then with every step's tokens; hands each step out."""

    def __init__(self, hand_out: Callable[[Tensor], Any]) -> None:
        self.hand_out = hand_out
        self._prompt_seen = False

    def put(self, tokens: Tensor) -> None:
        if self._prompt_seen:
            self.hand_out(tokens)
        self._prompt_seen = True

    def end(self) -> None:
        """Nothing is held back."""
