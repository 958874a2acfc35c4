"""Keyword arguments of public functions: an error for an unexpected one suggests similar names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from importlib import import_module
from inspect import Parameter, signature
from numbers import Integral
from types import ModuleType
from typing import Any, TypeVar, get_type_hints

from ..errors import ArgumentTypeError, UsageError

Function = TypeVar("Function", bound=Callable[..., Any])


#: Arguments for which an empty text, as of a variable that is not set, would count as none, or as the current folder.
_NEVER_EMPTY = frozenset({"cache_dir", "environment", "identity", "mirror", "path", "root"})


def check_keywords(function: Function) -> Function:
    """A decorator: an unexpected keyword raises ArgumentTypeError with a hint that suggests similar names.

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
        return function(*args, **options)

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


def nearest(word: str, names: Iterable[str]) -> str:
    """``did you mean batch_size?`` for ``batchsize``; '' if no name is similar."""
    from difflib import get_close_matches

    word, names = word.lower().replace("-", "_"), list(names)
    begun = [name for name in names if len(name) > 3 and word.startswith(name)]  # destination
    near = begun or get_close_matches(word, names, n=2)
    return f"did you mean {' or '.join(near)}?" if near else ""
