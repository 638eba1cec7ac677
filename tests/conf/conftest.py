"""Configs as a sweep composes them, and small files for the corpora that need one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from hydra.core.config_loader import ConfigLoader
from hydra.types import RunMode
from omegaconf import DictConfig


@pytest.fixture(scope="module")
def compose(loader: ConfigLoader) -> Callable[..., DictConfig]:
    """Whole config, as a sweep composes it before it knows its cells."""

    def run(*overrides: str) -> DictConfig:
        return loader.load_configuration("config", list(overrides), run_mode=RunMode.MULTIRUN)

    return run


@pytest.fixture(scope="module")
def texts(home: Path) -> dict[str, Path]:
    """Small files for the corpora that need one."""
    import pandas as pd

    folder = home / "texts"
    folder.mkdir(exist_ok=True)
    paths = {kind: folder / f"small.{kind}" for kind in ("txt", "json", "parquet")}
    paths["txt"].write_text("\n\n".join(tiny.texts()))
    paths["json"].write_text("\n".join(json.dumps({"text": text}) for text in tiny.texts()))
    pd.DataFrame({"text": tiny.texts()}).to_parquet(paths["parquet"])
    paths["pairs"] = folder / "pairs.jsonl"
    paths["pairs"].write_text("\n".join(json.dumps({"prompt": text, "answer": text[:9]}) for text in tiny.texts()))
    return {"local_text": paths["txt"], "local_pairs": paths["pairs"]} | {
        f"local_{kind}": paths[kind] for kind in ("json", "parquet")
    }
