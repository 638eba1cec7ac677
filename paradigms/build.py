"""From a resolved config to objects: every node with a `_target_` becomes one call of it.

The same dataclasses would come out of hydra's `instantiate`, but a person who typed `workload.output_len=abc` would
be told of a comparison deep inside. Here every value is checked against the annotation of its field first, and an
error names the dotted key as it is typed on the command line. It also needs no hydra, so that measuring children
start without it.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any


def build(config: Any, path: str = "") -> Any:
    """Object that a config describes.

    Args:
        config: JSON-able value; mappings with a `_target_` (dotted name of a class or function) become a call of it.
        path: dotted key of `config`, for errors.

    Raises:
        ValueError: an unknown target or key, a missing key or a value of the wrong type; also whatever ValueError the
            target itself raises.
    """
    if isinstance(config, Mapping):
        values = {key: build(value, _join(path, key)) for key, value in config.items() if not key.startswith("_")}
        if "_target_" not in config:
            return values
        target = find(config["_target_"])
        _check(target, values, path)
        return target(**values)
    if isinstance(config, list | tuple):
        return [build(value, f"{path}[{index}]") for index, value in enumerate(config)]
    return config


def find(name: str) -> Callable[..., Any]:
    """Class or function of a dotted name.

    Raises:
        ValueError: there is none.
    """
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:cut])
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and (module == error.name or module.startswith(f"{error.name}.")):
                continue  # the name reaches into a class: try a shorter module
            raise
        for part in parts[cut:]:
            found = getattr(found, part, None)
        if callable(found):
            return found
        break
    raise ValueError(f"_target_={name!r} names nothing that can be called; give package.module.Name")


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _check(target: Callable[..., Any], values: Mapping[str, Any], path: str) -> None:
    """Keys and types of one call, against the signature of what is called."""
    parameters = _parameters(target)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [key for key in values if key not in parameters]
    if unknown and not takes_any:
        raise ValueError(f"{_join(path, unknown[0])} is unknown ({suggest(unknown[0], list(parameters))})")
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        )
        if required and name not in values:
            raise ValueError(f"{_join(path, name)} is missing; {getattr(target, '__name__', target)} needs it")
    hints = _hints(target)
    for name, value in values.items():
        if name in hints and not _fits(value, hints[name]):
            raise ValueError(f"{_join(path, name)}={value!r} has the wrong type: it must be {_words(hints[name])}")


@cache
def _parameters(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(target).parameters


@cache  # a sweep of thousands of cells builds the same few classes
def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(target)
    except NameError:  # annotations that exist for type checkers only
        return {}


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is typing.Literal:
        return value in arguments
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (None, types.NoneType):
        return value is None
    plain = origin or hint
    if not inspect.isclass(plain) or getattr(plain, "_is_protocol", False):
        return True  # Any, type variables, protocols: the target decides
    if issubclass(plain, Sequence) and not issubclass(plain, str | bytes):
        inner = arguments[0] if arguments else Any
        same = plain is not tuple or (len(arguments) == 2 and arguments[1] is Ellipsis)
        return isinstance(value, list | tuple) and (not same or all(_fits(item, inner) for item in value))
    return isinstance(value, plain)


def _words(hint: Any) -> str:
    names = {
        int: "a whole number",
        float: "a finite number",
        bool: "true or false",
        str: "text",
        types.NoneType: "null",
    }
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(argument) for argument in arguments)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, arguments))
    if inspect.isclass(origin or hint) and issubclass(origin or hint, list | tuple):
        return f"a list, each item {_words(arguments[0])}" if arguments and arguments[0] in names else "a list"
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def suggest(name: str, allowed: Sequence[str]) -> str:
    """What a person may have meant: `allowed: ar, ssm; did you mean ssm?`"""
    close = difflib.get_close_matches(name, allowed, n=1)
    return f"allowed: {', '.join(allowed)}" + (f"; did you mean {close[0]}?" if close else "")
