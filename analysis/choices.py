"""A figure that a sweep calls for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

from analysis.frames import Frames


@dataclass(frozen=True)
class Choice:
    """File name, title, the function that draws it, and its sentence."""

    name: str
    title: str
    draw: Callable[[Frames], Figure]
    sentence: Callable[[Frames], str]
