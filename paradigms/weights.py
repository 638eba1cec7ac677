"""Where a cell's weights come from: the zoo that ships with the package, a training, a folder, or nowhere (random).

Each source is a config that names the identity of its weights before they are loaded (it enters the unit's key), says
what the weights may be used for, and loads them. A source that trains does so once: the result lies in a folder under a
hash of everything that determines it.
"""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from paradigms import zoo
from paradigms.data.pairs import PairRows
from paradigms.data.splits import Corpus
from paradigms.data.stream import Rows, token_stream
from paradigms.data.symbols import SymbolTokenizer
from paradigms.data.tasks.rows import TaskRows
from paradigms.data.tokenizers import Tokenizer
from paradigms.measure.environment import machine_line
from paradigms.measure.imported_code import imported_code_hash
from paradigms.models import checkpoint_files, pretrained
from paradigms.models.config import ModelConfig
from paradigms.models.network import NetworkConfig
from paradigms.models.transformers_model import TransformersConfig
from paradigms.records import content_hash
from paradigms.training import checkpoint
from paradigms.training.loop import Diverged, Report, Text, train
from paradigms.training.recipe import Recipe
from paradigms.training.start import Start

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CHECKPOINTS = Path("runs/checkpoints")
DIVERGED = "diverged.txt"
TRAINING_CODE = ("paradigms.training.loop", "paradigms.training.checkpoint", "paradigms.data.tasks.rows")


@dataclass(frozen=True)
class Weights:
    """A model ready to be measured.

    Attributes:
        model: float32, on the CPU; random weights where they were drawn. A native `Model`, or a `TransformersModel`,
            which is called alike.
        tokenizer: the one that the model was trained with.
        checkpoint: identity; different weights never share one.
        card: how they came about; empty where nobody trained them here.
    """

    model: Any
    tokenizer: Tokenizer
    checkpoint: str
    card: Mapping[str, Any]


class CorpusConfig(Protocol):
    def load(self) -> Corpus: ...


class TokenizerConfig(Protocol):
    @property
    def vocab_size(self) -> int: ...

    def load(self, corpus: Corpus, /) -> Tokenizer: ...


@dataclass(frozen=True)
class Wanted:
    """The model that a cell asks for, the text it lives on, and where it would be trained (`auto`, `cpu` or `cuda`)."""

    model: NetworkConfig
    corpus: CorpusConfig
    tokenizer: TokenizerConfig
    device: str = "auto"

    @property
    def native(self) -> ModelConfig:
        """The model as a network of the native stack, which weights of our own need.

        Raises:
            ValueError: it is another library's.
        """
        if not isinstance(self.model, ModelConfig):
            raise ValueError(
                "model=transformers runs another library's network, for which there are no weights of our own; "
                "use train=pretrained, or train=random measure=latency"
            )
        return self.model


@dataclass(frozen=True, kw_only=True)
class Zoo:
    """The small trained models that ship with the package."""

    source: str = "zoo"

    def trained_len(self, wanted: Wanted) -> int:
        return zoo.find(wanted.native)[1]["recipe"]["longest"]

    def checkpoint_id(self, wanted: Wanted) -> str:
        return zoo.find(wanted.native)[1]["weights_sha256"][:16]

    def load(self, wanted: Wanted, report: Report) -> Weights:
        folder, card = zoo.find(wanted.native)
        return _from_folder(folder, card, wanted, self.checkpoint_id(wanted))


