"""The published rows, as numbers."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@cache
def rows(name: str) -> tuple[dict[str, Any], ...]:
    """Rows of `name`.csv; what reads as a number is one."""
    with open(HERE / f"{name}.csv", encoding="utf-8", newline="") as file:
        return tuple({key: _value(text) for key, text in row.items()} for row in csv.DictReader(file))


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
