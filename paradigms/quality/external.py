"""Generative perplexity: what a text costs a language model of others, which no contestant is.

    nats per token     Σ −ln p(token | prompt, tokens before) / tokens, of the scorer's own tokens; exp of it is the
                       perplexity that papers print
    bits per byte      the same nats / (ln 2 x bytes of those tokens): comparable across scorers' tokenizers

Both are bought with entropy: dull text is cheap (2409.02908, section 5). So the entropy of the scorer's tokens within
each text is always beside them, which is comparable across the contestants' tokenizers, too.

A text is decoded by the contestant's tokenizer and encoded by the scorer's, prompt and output as one text behind the
scorer's begin-of-text. The boundary is one of bytes: a token is scored when its first byte is of the output. One that
begins in the prompt and reaches into the output is context; the output's bytes in it are neither scored nor counted,
but told (`external_bytes_across`). Text given behind gaps is read and not scored.

What cannot be scored is rejected with the reason, and counted: an empty output; a text that ends within a character, or
is no UTF-8; one that the scorer's tokenizer does not give back; one without a token that begins in the output; one that
is longer than the scorer's positions. (Bytes of a character that a prompt begins within are left out: they are context.
So is the far end of a prompt that is too long, which `external_context_cut` says.)

Dimension letters: N texts, T columns, E width of the scorer.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paradigms.data.pretrained_tokenizer import PretrainedTokenizer
from paradigms.data.tokenizers import Tokenizer
from paradigms.models import pretrained
from paradigms.models.checkpoint_files import SMOLLM2, weights_sha256
from paradigms.models.stack import Model
from paradigms.models.transformers_model import TransformersConfig, transformers_config
from paradigms.quality.nats import default_batch_size, exact_nats
from paradigms.quality.samples import token_entropy_nats

NAMES = {"smollm2": str(SMOLLM2)}  # short for
EMPTY = "empty output"
ENDS_WITHIN = "ends within a character"
NOT_UTF8 = "not UTF-8"
CHANGED = "the scorer's tokenizer does not give it back"
NO_TOKEN = "no token of the scorer begins in the output"
TOO_LONG = "longer than the scorer's positions"


@dataclass(frozen=True)
class Text:
    """A text in its place.

    Attributes:
        data: bytes of prompt, output and what is given.
        is_output: of each byte.
    """

    data: bytes
    is_output: np.ndarray

    @classmethod
    def of(cls, prompt: bytes, output: bytes) -> Text:
        return cls(prompt + output, np.arange(len(prompt) + len(output)) >= len(prompt))


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What a text costs; `nats` and `token_entropy_nats` are None of a rejected one.

    Attributes:
        nats: Σ −ln p of the scored tokens.
        num_tokens, num_bytes: of what is scored.
        bytes_across: of the output, in tokens that begin before it.
        token_entropy_nats: of the scored tokens' own frequencies.
        rejected: why; None of a scored text.
        context_cut: whether the beginning of the prompt was left out.
    """

    nats: float | None = None
    num_tokens: int = 0
    num_bytes: int = 0
    bytes_across: int = 0
    token_entropy_nats: float | None = None
    rejected: str | None = None
    context_cut: bool = False

    def columns(self) -> dict[str, Any]:
        """Columns of the `scores` table."""
        return {
            "external_nats": self.nats,
            "external_tokens": self.num_tokens,
            "external_bytes": self.num_bytes,
            "external_bytes_across": self.bytes_across,
            "external_nats_per_token": None if self.nats is None else self.nats / self.num_tokens,
            "external_bits_per_byte": None if self.nats is None else self.nats / math.log(2) / self.num_bytes,
            "external_token_entropy_nats": self.token_entropy_nats,
            "external_rejected": self.rejected,
            "external_context_cut": self.context_cut,
        }


@dataclass(frozen=True)
class _Row:
    """A text in the scorer's tokens, begin-of-text included; `scored` says which of them are."""

    ids: list[int]
    scored: list[bool]
    num_bytes: int
    bytes_across: int
    context_cut: bool


