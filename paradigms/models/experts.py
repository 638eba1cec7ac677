"""Mixture-of-experts feed-forward: a router sends every token to a few of many SwiGLU networks.

Parameters grow with the number of experts, the products of a token only with those it is sent to. What a step reads of
the weights is what all its tokens together touch: `count_touched` tells how many that is.

Dimension letters: R rows, K experts of a row, X experts, E model width, I inner width, G groups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from paradigms.models import expert_products, operations
from paradigms.models.feed_forward import FeedForward
from paradigms.models.layer_config import LayerConfig
from paradigms.models.layer_state import StateSpec
from paradigms.models.layers import Span, matrix, positive
from paradigms.models.one_token import Place, Step

if TYPE_CHECKING:
    from paradigms.models.config import ModelConfig
    from paradigms.models.forward_pass import ForwardPass

SCORINGS = ("softmax", "sigmoid")


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig(LayerConfig):
    """Mixture-of-experts layer.

    Attributes:
        num_experts, top_k: experts, and how many of them each token is sent to.
        width: inner width of an expert; None is that of the feed-forward layers, in a stack that has them.
        num_shared, shared_width: experts that every token passes, and their inner width; None is `width`.
        shared_gate: weigh the shared experts by sigmoid(x @ gate) (Qwen2-MoE).
        scoring: what the router's logits become: `softmax` over the experts, or `sigmoid` of each (DeepSeek-V3).
        normalise_top_k: divide the weights of a token's experts by their sum.
        routing_bias: numbers added to the scores where experts are chosen, not where they are weighed (2408.15664);
            checkpoints bring them, training here leaves them at 0.
        num_groups, top_groups: experts stand in equal groups, and a token chooses among the experts of its best
            `top_groups` (2405.04434); 1 and 1 is no such limit.
        group_best: a group is as good as the sum of its `group_best` best scores.
        routed_scale: what the weights are multiplied by at last.
        balance_loss: coefficient of the load-balancing loss in training; 0 leaves it out.
    """

    num_experts: int = 8
    top_k: int = 2
    width: int | None = None
    num_shared: int = 0
    shared_width: int | None = None
    shared_gate: bool = False
    scoring: str = "softmax"
    normalise_top_k: bool = True
    routing_bias: bool = False
    num_groups: int = 1
    top_groups: int = 1
    group_best: int = 1
    routed_scale: float = 1.0
    balance_loss: float = 0.01

    key: ClassVar[str] = "experts"
    keeps_slots: ClassVar[bool] = True
    free: ClassVar[tuple[str, int]] = ("width", 8)

    def within(self, model: ModelConfig) -> ExpertsConfig:
        """The same with its widths filled in, as far as the model tells them."""
        width, shared = self.width, self.shared_width
        if width is None and model.feed_forward is not None:
            width = model.feed_forward.width
        if shared is None and self.num_shared:
            shared = width
        return dataclasses.replace(self, width=width, shared_width=shared)

    def check(self, model: ModelConfig) -> None:
        """Raise ValueError for numbers that do not go together."""
        key = f"model.{self.key}"
        if self.width is None:
            raise ValueError(f"{key}.width is null and model.block={model.block!r} has no feed-forward to take it from")
        positive(key, num_experts=self.num_experts, top_k=self.top_k, width=self.width, shared_width=self.shared_width)
        positive(key, num_groups=self.num_groups, top_groups=self.top_groups, group_best=self.group_best)
        if self.scoring not in SCORINGS:
            raise ValueError(f"{key}.scoring={self.scoring!r} is unknown; it is one of {', '.join(SCORINGS)}")
        if self.num_experts % self.num_groups or self.top_groups > self.num_groups:
            raise ValueError(
                f"{key}.num_groups={self.num_groups} must divide num_experts={self.num_experts} and be at least "
                f"top_groups={self.top_groups}"
            )
        size = self.num_experts // self.num_groups
        if self.top_k > self.top_groups * size or self.group_best > size:
            raise ValueError(
                f"{key}.top_k={self.top_k} and group_best={self.group_best} ask for more experts than there are: "
                f"{self.top_groups} groups of {size} are chosen from"
            )
        if self.num_groups == 1 and self.group_best > 1:
            raise ValueError(f"{key}.group_best={self.group_best} ranks groups, and there is one; leave it at 1")
        if not self.num_shared and (self.shared_width is not None or self.shared_gate):
            raise ValueError(f"{key}.shared_width and shared_gate are of shared experts; {key}.num_shared=0 has none")
        if self.num_shared < 0 or self.balance_loss < 0:
            raise ValueError(f"{key}.num_shared={self.num_shared} and balance_loss={self.balance_loss} are at least 0")

    def expert_parameters(self, d_model: int) -> int:
        """Of one routed expert."""
        assert self.width is not None
        return 3 * d_model * self.width

    def num_parameters(self, d_model: int) -> int:
        return self.touched_parameters(d_model, self.num_experts)

    def touched_parameters(self, d_model: int, num_touched: float) -> int:
        """Of the router, the shared experts and so many routed ones (a mean over layers or steps may be broken)."""
        shared = 3 * d_model * self.num_shared * (self.shared_width or 0) + self.shared_gate * d_model
        return d_model * self.num_experts + shared + round(num_touched * self.expert_parameters(d_model))

    def idle_parameters(self, d_model: int, experts_touched: float | None) -> int:
        touched = self.top_k if experts_touched is None else experts_touched
        return round((self.num_experts - touched) * self.expert_parameters(d_model))

    def touched_by(self, num_tokens: int) -> float:
        """Distinct experts that so many tokens touch on average, if every token chooses its own evenly among all."""
        return self.num_experts * (1 - (1 - self.top_k / self.num_experts) ** num_tokens)

    def matmul_flops(self, run: ForwardPass) -> int:
        return 2 * run.positions * self.touched_parameters(run.d_model, self.top_k)

    def other_flops(self, run: ForwardPass) -> int:
        """Scores and weights of the experts, their activations and weighted sum, and the shared experts beside it."""
        X, K, d_model = self.num_experts, self.top_k, run.d_model
        assert self.width is not None
        routed = operations.softmax(X) if self.scoring == "softmax" else X
        routed += self.routing_bias * X + (self.num_groups > 1) * self.num_groups * (self.group_best - 1)
        routed += self.normalise_top_k * 2 * K + (self.routed_scale != 1) * K
        inner = (K * self.width + self.num_shared * (self.shared_width or 0)) * (operations.SILU + 1)
        summed = (2 * K - 1) * d_model
        beside = (self.num_shared > 0) * d_model + self.shared_gate * (1 + d_model)
        return run.positions * (routed + inner + summed + beside)

    def activation_bytes(self, run: ForwardPass) -> int:
        """Every token beside each of its experts, before or behind their inner width."""
        assert self.width is not None
        each = max(4 * self.width + run.d_model, 3 * self.width + 2 * run.d_model)
        return run.itemsize * run.positions * self.top_k * each

    def state_bytes(self, d_model: int, *, length: int, itemsize: int) -> int:
        return 0

    def build(self, model: ModelConfig, shared: nn.ModuleDict) -> Experts:
        return Experts(self, model)


class Experts(nn.Module):
    """One layer."""

    routing_bias: Tensor

    def __init__(self, config: ExpertsConfig, model: ModelConfig) -> None:
        super().__init__()
        self.config, d_model = config, model.d_model
        assert config.width is not None
        self.router = matrix(d_model, config.num_experts)
        self.gate_up = nn.Parameter(torch.empty(config.num_experts, d_model, 2 * config.width))
        self.fused = {"gate_up": (config.width, config.width)}
        self.down = nn.Parameter(torch.empty(config.num_experts, config.width, d_model))
        if config.routing_bias:
            self.register_buffer("routing_bias", torch.zeros(config.num_experts))
        if config.num_shared:
            assert config.shared_width is not None
            self.shared = FeedForward(d_model, config.num_shared * config.shared_width)
        if config.shared_gate:
            self.shared_gate = matrix(d_model, 1)
        self._balance: Tensor | float = 0.0

    def new_state(self, batch_size: int, capacity: int, spec: StateSpec) -> None:
        return None

    def one_token(self, state: None) -> Step:
        """See `one_token`."""
        shared = self.shared.one_token(None) if self.config.num_shared else None

        def step(x_1E: Tensor, place: Place) -> Tensor:
            y_1E = self._routed(x_1E, on_device=False)
            return y_1E if shared is None else self._with_shared(y_1E, x_1E, shared(x_1E, place))

        return step

    def forward(self, x_RE: Tensor, span: Span, state: None) -> Tensor:
        y_RE = self._routed(x_RE, on_device=span.on_device)
        return self._with_shared(y_RE, x_RE, self.shared(x_RE, span, None)) if self.config.num_shared else y_RE

    def _routed(self, x_RE: Tensor, *, on_device: bool) -> Tensor:
        chosen_RK, weight_RK = self.route(x_RE)
        if _touched is not None and not torch.compiler.is_compiling():
            _touched.add(chosen_RK)
        products = expert_products.choose(x_RE, self.gate_up, on_device=on_device)
        return products(x_RE, chosen_RK, weight_RK, self.gate_up, self.down)

    def _with_shared(self, y_RE: Tensor, x_RE: Tensor, shared_RE: Tensor) -> Tensor:
        if not self.config.shared_gate:
            return y_RE + shared_RE
        return torch.addcmul(y_RE, (x_RE @ self.shared_gate).sigmoid(), shared_RE)

    def route(self, x_RE: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each row, and their weights."""
        c = self.config
        wide = torch.promote_types(x_RE.dtype, torch.float32)
        logits_RX = x_RE.to(wide) @ self.router.to(wide)
        score_RX = logits_RX.softmax(-1) if c.scoring == "softmax" else logits_RX.sigmoid()
        rank_RX = score_RX + self.routing_bias.to(wide) if c.routing_bias else score_RX
        if c.num_groups > 1:
            rank_RX = self._of_best_groups(rank_RX)
        chosen_RK = rank_RX.topk(c.top_k, -1).indices
        weight_RK = score_RX.gather(1, chosen_RK)
        if c.normalise_top_k:
            weight_RK = weight_RK / (weight_RK.sum(-1, keepdim=True) + 1e-20)
        if c.routed_scale != 1:
            weight_RK = weight_RK * c.routed_scale
        if score_RX.requires_grad and c.balance_loss:
            self._balance = balance_loss(score_RX, chosen_RK)
        return chosen_RK, weight_RK.to(x_RE.dtype)

    def __getstate__(self) -> dict[str, object]:
        """For copies: the loss of the last forward stays with its graph."""
        return {**self.__dict__, "_balance": 0.0}

    def take_balance(self) -> Tensor | float:
        """The load-balancing loss of the last forward with gradients, which is then forgotten; 0 without one."""
        balance, self._balance = self._balance, 0.0
        return balance

    def _of_best_groups(self, rank_RX: Tensor) -> Tensor:
        """Ranks with those of all but the best groups at -inf."""
        c = self.config
        rank_RGX = rank_RX.view(len(rank_RX), c.num_groups, -1)
        group_RG = rank_RGX.topk(c.group_best, -1).values.sum(-1)
        left_out_RG = torch.ones_like(group_RG, dtype=torch.bool)
        left_out_RG.scatter_(1, group_RG.topk(c.top_groups, -1).indices, False)
        return rank_RGX.masked_fill(left_out_RG[..., None], float("-inf")).view_as(rank_RX)


