"""Reversal (2207.02098): a string of symbols, then the same from its end.

The symbol read last is wanted first, and how far back the next one stands grows by two with every step: nothing that
went before in the answer points at it, as it does in copying. Deciding the answer from its end is copying again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paradigms.data.tasks.copying import Copying
from paradigms.data.tasks.task import Instance, Verdict


@dataclass(frozen=True, kw_only=True)
class Reversal(Copying):
    """Attributes: as of copying."""

    name: ClassVar[str] = "reversal"

    def wanted(self, string: Sequence[str]) -> tuple[str, ...]:
        return tuple(reversed(string))

    def check(self, instance: Instance, answer: Sequence[str]) -> Verdict:
        """As of copying, and "not reversed" for the string as it stood."""
        verdict = super().check(instance, answer)
        if not verdict.correct and tuple(answer) == instance.prompt[:-1]:
            return Verdict(False, verdict.share, "not reversed")
        return verdict
