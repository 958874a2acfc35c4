"""Arguments for the functions, as typed: ``key=value``, or ``name.key=value`` where several functions are there."""

from __future__ import annotations

import ast
import difflib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import UsageError
from .function import GENERATOR, STATISTICS, Function

_FORM = "for example --args scale=0.5, or --args scale_rewards.scale=0.5 with several functions"


def parse(texts: Sequence[str]) -> dict[str, Any]:
    """``["factor=0.5", "name=x"]`` as a dictionary: JSON values and Python literals as such, all else as text."""
    parsed: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not all(part.isidentifier() for part in name.split(".")) or name.count(".") > 1:
            raise UsageError(f"--args {text!r} is not key=value", hint=_FORM)
        if name in parsed:
            raise UsageError(f"--args gives {name} twice")
        parsed[name] = _value(value)
    return parsed


def _value(text: str) -> Any:
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return {"true": True, "false": False, "none": None}.get(text.strip().lower(), text)


def assign(functions: Sequence[Function], given: Mapping[str, Any]) -> list[Function]:
    """The functions with their arguments. A bare name goes to every function that takes it.

    Raises UsageError where none does.
    """
    args: list[dict[str, Any]] = [{} for _ in functions]
    for name, value in given.items():
        label, _, key = name.rpartition(".")
        chosen = [n for n, fn in enumerate(functions) if (fn.label == label if label else _takes(fn, key))]
        if not chosen:
            raise _nobody(functions, label, key)
        for number in chosen:
            # What is addressed to one function wins over what is said to all.
            if label or key not in args[number]:
                args[number][key] = value
    return [replace(fn, args={**fn.args, **own}) for fn, own in zip(functions, args)]


def _parameters(fn: Function) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(fn.load()).parameters
    except (TypeError, ValueError):
        return {}


def _takes(fn: Function, key: str) -> bool:
    parameters = _parameters(fn)
    return key in _names(fn) or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def _names(fn: Function) -> list[str]:
    return [
        name
        for name, one in list(_parameters(fn).items())[1:]  # the first is the data
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) and name not in (STATISTICS, GENERATOR)
    ]


def _nobody(functions: Sequence[Function], label: str, key: str) -> UsageError:
    if label:
        labels = [fn.label for fn in functions]
        return UsageError(f"--args {label}.{key}: there is no --fn called {label!r}", hint=f"there are {labels}")
    names = [name for fn in functions for name in _names(fn)]
    near = difflib.get_close_matches(key, names, n=1)
    if near:
        hint = f"did you mean {near[0]}?"
    else:
        hint = "; ".join(f"{fn.name} takes {', '.join(_names(fn)) or 'nothing'}" for fn in functions)
    whose = functions[0].name if len(functions) == 1 else "none of the functions"
    message = f"{whose} takes no argument {key!r}" if len(functions) == 1 else f"{whose} takes an argument {key!r}"
    return UsageError(message, hint=hint)
