"""The functions of a run, with all facts about them that the process that distributes the work needs.

Looking up a function runs the user's module, which usually loads torch. Where there are worker processes, one of them does it
(`examine_in_worker`), so that the process that distributes the work does not load torch.

Arguments are typed as ``key=value``, or as ``name.key=value`` for one of several functions.
"""

from __future__ import annotations

import ast
import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from ..datasets.user_code_old.loading import by_content
from ..datasets.user_code_old.process_state import CallerSettings
from ..errors import UsageError
from .function import GENERATOR, STATISTICS, Function

_FORM = "for example --args scale=0.5, or --args scale_rewards.scale=0.5 with several functions"


def parse_arguments(texts: Sequence[str]) -> dict[str, Any]:
    """``["factor=0.5", "name=x"]`` as a dictionary: JSON values and Python literals as such, all else as text."""
    parsed: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"--args {text!r} is not key=value", hint=_FORM)
        if name.count(".") > 1:
            function, _, key = name.rpartition(".")
            message = f"--args {text!r}: {function!r} names no function, which is its last part alone here"
            raise UsageError(message, hint=f"--args {function.rpartition('.')[2]}.{key}={value}")
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
    """The functions with their arguments. An argument without a function name goes to every function that takes it.

    Raises UsageError for an argument that no function takes.
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


Per = Literal["batch", "sample", "episode"]


@dataclass(frozen=True)
class FunctionChain:
    """Functions with their arguments, applied one after the other; small and picklable.

    ``per``: what each call gets. ``identities``: the functions' records in the lineage. ``needs_fit``: whether each needs a
    first pass. ``ignores_observations``: how many functions at the beginning of the chain do not read observations.
    ``settings``: those among `CallerSettings` that importing the functions has changed, in whichever process did it.
    """

    functions: tuple[Function, ...]
    per: Per
    identities: tuple[dict[str, Any], ...]
    needs_fit: tuple[bool, ...]
    ignores_observations: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder in which functions are looked up and to which names of files that they open are relative."""
        return self.functions[0].folder

    @property
    def names(self) -> list[str]:
        """The names of the functions, in their order."""
        return [fn.name for fn in self.functions]

    @property
    def last_name(self) -> str:
        """The name of the last function, which error messages about results give."""
        return self.functions[-1].name


def examine_functions(
    given: Sequence[str | Callable[..., Any]], args: Mapping[str, Any], folder: Path, per: Per | None
) -> FunctionChain:
    """Look up the functions and check their arguments.

    Raises FunctionNotFoundError, FunctionError for a module that cannot be imported, UsageError for objects that are no
    functions, for invalid arguments, and for a ``per`` that a function does not support.
    """
    before = CallerSettings.read()
    with by_content():  # inspecting a module may import another one
        functions = tuple(assign_arguments([Function.find(one, folder) for one in given], args))
        for number, fn in enumerate(functions):
            fn.check()
            if number and fn.numbers:
                message = f"{fn.name} asks for {' and '.join(sorted(fn.numbers))}, the numbers in what it reads"
                hint = "put it first in the chain, or run it after the others: on what they made"
                raise UsageError(message, hint=hint)
        functions = tuple(fn.resolve(one) for fn, one in zip(functions, given))
        ignoring = takewhile(lambda fn: fn.traits is not None and fn.traits.ignores_observations, functions)
        return FunctionChain(
            functions,
            _choose_per(functions, per),
            _records(functions),
            tuple(fn.fit is not None for fn in functions),
            sum(1 for _ in ignoring),
            CallerSettings.read().changes(before),
        )


def _records(functions: Sequence[Function]) -> tuple[dict[str, Any], ...]:
    """The functions' records. Raises UsageError if two import different files under one name: only one can be loaded."""
    records, known = tuple(fn.record() for fn in functions), dict[str, str]()
    for fn, record in zip(functions, records):
        for label, digest in record.get("files", {}).items():
            if known.setdefault(label, digest) != digest:
                message = f"{fn.name} imports another {label} than a function before it"
                raise UsageError(message, hint="rename one of the two files, or run the functions one after the other")
    return records


def examine_in_worker(
    given: Sequence[str], args: Mapping[str, Any], folder: Path, per: Per | None, chunk: object, on_block: object
) -> dict[str, Any]:
    """`examine` as the work of an engine; the chunk is not used. Returns ``{chain}``."""
    return {"chain": examine_functions(given, args, folder, per)}


def _choose_per(functions: Sequence[Function], requested: Per | None) -> Per:
    """``batch``, ``sample`` or ``episode``: as requested, or as the functions need it."""
    needs = {fn.name: fn.traits.per for fn in functions if fn.traits is not None}
    for name, per in needs.items():
        if requested is not None and per == "episode" and requested != "episode":
            message = f"{name} needs whole episodes, not --per {requested}"
            raise UsageError(message, hint="leave --per out, or use --per episode")
        if requested == "sample":
            raise UsageError(f"{name} processes many steps at once, not --per sample", hint="leave --per out")
    return requested or ("episode" if "episode" in needs.values() else "batch")
