"""The functions of a run: what they are called, how they are identified, found, given their arguments and called.

A function is given as text (``pkg.mod:fn``, ``file.py:fn``, ``rbdata:NAME``) or as a Python object. Text is identified by the
files that it comes from (`datasets.user_code`), a built-in function by its name and the version of rbdata. An object has no
identity. Functions are found and called in worker processes (`load_functions`); the process that distributes the work knows
what they say of them (`Chain`), so that it need not import torch.

Arguments are typed as ``key=value``, or as ``name.key=value`` for one of several functions.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

from ..datasets import user_code
from ..errors import UsageError
from .functions import find_builtin
from .functions.traits import Fit, Traits, traits_of
from .request import BUILTIN, Given, Per, PreprocessRequest

#: Arguments that rbdata passes to functions whose signature names them.
GENERATOR, STATISTICS = "generator", "statistics"
#: Numbers of the episode and the step: passed only where the parameter has no default, as ``step`` may mean something else.
EPISODE, STEP = "episode", "step"

_FORM = "for example --args scale=0.5, or --args scale_rewards.scale=0.5 with several functions"


# -- identity ------------------------------------------------------------------------------------------------------------


def describe(given: Sequence[Given], args: Mapping[str, Any], folder: Path) -> tuple[list[dict[str, Any]], bool]:
    """A record of each function, ``{function, files}``; and whether these and the arguments identify the work: all functions
    are text, with arguments in JSON. Nothing is imported.

    Raises UsageError for text that names nothing.
    """
    records: list[dict[str, Any]] = []
    for one in given:
        records.append({"function": name_of(one)})
        if isinstance(one, str) and not one.startswith(BUILTIN):
            records[-1]["files"] = user_code.identity(one, folder)
    return records, all(isinstance(one, str) for one in given) and _is_json(args)


def name_of(given: Given) -> str:
    """A text is its name, that of an object is ``module:name``."""
    if isinstance(given, str):
        return given
    fn: Any = given
    while isinstance(fn, functools.partial):
        fn = fn.func
    named = fn if hasattr(fn, "__qualname__") else type(fn)
    return f"{named.__module__}:{named.__qualname__}"


def _is_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def to_json(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for the lineage: those that JSON cannot express as the name of their type."""
    return {key: value if _is_json(value) else f"a {type(value).__qualname__}" for key, value in sorted(args.items())}


# -- functions -----------------------------------------------------------------------------------------------------------


