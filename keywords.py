"""Arguments of public functions: an unexpected keyword is an error that names the nearest; modules for annotations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from importlib import import_module
from inspect import Parameter, signature
from types import ModuleType
from typing import Any, TypeVar, get_type_hints

from .errors import ArgumentTypeError

Function = TypeVar("Function", bound=Callable[..., Any])


def check_keywords(function: Function) -> Function:
    """Have a function raise ArgumentTypeError for a keyword that it has no argument of, with the nearest ones as the hint.

    For functions whose arguments are all named; signature, annotations and docstring stay as they are.
    """
    by_keyword = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    names = [name for name, parameter in signature(function).parameters.items() if parameter.kind in by_keyword]

    @wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        for name in options:
            if name not in names:
                shown = function.__qualname__.removesuffix(".__init__")
                message = f"{shown}() got an unexpected keyword argument {name!r}"
                arguments = [one for one in names if one != "self"]
                raise ArgumentTypeError(message, hint=nearest(name, arguments) or f"it takes {', '.join(arguments)}")
        return function(*args, **options)

    return checked  # type: ignore[return-value]


def with_options(options: type, *origins: Callable[..., Any]) -> Callable[[Function], Function]:
    """`check_keywords` for a function that ends in ``**options: Unpack[...]``: signatures show the keys of that TypedDict.

    Their defaults are those of the arguments of ``origins``, the functions that get them; None where none has one.
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


class LazyModule(ModuleType):
    """A heavy module that annotations name: imported by the first use of a name in it, which `get_type_hints` is.

    Type checkers read the real import beside it, under ``TYPE_CHECKING``.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


def nearest(word: str, names: Iterable[str]) -> str:
    """``did you mean batch_size?`` for ``batchsize``; empty where no name is like the word."""
    from difflib import get_close_matches

    word, names = word.lower().replace("-", "_"), list(names)
    begun = [name for name in names if len(name) > 3 and word.startswith(name)]  # destination
    near = begun or get_close_matches(word, names, n=2)
    return f"did you mean {' or '.join(near)}?" if near else ""