@dataclass(frozen=True)
class ExternalScorer:
    """A causal language model that others have trained.

    Attributes:
        model: called as a native one.
        tokenizer: its own.
        identity: of weights and tokenizer.
        name: for captions.
    """

    model: Any
    tokenizer: Tokenizer
    identity: str
    name: str

    @classmethod
    def load(cls, path: str, *, device: torch.device | str = "cpu") -> ExternalScorer:
        """The scorer of a folder of transformers, a GGUF file, a name on the hub, or `smollm2`; float32.

        It runs in the native stack where that has the network, else by the library's own code.

        Raises:
            ValueError: nothing there, no causal model, or a tokenizer whose tokens have no bytes.
        """
        name, path = path, NAMES.get(path, path)
        try:
            tokenizer = PretrainedTokenizer(path=path).load(None)  # type: ignore[arg-type]  # it needs no corpus
            model = _load(path)
        except ValueError as error:
            raise ValueError(f"--scorer {name}: {error}") from None
        if not any(tokenizer.token_bytes):
            raise ValueError(
                f"--scorer {name}: its vocabulary cannot be mapped to bytes, so nobody can tell where the output "
                "begins; take another scorer"
            )
        identity = hashlib.sha256(f"{weights_sha256(path)} {tokenizer.sha256}".encode()).hexdigest()[:16]
        model = model.to(device).eval().requires_grad_(False)
        return cls(model, tokenizer, identity, name)

    @property
    def max_positions(self) -> int:
        return self.model.config.max_positions

    def score(
        self,
        texts: Sequence[Text],
        *,
        batch_size: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Scored]:
        """What each text costs, in the order of the texts; the same whatever the batch size.

        Args:
            progress: called after each forward with the number of texts scored, and of all that are.
        """
        rows = [self._row(text) for text in texts]
        found = {n: Scored(rejected=row) for n, row in enumerate(rows) if isinstance(row, str)}
        kept = [(n, row) for n, row in enumerate(rows) if isinstance(row, _Row)]
        if kept:
            tokens_NT, lengths_N, scored_NT = _arrays([row for _, row in kept])
            if batch_size is None:
                batch_size = default_batch_size(tokens_NT.shape[1], self.model.config.vocab_size)
            more: dict[str, Any] = {"mask_id": None, "batch_size": batch_size, "progress": progress}
            nats_N, _ = exact_nats(self.model, tokens_NT, lengths_N, scored_NT, **more)
            for (n, row), nats in zip(kept, nats_N.tolist(), strict=True):
                tokens = [token for token, scored in zip(row.ids, row.scored, strict=True) if scored]
                found[n] = Scored(
                    nats=nats,
                    num_tokens=len(tokens),
                    num_bytes=row.num_bytes,
                    bytes_across=row.bytes_across,
                    token_entropy_nats=token_entropy_nats(tokens),
                    context_cut=row.context_cut,
                )
        return [found[n] for n in range(len(texts))]

    @torch.inference_mode()
    def features(self, texts: Sequence[Text], *, batch_size: int = 16) -> np.ndarray:
        """Mean over the scored tokens of the last layer's residual stream, float32 [N, E]; rows of rejected texts are
        NaN.
        """
        rows = [self._row(text) for text in texts]
        kept = [n for n, row in enumerate(rows) if isinstance(row, _Row)]
        kept.sort(key=lambda n: -len(rows[n].ids))  # type: ignore[union-attr]
        features: dict[int, np.ndarray] = {}
        for start in range(0, len(kept), batch_size):
            numbers = kept[start : start + batch_size]
            tokens_NT, _, scored_NT = _arrays([rows[n] for n in numbers])  # type: ignore[misc]
            device = next(self.model.parameters()).device
            hidden_BTE = self._hidden(torch.from_numpy(tokens_NT).to(device)).float()
            weight_BT = torch.from_numpy(scored_NT).to(device).float()
            mean_BE = torch.einsum("bte,bt->be", hidden_BTE, weight_BT) / weight_BT.sum(1, keepdim=True)
            features |= zip(numbers, mean_BE.cpu().numpy(), strict=True)
        width = len(next(iter(features.values()))) if features else 1
        missing = np.full(width, np.nan, np.float32)
        return np.stack([features.get(n, missing) for n in range(len(texts))])

    def _hidden(self, tokens_BT: Tensor) -> Tensor:
        if isinstance(self.model, Model):
            return self.model.hidden(tokens_BT)
        return self.model.theirs(tokens_BT, use_cache=False, output_hidden_states=True).hidden_states[-1]

    def _row(self, text: Text) -> _Row | str:
        """The text in the scorer's tokens, or why it is rejected."""
        if not text.is_output.any():
            return EMPTY
        skip = 0
        while skip < len(text.data) and text.data[skip] & 0xC0 == 0x80 and not text.is_output[skip]:
            skip += 1
        data, is_output = text.data[skip:], text.is_output[skip:]
        try:
            string = data.decode()
        except UnicodeDecodeError as error:
            at_end = error.end == len(data) and error.reason == "unexpected end of data"
            return ENDS_WITHIN if at_end else NOT_UTF8
        ids = self.tokenizer.encode(string)
        pieces = [self.tokenizer.token_bytes[token] for token in ids]
        dummy = int(b"".join(pieces) == b" " + data)  # the space that sentencepiece puts before a text
        if b"".join(pieces)[dummy:] != data:
            return CHANGED
        ends = np.cumsum([len(piece) for piece in pieces]) - dummy
        begins = np.maximum(np.append([0], ends[:-1]), 0)
        scored = is_output[begins]
        if not scored.any():
            return NO_TOKEN
        first = max(0, len(ids) + 1 - self.max_positions)
        if scored[:first].any():
            return TOO_LONG
        covered = np.repeat(scored, np.maximum(ends, 0) - begins)
        return _Row(
            ids=[self.tokenizer.bos_id, *ids[first:]],
            scored=[False, *scored[first:].tolist()],
            num_bytes=int(covered.sum()),
            bytes_across=int((is_output & ~covered).sum()),
            context_cut=first > 0,
        )


def _load(path: str) -> Any:
    try:
        config = pretrained.native_config(path)
    except ValueError:  # a network that only the library computes, or nothing at all, which it says
        config = transformers_config(path)
    if not config.causal:
        raise ValueError(f"{path} is a denoiser, whose likelihood is a bound; a scorer must be causal")
    return config.load() if isinstance(config, TransformersConfig) else pretrained.load_native(path, config)


def _arrays(rows: Sequence[_Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens [N, T], their number [N], and which are scored [N, T]; rows are padded on the right, seen by nobody."""
    lengths_N = np.array([len(row.ids) for row in rows])
    tokens_NT = np.zeros((len(rows), lengths_N.max()), np.int64)
    scored_NT = np.zeros(tokens_NT.shape, bool)
    for n, row in enumerate(rows):
        tokens_NT[n, : lengths_N[n]] = row.ids
        scored_NT[n, : lengths_N[n]] = row.scored
    return tokens_NT, lengths_N, scored_NT
