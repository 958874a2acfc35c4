"""Keyword arguments of public functions: an unexpected one is an error that names the nearest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar

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


def nearest(word: str, names: Iterable[str]) -> str:
    """``did you mean batch_size?`` for ``batchsize``; empty where no name is like the word."""
    from difflib import get_close_matches

    word, names = word.lower().replace("-", "_"), list(names)
    begun = [name for name in names if len(name) > 3 and word.startswith(name)]  # destination
    near = begun or get_close_matches(word, names, n=2)
    return f"did you mean {' or '.join(near)}?" if near else ""
