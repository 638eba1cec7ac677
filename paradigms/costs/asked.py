"""What a person asks to be predicted: overrides as `python -m paradigms` takes them, and words of this command's own.

    device=h200             a datasheet by name; cpu, auto and cuda are this machine, calibrated
    num_devices=2           so many of them, tensor parallel
    dtype=, execution=      short for device.dtype=, device.execution=
    model=FOLDER            the config.json of somebody's model, weights or not
    tokens_per_forward=2.5  for decoders whose forwards the text decides

Several values, separated by commas, make a grid. Nothing of the text, the tokenizer or the weights is looked at.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paradigms.build import build, suggest
from paradigms.cli import compose, explain
from paradigms.costs.datasheet import datasheet
from paradigms.costs.prediction import ITEMSIZE, DeviceModel
from paradigms.costs.sheets import SHEETS
from paradigms.models.config import ModelConfig
from paradigms.work import BatchShape
from paradigms.workload import EXECUTIONS

HERE = ("auto", "cpu", "cuda")  # this machine
OWN = ("num_devices", "dtype", "execution", "tokens_per_forward")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One cell, as it was asked for.

    Attributes:
        name: what was swept, for people.
        config: composed; `with_value` changes it.
        device, dtype, execution: where and how it would run.
        tokens_per_forward: see `prediction.predict`.
    """

    name: str
    config: dict[str, Any]
    device: DeviceModel
    dtype: str
    execution: str
    tokens_per_forward: float | None = None
    built: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def model(self) -> ModelConfig:
        return self._part("model")

    @property
    def decoder(self) -> Any:
        return self._part("decoder")

    @property
    def batch(self) -> BatchShape:
        work = self._part("workload")
        return BatchShape(rows=work.batch_size, prompt_len=work.prompt_len, output_len=work.output_len)

    @property
    def pace(self) -> float | None:
        """Tokens per forward, of a decoder that asks for it."""
        return self.tokens_per_forward if self.decoder.depends_on_values else None

    def check(self) -> None:
        """Raise ValueError for what no such model or decoder can do."""
        work, model = self._part("workload"), self.model
        self.decoder.check(model, output_len=work.output_len)
        if work.num_gaps:
            raise ValueError(f"workload.num_gaps={work.num_gaps} is not predicted; use workload=fixed_length")
        if work.total_len > model.max_positions:
            raise ValueError(
                f"workload.prompt_len={work.prompt_len} + workload.output_len={work.output_len} is {work.total_len} "
                f"positions; the model has model.max_positions={model.max_positions}: ask for less, or raise it"
            )

    def has(self, key: str) -> bool:
        """Whether its config has such a key."""
        node: Any = self.config
        for part in key.split("."):
            if not isinstance(node, dict) or part not in node:
                return False
            node = node[part]
        return True

    def with_value(self, key: str, value: Any) -> Asked:
        """The same with another value of a key that it has."""
        assert self.has(key)
        config = copy.deepcopy(self.config)
        *parents, last = key.split(".")
        node: Any = config
        for part in parents:
            node = node[part]
        node[last] = value
        kept = {name: part for name, part in self.built.items() if name != parents[0]}
        return Asked(
            name=self.name,
            config=config,
            device=self.device,
            dtype=self.dtype,
            execution=self.execution,
            tokens_per_forward=self.tokens_per_forward,
            built=kept,
        )

    def _part(self, name: str) -> Any:
        if name not in self.built:
            self.built[name] = build(self.config[name], name)
        return self.built[name]


def asked(overrides: Sequence[str]) -> list[Asked]:
    """Cells of a grid, checked.

    Raises:
        ValueError: a bad override, an impossible cell, or a device that nothing is known of.
    """
    given = {line.partition("=")[0]: line for line in overrides}  # the last of a key counts, as for hydra
    if "experiment" in given:
        raise ValueError(
            f"{given['experiment']} is a sweep, which `predict-sweep` predicts on this machine; name cells here, such "
            "as paradigm=ar,ssm workload.output_len=64,256"
        )
    options = [[(key, value) for value in _values(line)] for key, line in given.items()]
    swept = [axis[0][0] for axis in options if len(axis) > 1]
    return [_cell(dict(pairs), swept) for pairs in itertools.product(*options)]