@dataclass
class Function:
    """A function that was found, with its arguments; ``statistics`` of its first pass, if it needs one."""

    name: str
    fn: Callable[..., Any]
    args: dict[str, Any]
    statistics: dict[str, Any] | None = None

    @property
    def label(self) -> str:
        """The last part of the name, by which ``--args`` may address the function."""
        return self.name.rpartition(":")[2].rpartition(".")[2]

    @cached_property
    def traits(self) -> Traits | None:
        """What a built-in function declares about itself; None for any other."""
        return traits_of(self.fn)

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters of its signature; empty for functions written in C without one."""
        try:
            return inspect.signature(self.fn).parameters
        except (TypeError, ValueError):
            return {}

    @property
    def is_own(self) -> bool:
        """Whether it is the user's code, which may return memory that it uses again, and raise anything."""
        return self.traits is None

    @cached_property
    def takes(self) -> frozenset[str]:
        """Which of GENERATOR, EPISODE and STEP it gets."""
        asked = {name for name in (GENERATOR, EPISODE, STEP) if name in self.parameters and name not in self.args}
        required = {name for name in asked if self.parameters[name].default is inspect.Parameter.empty}
        return frozenset(required if self.traits is None else ()) | (asked & {GENERATOR})

    @property
    def fit(self) -> Fit | None:
        """The first pass that it needs with these arguments."""
        fit = self.traits.fit if self.traits else None
        return fit if fit is not None and fit.needed(**self.args) else None

    @cached_property
    def _passed(self) -> dict[str, Any]:
        return self.args if self.statistics is None else {**self.args, STATISTICS: self.statistics}

    def __call__(self, td: Any, **given: Any) -> Any:
        """The function's result; ``given`` are the arguments that it `takes`."""
        return self.fn(td, **given, **self._passed)

    def map_states(self, name: str, rows: Any) -> Any:
        """Return the state rows ``[n, ...]`` of one leaf, mapped; only where `Traits.applies_to_states`."""
        assert self.traits is not None and self.traits.map_states is not None
        return self.traits.map_states(name, rows, **self._passed)

    def check(self) -> None:
        """Raise UsageError unless the function can be called with its arguments."""
        if self.traits is not None:
            self.traits.check(**self.args)
        elif self.parameters:
            signature = inspect.signature(self.fn)
            try:
                signature.bind(None, **{**dict.fromkeys(self.takes), **self.args})
            except TypeError as error:
                args = f" and {', '.join(self.args)}" if self.args else ""
                message = f"{self.name} cannot be called with one TensorDict{args}: {error}"
                raise UsageError(message, hint=f"its signature is {self.label}{signature}") from error
            for name, value in self.args.items():
                known = self.parameters.get(name)
                kind = type(known.default) if known and "str" not in str(known.annotation) else None
                if isinstance(value, str) and kind in (bool, int, float):  # any text counts as true, "no" too
                    message = f"{self.name}: argument {name} is the text {value!r}, and its default is of type {kind.__name__}"
                    raise UsageError(message, hint="write true or false" if kind is bool else "write a number")

    def names(self) -> list[str]:
        """Return the arguments that ``--args`` may set."""
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        passed = (GENERATOR, STATISTICS) if self.traits else (GENERATOR,)
        known = list(self.parameters.items())[1:]  # the first is the TensorDict
        return [name for name, one in known if one.kind in kinds and name not in passed]

    def accepts(self, key: str) -> bool:
        """Return whether ``--args`` may set this argument."""
        return key in self.names() or any(one.kind is one.VAR_KEYWORD for one in self.parameters.values())


def load_functions(given: Sequence[Given], args: Mapping[str, Any], folder: Path) -> list[Function]:
    """Return the functions with their arguments, checked.

    Raises what `user_code.find` raises, and UsageError for objects that cannot be called and for arguments that do not fit.
    """
    functions = [_find(one, folder) for one in given]
    _assign(functions, args)
    for number, fn in enumerate(functions):
        fn.check()
        numbers = sorted(fn.takes - {GENERATOR})
        if number and numbers:
            message = f"{fn.name} asks for {' and '.join(numbers)}, the numbers in what it reads"
            hint = "put it first in the chain, or run it after the others: on what they made"
            raise UsageError(message, hint=hint)
    return functions


def _find(given: Given, folder: Path) -> Function:
    fn: Any = given
    if isinstance(given, str):
        fn = find_builtin(given[len(BUILTIN) :]) if given.startswith(BUILTIN) else user_code.find(given, folder)
    if not callable(fn):
        message = f"{given} is of type {type(fn).__name__} and cannot be called"
        raise UsageError(message, hint="write pkg.mod:function, file.py:function, or rbdata:NAME")
    return Function(name_of(given), fn, {})


# -- arguments -----------------------------------------------------------------------------------------------------------


def parse_arguments(texts: Sequence[str]) -> dict[str, Any]:
    """``["factor=0.5", "name=x"]`` as a dictionary: JSON values and Python literals as such, all else as text."""
    parsed: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        parts = name.strip().split(".")
        if not equals or len(parts) > 2 or not all(map(str.isidentifier, parts)):
            raise UsageError(f"--args {text!r} is not key=value", hint=_FORM)
        if name.strip() in parsed:
            raise UsageError(f"--args gives {name.strip()} twice")
        parsed[name.strip()] = _parse_value(value)
    return parsed


def _parse_value(text: str) -> Any:
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return {"true": True, "false": False, "none": None}.get(text.strip().lower(), text)