def balance_loss(score_RX: Tensor, chosen_RK: Tensor) -> Tensor:
    """X sum_i f_i P_i (2101.03961, equations 4 to 6): f_i the part of all choices that fell on expert i, P_i its mean
    score, of scores that are divided by their sum over the experts. 1 when all experts are used alike.
    """
    X = score_RX.shape[1]
    part_X = torch.bincount(chosen_RK.flatten(), minlength=X) / chosen_RK.numel()
    share_X = (score_RX / (score_RX.sum(-1, keepdim=True) + 1e-20)).mean(0)
    return X * (part_X.to(share_X.dtype) * share_X).sum()


class Touched:
    """Distinct experts that forwards touched, over the expert layers."""

    def __init__(self) -> None:
        self.distinct, self.num_layers = 0, 0

    def add(self, chosen_RK: Tensor) -> None:
        self.distinct, self.num_layers = self.distinct + len(chosen_RK.unique()), self.num_layers + 1

    def take(self) -> tuple[int, int]:
        """(distinct experts, expert layers run) since the last call; padding rows are computed and so they count."""
        taken = self.distinct, self.num_layers
        self.distinct, self.num_layers = 0, 0
        return taken


_touched: Touched | None = None


@contextmanager
def count_touched() -> Iterator[Touched]:
    """Count while the context is open, in forwards that run operator by operator (what is compiled or recorded counts
    nothing). It waits for the device, so nothing is timed in it.
    """
    global _touched
    _touched = Touched()
    try:
        yield _touched
    finally:
        _touched = None
