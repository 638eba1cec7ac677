"""One optimizer for every model: Muon on the matrices, AdamW on the rest.

A stack of experts' matrices is as many matrices, and so are projections that are kept as one for speed (`fused`):
queries, keys and values; gate and up; what a state-space layer selects. Each is orthogonalised by itself.
Orthogonalised together, the large gradient of values leaves little of the step to queries and keys, and attention
learns to look things up late or not at all (tests/training/test_optimizer.py).

Muon (orthogonalised momentum) learnt two to three times as much as AdamW in the same steps at this size, and most of
all for the denoiser, which otherwise stays long on the plateau of single-token statistics. Its update is scaled to the
size of AdamW's, so that both share one learning rate (2502.16982).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from paradigms.models.stack import Model

MATRICES = (".qkv", ".out", ".gate_up", ".up", ".down", ".in_proj", ".q_up", ".kv_up")


class Optimizer:
    """Steps all parameters at one learning rate; its state can be saved as plain tensors and taken up again exactly."""

    def __init__(self, model: Model, *, weight_decay: float) -> None:
        self._joined: list[tuple[Tensor, Sequence[int] | None, list[Tensor]]] = []  # of several matrices: widths, views
        self._names: dict[Tensor, str] = {}
        fused = {
            f"{prefix}.{name}": widths
            for prefix, module in model.named_modules()
            for name, widths in getattr(module, "fused", {}).items()
        }
        matrices, others = [], []
        for name, parameter in model.named_parameters():
            parts, widths = {name: parameter}, fused.get(name)
            if name.endswith(MATRICES) and (parameter.dim() == 3 or widths is not None):
                views = _matrices(parameter.detach(), widths)
                parts = {f"{name}.{i}": nn.Parameter(view) for i, view in enumerate(views)}
                self._joined.append((parameter, widths, list(parts.values())))
            (matrices if name.endswith(MATRICES) else others).extend(parts.values())
            self._names |= {part: part_name for part_name, part in parts.items()}
        self._parts = (
            torch.optim.Muon(matrices, lr=0.0, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=0.0, weight_decay=0.0, betas=(0.9, 0.95)),
        )

    def step(self, rate: float) -> None:
        """Update the parameters from their gradients, and clear these."""
        for joined, widths, parts in self._joined:
            if joined.grad is not None:
                for part, grad in zip(parts, _matrices(joined.grad, widths), strict=True):
                    part.grad = grad
                joined.grad = None
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad()

    def tensors(self) -> dict[str, Tensor]:
        """State as name -> tensor."""
        return {f"{self._names[p]}/{key}": torch.as_tensor(value) for p, key, value in self._entries()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take up a state that `tensors` gave."""
        by_name = {name: parameter for parameter, name in self._names.items()}
        owner = {p: part for part in self._parts for group in part.param_groups for p in group["params"]}
        for name, value in tensors.items():
            parameter_name, key = name.rsplit("/", 1)
            parameter = by_name[parameter_name]
            owner[parameter].state[parameter][key] = value.to(parameter.device) if value.dim() else value

    def _entries(self) -> Iterator[tuple[Tensor, str, Tensor]]:
        for part in self._parts:
            for parameter, entry in part.state.items():
                for key, value in entry.items():
                    yield parameter, key, value


def _matrices(tensor: Tensor, widths: Sequence[int] | None) -> list[Tensor]:
    """Views of the matrices in a stack [N, in, out] or in one [in, out], whose columns are of `widths`."""
    stack = tensor.unbind() if tensor.dim() == 3 else (tensor,)
    return [part for one in stack for part in (one.split(list(widths), -1) if widths is not None else (one,))]
