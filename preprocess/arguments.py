"""Arguments of the functions as typed: ``key=value``, or ``name.key=value`` for one of several functions."""

from __future__ import annotations

import ast
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import UsageError
from .function import GENERATOR, STATISTICS, Function

_FORM = "for example --args scale=0.5, or --args scale_rewards.scale=0.5 with several functions"


def parse_arguments(texts: Sequence[str]) -> dict[str, Any]:
    """``["factor=0.5", "name=x"]`` as a dictionary: JSON values and Python literals as such, all else as text."""
    parsed: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not all(part.isidentifier() for part in name.split(".")) or name.count(".") > 1:
            raise UsageError(f"--args {text!r} is not key=value", hint=_FORM)
        if name in parsed:
            raise UsageError(f"--args gives {name} twice")
        parsed[name] = _parse_value(value)
    return parsed


def _parse_value(text: str) -> Any:
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return {"true": True, "false": False, "none": None}.get(text.strip().lower(), text)


def assign_arguments(functions: Sequence[Function], given: Mapping[str, Any]) -> list[Function]:
    """The functions with their arguments. A name without a function goes to every function that takes it.

    Raises UsageError where none does.
    """
    args: list[dict[str, Any]] = [{} for _ in functions]
    for name, value in given.items():
        label, _, key = name.rpartition(".")
        chosen = [n for n, fn in enumerate(functions) if (fn.label == label if label else _takes(fn, key))]
        if not chosen:
            raise _not_taken(functions, label, key)
        for number in chosen:
            # An argument for one function takes precedence over one for all.
            if label or key not in args[number]:
                args[number][key] = value
    return [replace(fn, args={**fn.args, **own}) for fn, own in zip(functions, args)]


def _takes(fn: Function, key: str) -> bool:
    return key in _names(fn) or any(one.kind is one.VAR_KEYWORD for one in fn.parameters.values())


def _names(fn: Function) -> list[str]:
    return [
        name
        for name, one in list(fn.parameters.items())[1:]  # the first is the TensorDict
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        and name != GENERATOR
        and (name != STATISTICS or fn.traits is None)
    ]


def _not_taken(functions: Sequence[Function], label: str, key: str) -> UsageError:
    if label:
        labels = [fn.label for fn in functions]
        return UsageError(f"--args {label}.{key}: there is no function called {label!r}", hint=f"there are {labels}")
    near = difflib.get_close_matches(key, [name for fn in functions for name in _names(fn)], n=1)
    if near:
        hint = f"did you mean {near[0]}?"
    else:
        hint = "; ".join(f"{fn.name} takes {', '.join(_names(fn)) or 'nothing'}" for fn in functions)
    if len(functions) == 1:
        return UsageError(f"{functions[0].name} takes no argument {key!r}", hint=hint)
    return UsageError(f"none of the functions takes an argument {key!r}", hint=hint)