def _assign(functions: Sequence[Function], given: Mapping[str, Any]) -> None:
    """Give arguments to every function that takes them, those for one function after those for all.

    Raises UsageError for an argument that no function takes.
    """
    for name, value in sorted(given.items(), key=lambda one: "." in one[0]):
        label, _, key = name.rpartition(".")
        chosen = [fn for fn in functions if (fn.label == label if label else fn.accepts(key))]
        for fn in chosen:
            fn.args[key] = value
        if label and not chosen:
            labels = [fn.label for fn in functions]
            raise UsageError(f"--args {name}: there is no function called {label!r}", hint=f"there are {labels}")
        if not chosen:
            near = difflib.get_close_matches(key, [one for fn in functions for one in fn.names()], n=1)
            taken = (f"{fn.name} takes {', '.join(fn.names()) or 'nothing'}" for fn in functions)
            who = f"{functions[0].name} takes no" if len(functions) == 1 else "none of the functions takes an"
            hint = f"did you mean {near[0]}?" if near else "; ".join(taken)
            raise UsageError(f"{who} argument {key!r}", hint=hint)


# -- what the process that distributes the work knows of them ------------------------------------------------------------


@dataclass(frozen=True)
class Chain:
    """Facts about the functions of a run, in order; small and picklable.

    ``per``: what each call gets. ``args``: those of each function, as JSON. ``fits``: whether it needs a first pass.
    ``ignoring``: how many functions at the beginning of the chain work without observations, on steps and episodes as stored.
    """

    names: tuple[str, ...]
    labels: tuple[str, ...]
    args: tuple[dict[str, Any], ...]
    per: Per
    fits: tuple[bool, ...]
    ignoring: int


def chain_of(functions: Sequence[Function], request: PreprocessRequest) -> Chain:
    """Return what there is to know of loaded functions. Raises UsageError for a ``per`` that a function does not support."""
    per = _choose_per(functions, request.per)
    ignoring = takewhile(lambda fn: fn.traits is not None and fn.traits.ignores_observations, functions)
    return Chain(
        tuple(fn.name for fn in functions),
        tuple(fn.label for fn in functions),
        tuple(to_json(fn.args) for fn in functions),
        per,
        tuple(fn.fit is not None for fn in functions),
        0 if request.windows else len(list(ignoring)),
    )


def _choose_per(functions: Sequence[Function], requested: Per | None) -> Per:
    """``batch``, ``sample`` or ``episode``: as requested, or as the functions need it."""
    needs = {fn.name: fn.traits.per for fn in functions if fn.traits is not None}
    for name, need in needs.items():
        if need == "episode" and requested not in (None, "episode"):
            message = f"{name} needs whole episodes, not --per {requested}"
            raise UsageError(message, hint="leave --per out, or use --per episode")
        if requested == "sample":
            raise UsageError(f"{name} processes many steps at once, not --per sample", hint="leave --per out")
    return requested or ("episode" if "episode" in needs.values() else "batch")


@dataclass(frozen=True, eq=False)
class Job:
    """What workers need of a run; functions that are objects are pickled with it.

    - ``path``, ``content``: the dataset that is read, where ``request.dataset`` is None. ``batch``: steps of a batch.
    - ``code``: the folder in which functions are found.
    - ``statistics``: those that are known, by the number of their function, as text.
    """

    request: PreprocessRequest
    path: Path
    content: str
    batch: int
    code: Path
    statistics: Mapping[str, dict[str, Any]]


# -- on the way to workers ---------------------------------------------------------------------------------------------------


def pickled(value: Any) -> bytes:
    """For workers. Raises UsageError for functions and arguments that cannot be sent."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:
        message = f"a function or an argument cannot be sent to worker processes: {type(error).__name__}: {error}"
        hint = "define it in a file and give it as 'file.py:name', or work in this process: procs=0"
        raise UsageError(message, hint=hint) from error
    return data
