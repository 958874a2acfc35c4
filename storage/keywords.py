"""Keyword arguments of public functions: an error for an unexpected one suggests similar names, and hints name arguments of
Python instead of options of the command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from importlib import import_module
from inspect import Parameter, formatannotation, signature
from numbers import Integral
from types import ModuleType
from typing import Any, TypeVar, get_type_hints

from ..errors import ArgumentTypeError, RbdataError, UsageError

Function = TypeVar("Function", bound=Callable[..., Any])


#: Arguments for which an empty text, as of a variable that is not set, would count as none, or as the current folder.
_NEVER_EMPTY = frozenset({"cache_dir", "environment", "identity", "mirror", "path", "root"})


def check_keywords(function: Function) -> Function:
    """A decorator: an unexpected keyword raises ArgumentTypeError with a hint that suggests similar names.

    Errors that the function raises name its arguments instead of options of the command line (`arguments_for_options`).
    For functions without variadic arguments; signature, annotations and docstring are kept.
    """
    by_keyword = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    parameters = signature(function).parameters
    names = [name for name, parameter in parameters.items() if parameter.kind in by_keyword]

    @wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        for name in options:
            if name not in names:
                shown = function.__qualname__.removesuffix(".__init__")
                message = f"{shown}() got an unexpected keyword argument {name!r}"
                arguments = [one for one in names if one != "self"]
                raise ArgumentTypeError(message, hint=nearest(name, arguments) or f"it takes {', '.join(arguments)}")
        for name, value in (*zip(parameters, args), *options.items()):
            if name in _NEVER_EMPTY and isinstance(value, str) and not value:
                raise UsageError(f"{name} is empty", hint="leave it out, or give it a value (. is the current folder)")
        try:
            return function(*args, **options)
        except RbdataError as error:
            error.reword(lambda text: arguments_for_options(text, parameters, options))
            raise

    return checked  # type: ignore[return-value]


def with_options(options: type, *origins: Callable[..., Any]) -> Callable[[Function], Function]:
    """`check_keywords` for a function that ends in ``**options: Unpack[...]``: its signature shows the keys of that TypedDict.

    Defaults are taken from the ``origins``, the functions that receive the options; None if none of them has the argument.
    """
    defaults = {name: one.default for origin in origins for name, one in signature(origin).parameters.items()}

    def decorate(function: Function) -> Function:
        shown = signature(function)
        own = [one for one in shown.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        more = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=hint)
            for name, hint in get_type_hints(options).items()
        ]
        function.__signature__ = shown.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return check_keywords(function)

    return decorate


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    """The value of an argument that is a whole number, NumPy's included. Raises UsageError for anything else."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if least <= number and (most is None or number <= most):
            return number
    bounds = f"of at least {least}" + ("" if most is None else f" and at most {most:,}")
    raise UsageError(f"{name} must be a whole number {bounds}, not {value!r}")


class LazyModule(ModuleType):
    """A heavy module that annotations name, imported when a name in it is first used (`get_type_hints` does that).

    Type checkers read the real import beside it, under ``TYPE_CHECKING``.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


#: An option of the command line and the word after it; commands in backticks are skipped.
_OPTION = re.compile(r"(`[^`]*`)|(?<![\w-])--([a-z]+(?:-[a-z]+)*)(?: ((?:[^\s,;)]|,(?=\w))+))?")
#: Commands that are functions of the Python API, with the same first argument.
_CALLS = ("download", "inspect", "search", "verify")
#: Words that are values instead of prose: N, 0-4,7, rbdata:to_float, scale=0.5.
_VALUE = re.compile(r"[A-Z]+|.*[:/=\d].*")


def arguments_for_options(hint: str, parameters: Mapping[str, Parameter], given: Mapping[str, Any]) -> str:
    """A hint with arguments instead of options: ``--layout ted`` becomes ``layout="ted"``, ``--mirror`` becomes ``mirror=``.

    ``parameters`` are those of the function that was called, with the keywords ``given``; they decide whether the word after
    an option is its value.
    """

    def argument(found: re.Match[str]) -> str:
        command, option, word = found.groups()
        if command:
            return _call(command)
        name = option.replace("-", "_")
        name = f"{name}s" if f"{name}s" in parameters else name  # --env-arg
        annotation = parameters[name].annotation if name in parameters else ""
        kind = annotation if isinstance(annotation, str) else formatannotation(annotation)
        prose = "" if word is None else f" {word}"
        if kind.startswith("bool"):
            return f"{name}=True{prose}"
        if word is None or not (_VALUE.fullmatch(word) or repr(word) in kind or word == given.get(name)):
            return f"{name}={prose}"
        if "Mapping" in kind:
            key, _, value = word.partition("=")
            return f'{name}={{"{key}": {_literal(value or "...")}}}'
        return f"{name}={_literal(word)}"

    words = _OPTION.sub(argument, hint.removeprefix("on the command line: "))
    return words.replace("} args={", ", ")  # several --args


def _call(command: str) -> str:
    """``rbdata.download("ID", root="...")`` for such a command in backticks; other commands unchanged."""
    if not command.startswith("`rbdata ") or command.split()[1] not in _CALLS:
        return command
    _, verb, first, *options = shlex.split(command.strip("`"))
    if options[::2] not in ([], ["--root"], ["--mirror"]):
        return command
    given = [f', {name.removeprefix("--")}="{value}"' for name, value in zip(options[::2], options[1::2])]
    return f'`rbdata.{verb}("{first}"{"".join(given)})`'


def _literal(word: str) -> str:
    return word if re.fullmatch(r"[A-Z]+|[\d.]+", word) else f'"{word}"'


def nearest(word: str, names: Iterable[str]) -> str:
    """``did you mean batch_size?`` for ``batchsize``; '' if no name is similar."""
    from difflib import get_close_matches

    word, names = word.lower().replace("-", "_"), list(names)
    begun = [name for name in names if len(name) > 3 and word.startswith(name)]  # destination
    near = begun or get_close_matches(word, names, n=2)
    return f"did you mean {' or '.join(near)}?" if near else ""
