"""Left to right, one token a forward.

With the state (keys and values, or a recurrent state) the prompt is read once and every later forward reads one token;
without it every forward reads the whole text again, which is what a full canvas without a cache pays too. Any causal
model fits: a Transformer and Mamba-2 are decoded by the same lines.

Text that is given within the canvas is read where it stands, together with the token before it, so that it costs no
forward of its own; what is given after a gap is also read before the prompt (`prompts.rearranged`), or is not known
until then.

Dimension letters: B requests, N new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paradigms.decoding import draws
from paradigms.decoding.pace import check_pace
from paradigms.decoding.prompts import append, drafts, follow, left_to_right, rearranged, right_align
from paradigms.decoding.sampling import Sampling
from paradigms.decoding.stopping import Vocabulary, finish, never_mask
from paradigms.models.config import ModelConfig
from paradigms.models.kv_cache import KV_DTYPES
from paradigms.models.network import NetworkConfig
from paradigms.models.stack import Model
from paradigms.paradigm import Event, Outline, Request, StateBytes
from paradigms.work import BatchShape, ForwardShape

CACHES = ("state", "none")
INFILLING = ("suffix_first", "prefix_only")


@dataclass(frozen=True, kw_only=True)
class Autoregressive(Sampling):
    """Next-token decoding of a causal model.

    Attributes:
        cache: `state` carries what the model has seen; `none` reads everything again at each step.
        kv_dtype: None keeps keys and values as computed; `int8` in 8 bits, with a scale a token and head.
        infilling: text that is given after a gap is read first (`suffix_first`), or only when it is reached
            (`prefix_only`: what a model does that cannot look ahead, as a control).
    """

    cache: str = "state"
    kv_dtype: str | None = None
    infilling: str = "suffix_first"
    infills: ClassVar[bool] = True
    takes_drafts: ClassVar[bool] = True
    engine: ClassVar[str] = "native"
    depends_on_values: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cache not in CACHES:
            raise ValueError(f"decoder.cache={self.cache!r} is unknown; it is one of {', '.join(CACHES)}")
        if self.infilling not in INFILLING:
            raise ValueError(f"decoder.infilling={self.infilling!r} is unknown; it is one of {', '.join(INFILLING)}")
        if self.kv_dtype is not None and self.kv_dtype not in KV_DTYPES:
            allowed = ", ".join(KV_DTYPES)
            raise ValueError(f"decoder.kv_dtype={self.kv_dtype!r} is unknown; it is null (as computed) or {allowed}")
        if self.kv_dtype is not None and self.cache == "none":
            raise ValueError(
                f"decoder.kv_dtype={self.kv_dtype} is how keys and values are kept, and decoder.cache=none keeps none; "
                "set decoder.cache=state"
            )

    @property
    def executions(self) -> tuple[str, ...]:
        """Ways to run forwards: a text that is read again at each step fits no recording, as its length changes."""
        return ("eager", "compile", "cuda_graph") if self.cache == "state" else ("eager", "compile")

    def check(self, model: NetworkConfig, *, output_len: int) -> None:
        """Raise ValueError when this decoder cannot drive such a model."""
        if not model.causal:
            raise ValueError(
                "decoder=autoregressive needs a causal model, and this one sees the whole canvas (model.causal=false): "
                "it cannot keep a KV cache; use a masked-diffusion decoder"
            )
        if self.cache == "state" and not model.has_state:
            raise ValueError(
                "decoder.cache=state: this model of transformers keeps its state in a way of its own; "
                "use decoder=autoregressive_uncached"
            )
        if self.kv_dtype is not None:
            if not isinstance(model, ModelConfig):
                raise ValueError(
                    f"decoder.kv_dtype={self.kv_dtype} is of the native stack; this model keeps its state in a way of "
                    "its own, so leave it out (null)"
                )
            model.check_kv_dtype(self.kv_dtype)

    def outline(self, model: NetworkConfig, output_len: int) -> Outline:
        """One event a token, each reading one token more."""
        return Outline(num_events=output_len, grows=True)

    def forwards(
        self, model: NetworkConfig, batch: BatchShape, *, tokens_per_forward: float | None = None
    ) -> Iterator[ForwardShape]:
        """See `decoding.native.Decoder`."""
        self.check(model, output_len=batch.output_len)
        check_pace(self, tokens_per_forward)
        return token_by_token(batch, cached=self.cache == "state")

    def num_positions(self, request: Request) -> int:
        """Positions that the model has for such a request, the last token that is written among them."""
        read = self._reads(request, separator=0)
        return sum(map(len, read)) + len(read)

    def _reads(self, request: Request, separator: int) -> list[tuple[int, ...]]:
        ahead = self.infilling == "suffix_first" and not request.in_order
        first = rearranged(request, separator) if ahead else request.prompt
        return left_to_right(request, first)

    @torch.inference_mode()
    def decode(self, model: Model, requests: Sequence[Request], vocabulary: Vocabulary) -> Iterator[Event]:
        """One event a forward, each with one token of every row."""
        N = max(request.max_new_tokens for request in requests)
        reads = [self._reads(request, vocabulary.eos_id) for request in requests]
        tokens_BT, num_tokens = right_align([read[0] for read in reads], model.device)
        lengths = num_tokens or [tokens_BT.shape[1]] * len(requests)
        position_N = torch.arange(N, device=model.device)
        uniform_BN = draws.uniform([request.seed for request in requests], position_N, 0, "token")
        max_len = max(sum(map(len, read)) for read in reads) + N - 1
        state = model.new_state(len(requests), max_len, kv_dtype=self.kv_dtype) if self.cache == "state" else None
        state_bytes = (lambda: StateBytes(state.used_bytes, state.allocated_bytes)) if state else None
        ending = _Ending(requests, vocabulary)
        draft_BN = drafts(requests, model.device)

        computed = sum(lengths)
        for n in range(N):
            logits_BV = model(tokens_BT, state, num_tokens=num_tokens, logits_at=slice(-1, None))[:, 0]
            token_B1 = self.draw(never_mask(logits_BV, vocabulary), uniform_BN[:, n])[:, None]
            if draft_BN is not None and n < draft_BN.shape[1]:
                token_B1 = torch.where(draft_BN[:, n : n + 1] < 0, token_B1, draft_BN[:, n : n + 1])
            yield Event(
                phase="decode" if n else "prefill",
                positions_K=(n,),
                token_ids_BK=token_B1,
                forwards={"model": 1},
                positions_computed=computed,
                finished=ending.after(n, token_B1),
                state=state_bytes,
            )
            if ending.all_finished:
                return
            new_BN, new_lengths = follow(token_B1, [read[n + 1] if n + 1 < len(read) else () for read in reads])
            if state is not None:
                tokens_BT, num_tokens = new_BN, new_lengths
                computed = sum(new_lengths or [new_BN.shape[1]] * len(requests))
            else:
                tokens_BT, lengths = append(tokens_BT, lengths, new_BN, new_lengths)
                num_tokens = None if min(lengths) == tokens_BT.shape[1] else lengths
                computed = sum(lengths)


def token_by_token(batch: BatchShape, *, cached: bool) -> Iterator[ForwardShape]:
    """One forward a token, and logits of the last column of each row; without a state it reads the whole text."""
    for n in range(batch.output_len):
        seen = batch.prompt_len + n
        tokens = 1 if cached and n else seen
        yield ForwardShape(
            phase="decode" if n else "prefill",
            rows=batch.rows,
            tokens=tokens,
            seen=seen,
            kept=seen - tokens,
            written=tokens if cached else 0,
            logits=batch.rows,
        )


class _Ending:
    """Tells which rows finish; looks at the tokens only when a request can end before its length."""

    def __init__(self, requests: Sequence[Request], vocabulary: Vocabulary) -> None:
        self.requests, self.vocabulary = requests, vocabulary
        self.unfinished = set(range(len(requests)))
        self.natural = any(not request.ignore_eos for request in requests)
        self.tokens: list[list[int]] = [[] for _ in requests]

    @property
    def all_finished(self) -> bool:
        return not self.unfinished

    def after(self, n: int, token_B1: Tensor) -> dict[int, str]:
        """Rows that end with token n."""
        finished: dict[int, str] = {}
        if self.natural:
            for row, token in enumerate(token_B1[:, 0].tolist()):
                self.tokens[row].append(token)
        for row in sorted(self.unfinished):
            request = self.requests[row]
            if request.ignore_eos:
                if n + 1 == request.max_new_tokens:
                    finished[row] = "length"
            elif ended := finish(request, self.tokens[row], self.vocabulary):
                finished[row] = ended[0]
        self.unfinished -= finished.keys()
        return finished
