"""Arguments of public functions: signatures of those that pass options on, whole numbers, similar names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import Parameter, signature
from numbers import Integral
from typing import Any, TypeVar, get_type_hints

from ..errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])


def with_options(options: type) -> Callable[[Function], Function]:
    """A decorator for a function that ends in ``**options: Unpack[...]``: its signature shows the keys of that TypedDict."""
    hints = get_type_hints(options).items()
    return _shows([Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hint) for name, hint in hints])


def shows_arguments_of(*origins: Callable[..., Any]) -> Callable[[Function], Function]:
    """A decorator for a method that ends in ``**options``, which the ``origins`` receive: its signature shows theirs."""
    found = {name: one for origin in origins for name, one in signature(origin).parameters.items()}
    named = [one for one in found.values() if one.kind in (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    return _shows([one.replace(kind=Parameter.KEYWORD_ONLY) for one in named])


def _shows(more: list[Parameter]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        shown = signature(function)
        own = {name: one for name, one in shown.parameters.items() if one.kind is not Parameter.VAR_KEYWORD}
        more_than_own = [one for one in more if one.name not in own]
        function.__signature__ = shown.replace(parameters=[*own.values(), *more_than_own])  # type: ignore[attr-defined]
        return function

    return decorate


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return the value of an argument that is a whole number, NumPy's included. Raises UsageError for anything else."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if least <= number and (most is None or number <= most):
            return number
    bounds = f"of at least {least}" + ("" if most is None else f" and at most {most:,}")
    raise UsageError(f"{name} must be a whole number {bounds}, not {value!r}")


def refuse_empty(**texts: object) -> None:
    """Raise UsageError for an empty text, as of a variable that is not set: a path would be the current folder."""
    for name, value in texts.items():
        if value == "":
            raise UsageError(f"{name} is empty", hint="leave it out, or give it a value (. is the current folder)")


def nearest(word: str, names: Iterable[str]) -> str:
    """``did you mean batch_size?`` for ``batchsize``; '' if no name is similar."""
    from difflib import get_close_matches

    word, names = word.lower().replace("-", "_"), list(names)
    begun = [name for name in names if len(name) > 3 and word.startswith(name)]  # destination
    near = begun or get_close_matches(word, names, n=2)
    return f"did you mean {' or '.join(near)}?" if near else ""


def goes_with(what: str, **given: bool) -> None:
    """Raise UsageError for the first option that is ``given``: it has no effect without ``what``."""
    for name, is_given in given.items():
        if is_given:
            raise UsageError(f"{name} goes with {what}")