@dataclass(frozen=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint folder of one's own: model.safetensors, tokenizer.json, card.json."""

    path: str
    source: str = "checkpoint"

    def trained_len(self, wanted: Wanted) -> int:
        return self._card(wanted)["recipe"]["longest"]

    def checkpoint_id(self, wanted: Wanted) -> str:
        return self._card(wanted)["weights_sha256"][:16]

    def load(self, wanted: Wanted, report: Report) -> Weights:
        return _from_folder(Path(self.path), self._card(wanted), wanted, self.checkpoint_id(wanted))

    def _card(self, wanted: Wanted) -> dict[str, Any]:
        card = checkpoint.read_card(Path(self.path))
        if difference := zoo.differences(wanted.native, checkpoint.model_config(card)):
            raise ValueError(f"train.path={self.path} holds another model than the config: {difference}")
        return card


@dataclass(frozen=True, kw_only=True)
class RandomWeights:
    """Fresh weights, for latency and memory only: what depends on the values drawn is refused.

    They are drawn where they are used, since a CPU takes many seconds for a billion. The same seed gives other numbers
    on a GPU than on a CPU, so the kind of device is part of their identity.
    """

    seed: int = 0
    source: str = "random"

    def trained_len(self, wanted: Wanted) -> None:
        """Nothing was learnt, so no length is beyond it."""

    def checkpoint_id(self, wanted: Wanted) -> str:
        model = wanted.model
        network = model.theirs if isinstance(model, TransformersConfig) else checkpoint.network_dict(wanted.native)
        return content_hash(["random", self.seed, network, _device(wanted).type])

    def load(self, wanted: Wanted, report: Report) -> Weights:
        tokenizer = _load_tokenizer(wanted.tokenizer, wanted.corpus)
        torch.manual_seed(self.seed)
        with torch.device(_device(wanted)):
            model = wanted.model.build()
        return Weights(model, tokenizer, self.checkpoint_id(wanted), {})


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """Weights that others have trained: a folder of transformers, a GGUF file, or a name on the Hugging Face hub."""

    path: str
    source: str = "pretrained"

    def trained_len(self, wanted: Wanted) -> int:
        return wanted.model.max_positions

    def checkpoint_id(self, wanted: Wanted) -> str:
        self._check(wanted)
        return checkpoint_files.weights_sha256(self.path)[:16]

    def load(self, wanted: Wanted, report: Report) -> Weights:
        self._check(wanted)
        model = wanted.model
        if isinstance(model, TransformersConfig):
            network = model.load()
        else:
            network = pretrained.load_native(self.path, wanted.native)
        tokenizer = _load_tokenizer(wanted.tokenizer, wanted.corpus)
        return Weights(network, tokenizer, self.checkpoint_id(wanted), {})

    def _check(self, wanted: Wanted) -> None:
        """Raise ValueError when the checkpoint is of another network than the config, or of a shorter one."""
        model = wanted.model
        if isinstance(model, TransformersConfig):
            if model.path != self.path:
                raise ValueError(f"train.path={self.path} is not model.path={model.path}; leave train.path out")
            return
        theirs = pretrained.native_config(self.path)
        if model.max_positions > theirs.max_positions:
            raise ValueError(
                f"model.max_positions={model.max_positions} is more than the {theirs.max_positions} that "
                f"{self.path} was made for; ask for less, or train=random measure=latency"
            )
        same_length = dataclasses.replace(theirs, max_positions=model.max_positions)
        if difference := zoo.differences(wanted.native, same_length):
            raise ValueError(f"train.path={self.path} holds another model than the config: {difference}")


@dataclass(frozen=True, kw_only=True)
class TrainedHere(Recipe):
    """Weights trained afresh by a recipe, once; a second run finds them in runs/checkpoints/."""

    source: str = "train"

    def trained_len(self, wanted: Wanted) -> int:
        if self.longest > wanted.native.max_positions:
            raise ValueError(
                f"train.lengths has {self.longest}, more than model.max_positions={wanted.native.max_positions}"
            )
        if self.anneal_tokens and (wanted.native.noise is None or wanted.native.canvas_block is not None):
            raise ValueError(
                f"train.anneal_tokens={self.anneal_tokens} opens the attention of a denoiser of the whole canvas "
                "(model.noise set, model.canvas_block=null); set it to 0 for this model"
            )
        if self.compile and wanted.native.recurrent and _device(wanted).type == "cpu":
            raise ValueError(
                f"train.compile=true with model.block={wanted.native.block} on a CPU: what torch (2.13) generates "
                "for the gradient of a scan writes beyond its memory and ends the process; set train.compile=false, or "
                "train on a GPU (device=cuda)"
            )
        experts = wanted.native.experts
        if self.micro_batches > 1 and experts is not None and experts.balance_loss:
            raise ValueError(
                f"train.micro_batches={self.micro_batches} with model.experts.balance_loss={experts.balance_loss}: how "
                "evenly experts are used is a figure of the whole batch; set one of them to 1 or 0"
            )
        self._start(wanted)
        return self.longest

    def checkpoint_id(self, wanted: Wanted) -> str:
        corpus, start = load_corpus(wanted.corpus), self._start(wanted)
        return content_hash(
            {
                "model": checkpoint.network_dict(wanted.native),
                "recipe": {**dataclasses.asdict(self), "start_from": None if start is None else start.identity},
                "corpus": corpus.sha256,
                "tokenizer": _load_tokenizer(wanted.tokenizer, wanted.corpus).sha256,
                "code": imported_code_hash(*TRAINING_CODE, type(wanted.corpus).__module__),
                "torch": torch.__version__,
                "device": _device(wanted).type,
                "machine": platform.machine(),
            }
        )

    def load(self, wanted: Wanted, report: Report) -> Weights:
        if self.trial_seed is None:
            folder = self._trained(wanted, report)
            return _from_folder(folder, checkpoint.read_card(folder), wanted, folder.name)
        chosen, trials = self._chosen_by_trials(wanted, report)
        weights = self._of(chosen, self.seed).load(wanted, report)
        card = {**weights.card, "trials_bits_per_byte": trials, "trial_seed": self.trial_seed}
        return dataclasses.replace(weights, checkpoint=self.checkpoint_id(wanted), card=card)

    def _trained(self, wanted: Wanted, report: Report) -> Path:
        """The folder of the checkpoint, trained if need be, by one process at a time.

        Raises:
            Diverged: now, or when it was tried before.
        """
        folder = CHECKPOINTS / self.checkpoint_id(wanted)
        with _alone(folder):
            if (said := folder / DIVERGED).exists():
                raise Diverged(said.read_text())
            if not (folder / checkpoint.CARD).exists():
                try:
                    self._train(wanted, folder, report)
                except Diverged as error:
                    said.write_text(str(error))
                    raise
        return folder

    def _of(self, rate: float, seed: int) -> TrainedHere:
        return dataclasses.replace(self, learning_rates=(rate,), seed=seed, trial_seed=None)

    def _chosen_by_trials(self, wanted: Wanted, report: Report) -> tuple[float, dict[str, float | None]]:
        """The best of the rates, each trained in full by the seed of the trials, and what each came to; None where it
        diverged.
        """
        assert self.trial_seed is not None
        trials: dict[str, float | None] = {}
        for number, rate in enumerate(self.learning_rates, 1):
            which = f"rate {rate:g}, {number} of {len(self.learning_rates)}"

            def told(what: str, done: int, total: int, which: str = which) -> None:
                report(f"{which}, {what}", done, total)

            try:
                card = checkpoint.read_card(self._of(rate, self.trial_seed)._trained(wanted, told))
                trials[str(rate)] = min(point["val_bits_per_byte"] for point in card["curve"])
            except Diverged:
                trials[str(rate)] = None
        found = {rate: value for rate in self.learning_rates if (value := trials[str(rate)]) is not None}
        if not found:
            raise ValueError(f"every rate of train.learning_rates={list(self.learning_rates)} diverged; add lower ones")
        return min(found, key=lambda rate: found[rate]), trials

    def _start(self, wanted: Wanted) -> Start | None:
        if self.start_from is None:
            return None
        in_zoo = self.start_from.startswith("zoo:")
        try:
            folder = zoo.folder(self.start_from.removeprefix("zoo:")) if in_zoo else Path(self.start_from)
            return Start.find(folder, wanted.native)
        except ValueError as error:
            raise ValueError(f"train.start_from={self.start_from}: {error}") from None

    def _text(self, corpus: Corpus, tokenizer: Tokenizer, split: str) -> Text:
        if corpus.prompt_lens is None:
            return token_stream(corpus, tokenizer, split)
        rows = answer_rows(corpus, tokenizer, split)
        if corpus.task is not None:  # whose rows have one length; of other pairs, short ones fill short rows
            rows.check(min(self.lengths), "the shortest of train.lengths")
        rows.check(self.longest, "the longest of train.lengths")
        return rows

    def _epochs(self, text: Text, num_steps: int) -> float | None:
        """None where every batch is new."""
        if isinstance(text, PairRows):
            return self.rows_until(num_steps) / len(text.ids)
        return self.tokens_until(num_steps) / len(text) if isinstance(text, np.ndarray) else None

    def _train(self, wanted: Wanted, folder: Path, report: Report) -> None:
        start = self._start(wanted)
        corpus, tokenizer = load_corpus(wanted.corpus), _load_tokenizer(wanted.tokenizer, wanted.corpus)
        streams = {split: self._text(corpus, tokenizer, split) for split in ("train", "validation", "heldout")}
        tensors = None if start is None else start.load(tokenizer)
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

        def run(name: str, num_tokens: int, rate: float):
            return train(
                wanted.native,
                self,
                streams,
                tokenizer,
                num_tokens=num_tokens,
                learning_rate=rate,
                device=_device(wanted),
                start=tensors,
                resume_from=folder / f"{name}.unfinished.safetensors",
                keep_in=folder / "steps" if name == "training" else None,
                report=lambda what, done, total: report(f"{name}: {what}", done, total),
            )

        trials: dict[str, float] = {}
        if len(self.learning_rates) > 1:
            for rate in self.learning_rates:
                trials[str(rate)] = run(f"trial at rate {rate:g}", self.probe_tokens, rate).best_bits_per_byte
        chosen = min(self.learning_rates, key=lambda rate: trials.get(str(rate), 0.0))
        trained = run("training", self.num_tokens, chosen)
        model = wanted.native.build()
        model.load_state_dict(trained.best)
        card = {
            "model": checkpoint.config_dict(wanted.native),
            "parameters": wanted.native.num_parameters(),
            "recipe": {**dataclasses.asdict(self), "longest": self.longest},
            "started_from": None if start is None else start.summary,
            "corpus": {"name": corpus.name, "sha256": corpus.sha256, "num_bytes": dict(corpus.num_bytes)},
            "tokenizer_sha256": tokenizer.sha256,
            "learning_rate": chosen,
            "trials_bits_per_byte": trials,
            "tokens_seen": trained.curve[-1]["tokens"],
            "rows_seen": self.rows_until(trained.curve[-1]["step"]),
            "epochs": self._epochs(streams["train"], trained.curve[-1]["step"]),
            "train_bytes_per_token": _bytes_per_token(streams["train"], tokenizer),
            "best_step": trained.best_step,
            "seconds": trained.seconds,
            "peak_bytes": trained.peak_bytes,
            "threads": torch.get_num_threads(),
            "machine": machine_line(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "started": started,
            "curve": trained.curve,
        }
        checkpoint.write_checkpoint(folder, trained.best, tokenizer, card)
        for rest in folder.glob("*.unfinished.safetensors"):
            rest.unlink()


def answer_rows(corpus: Corpus, tokenizer: Tokenizer, split: str) -> Rows:
    """A split of prompts with answers: drawn by its task, or what its files hold."""
    if corpus.task is None:
        return PairRows.of(corpus, tokenizer, split)
    assert isinstance(tokenizer, SymbolTokenizer), "Cell.check refuses a task with another tokenizer"
    return TaskRows(task=corpus.task, tokenizer=tokenizer, split=split)


def _bytes_per_token(text: Text, tokenizer: Tokenizer) -> float | None:
    """UTF-8 bytes of a token, begin- and end-of-text counted as it is in the loss; None of prompts with answers."""
    if not isinstance(text, np.ndarray):
        return None
    return float(np.array([len(token) for token in tokenizer.token_bytes])[text].mean())


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time; where files cannot be locked, as many as come."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _from_folder(folder: Path, card: Mapping[str, Any], wanted: Wanted, checkpoint_id: str) -> Weights:
    """The network of the card, which is the one wanted, computed as wanted."""
    model = checkpoint.load_model(folder, card, dataclasses.replace(wanted.native, target_parameters=None))
    return Weights(model, checkpoint.load_tokenizer(folder), checkpoint_id, card)


@lru_cache(maxsize=4)
def load_corpus(config: CorpusConfig) -> Corpus:
    """The corpus of a config, once a process."""
    return config.load()


@lru_cache(maxsize=4)
def _load_tokenizer(config: TokenizerConfig, corpus: CorpusConfig) -> Tokenizer:
    return config.load(load_corpus(corpus))


def _device(wanted: Wanted) -> torch.device:
    cuda = wanted.device == "cuda" or (wanted.device == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if cuda else "cpu")


WeightSource = Zoo | SavedCheckpoint | Pretrained | RandomWeights | TrainedHere