def _cell(values: dict[str, str], swept: Sequence[str]) -> Asked:
    own = {key: values.pop(key) for key in OWN if key in values}
    name = values.get("device", "auto")
    if name in SHEETS:
        del values["device"]
    elif name not in HERE:
        raise ValueError(f"device={name} is unknown ({suggest(name, [*HERE, *SHEETS])})")
    for short in ("dtype", "execution"):
        if short in own:
            values[f"device.{short}"] = own[short]
    _one_of("dtype", values.get("device.dtype"), tuple(ITEMSIZE))
    _one_of("execution", values.get("device.execution"), EXECUTIONS)
    path, limit = _foreign(values)
    try:
        config = compose([f"{key}={value}" for key, value in values.items()])
    except Exception as error:
        raise ValueError(explain(error)) from error
    if path is not None:
        config["model"] = {
            "_target_": "paradigms.models.pretrained.native_config",
            "path": path,
            "max_positions": limit,
        }
        _readable(config["model"], path)
    device = _device(name, config["device"]["threads"], own.get("num_devices"))
    dtype = config["device"]["dtype"] if name in HERE or "device.dtype" in values else SHEETS[name].dtype
    labels = {"device": name, "model": path, "paradigm": str(config["paradigm"]["name"]), **own, **values}
    rest = [f"{re.split('[./]', key)[-1]}={labels[key]}" for key in swept if key != "paradigm"]
    cell = Asked(
        name=", ".join([str(config["paradigm"]["name"]), *rest]),
        config=config,
        device=device,
        dtype=dtype,
        execution=config["device"]["execution"],
        tokens_per_forward=_number("tokens_per_forward", own.get("tokens_per_forward"), float),
    )
    cell.check()
    return cell


def _foreign(values: dict[str, str]) -> tuple[str | None, int | None]:
    """Folder of somebody's model, if one was asked for, and its longest text; both are taken out of the values."""
    value = values.get("model", "")
    place = Path(value).expanduser()
    if not ("/" in value or place.name == "config.json"):
        return None, None
    if place.name == "config.json":
        if not place.is_file():
            raise ValueError(f"model={value} does not exist; give a config.json of transformers, or its folder")
        place = place.parent
    del values["model"]
    limit = _number("model.max_positions", values.pop("model.max_positions", None), int)
    if others := [key for key in values if key.startswith("model.")]:
        raise ValueError(f"{others[0]} cannot be set, since model={value} says it; change a copy of its config.json")
    return str(place), limit


def _readable(model: dict[str, Any], path: str) -> None:
    """Raise ValueError for a config that cannot be predicted, whatever its library raises."""
    try:
        build(model, "model")
    except ValueError as error:
        reason = str(error).partition("; model=transformers")[0]
        if reason != str(error):  # what would run it is no help here
            reason += ", and only models of that stack are predicted"
        raise ValueError(reason) from error
    except Exception as error:  # transformers checks configs with errors of its own
        raise ValueError(f"model={path}: its config is not valid ({' '.join(str(error).split())})") from error


def _device(name: str, threads: int, num_devices: str | None) -> DeviceModel:
    number = 1 if num_devices is None else _number("num_devices", num_devices, int)
    if name in SHEETS:
        return datasheet(name, num_devices=number)
    if number != 1:
        allowed = ", ".join(SHEETS)
        raise ValueError(
            f"num_devices={number} is for datasheets; device={name} is this machine. Give one of {allowed}"
        )
    from paradigms.costs.this_machine import device_of
    from paradigms.measure.environment import gpu_names

    return device_of("cuda" if name == "cuda" or (name == "auto" and gpu_names()) else "cpu", threads)


def _values(line: str) -> list[str]:
    """Values of an override: commas outside of brackets and quotes separate them."""
    key, equals, text = line.partition("=")
    if not equals or not key or line.startswith("-"):
        raise ValueError(f"cannot read {line!r}; write key=value, and quote what the shell would change: 'key=[1,2]'")
    parts, depth, quote = [""], 0, ""
    for char in text:
        if char in "\"'" and quote in ("", char):
            quote = "" if quote else char
        depth += (not quote) * ((char in "[{(") - (char in "]})"))
        if char == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _number(key: str, text: str | None, kind: type) -> Any:
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{key}={text} is no number; it must be {what}") from None


def _one_of(key: str, value: str | None, allowed: Sequence[str]) -> None:
    if value is not None and value not in allowed:
        raise ValueError(f"{key}={value} is unknown ({suggest(value, list(allowed))})")
