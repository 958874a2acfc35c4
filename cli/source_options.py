"""The options that sources declare, as options of download and convert."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal, Optional

import typer
from typer import Context, Option

from ..errors import UsageError

_META = "rbdata.source_options"


def selected_options(ctx: Context) -> dict[str, Any]:
    """The options on the command line, by name; the source rejects those that it does not declare."""
    return dict(ctx.meta.get(_META, {}))


def parameters(command: str, taken: Collection[str]) -> list[Any]:
    """What sources declare for a command (``download`` or ``convert``), to be added to the command's own options.

    Sources that declare an option of the same flag and kind share it. Where the kinds differ, or the flag is one of
    ``taken``, the command's own, the later source's flag begins with the name of the source: ``--csvlog-steps``.
    """
    from ..datasets import catalogue

    def kind(option: Any) -> tuple[Any, ...]:
        return option.name, option.type, bool(option.choices)

    declared: dict[str, list[tuple[str, Any]]] = {}
    for source_name, source in catalogue.sources().items():
        for option in source.options_of(command):
            flag, shared = option.flag, declared.get(option.flag)
            if flag in taken or (shared and kind(shared[0][1]) != kind(option)):
                flag = f"--{source_name}-{flag.removeprefix('--')}"
            declared.setdefault(flag, []).append((source_name, option))

    def options() -> None: ...

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    signature = [_parameter(flag, shared) for flag, shared in declared.items()]
    options.__signature__ = Signature(signature)  # type: ignore[attr-defined]
    options.__annotations__ = {parameter.name: parameter.annotation for parameter in signature}
    app.command()(options)
    params = list(typer.main.get_command(app).params)
    for param, shared in zip(params, declared.values()):
        param.by_source = {source: _phrase(option) for source, option in shared}  # type: ignore[attr-defined]
    return params


def _parameter(flag: str, shared: Sequence[tuple[str, Any]]) -> Parameter:
    """A parameter as Typer reads it from a function, for the options of one flag."""
    first = shared[0][1]
    choices = tuple(dict.fromkeys(choice for _, option in shared for choice in option.choices))
    kind: Any = list[str] if first.type is dict else Literal[choices] if choices else first.type
    option = Option(
        flag,
        help=_help(shared),
        metavar=first.metavar or (None if choices or first.type is bool else first.name.upper()),
        expose_value=False,
        callback=_store(first, flag),
        show_default=False,
    )
    given: Any = bool if kind is bool else Optional[kind]  # noqa: UP045 - made at run time
    name = flag.removeprefix("--").replace("-", "_")
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=False if kind is bool else None, annotation=Annotated[given, option]
    )


def _help(shared: Sequence[tuple[str, Any]]) -> str:
    """``minari, gymnasium: what becomes of text (bytes).``"""
    sources: dict[str, list[str]] = {}
    for source, option in shared:
        only = f"{option.commands[0]} only, " if len(option.commands) == 1 else ""
        sources.setdefault(only + _phrase(option), []).append(source)
    return " ".join(f"{', '.join(names)}: {text}" for text, names in sources.items())


def _phrase(option: Any) -> str:
    """``what becomes of text.  [default: bytes]``"""
    default = f"  [default: {option.default}]" if option.default not in (None, {}) and option.type is not bool else ""
    return f"{option.help}.{default}"


def _store(option: Any, flag: str) -> Any:
    """A callback that stores the value under the option's name."""

    def store(ctx: Context, param: typer.CallbackParam, value: Any) -> Any:
        if value is not None and value is not False and value != []:
            stored = parse_key_values(value, flag) if option.type is dict else value
            ctx.meta.setdefault(_META, {})[option.name] = stored
        return value

    return store


def parse_key_values(words: Sequence[str], flag: str) -> dict[str, Any]:
    """``["map_name=8x8", "is_slippery=false"]`` as keyword arguments.

    Values are JSON, Python's True, False or None, or else strings. Raises UsageError.
    """
    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"{flag} {word!r} is not KEY=VALUE", hint=f"for example: {flag} is_slippery=false")
        if name in arguments:
            raise UsageError(f"{flag} gives {name} twice", hint="give it once")
        try:
            arguments[name] = _PYTHON_LITERALS[value] if value in _PYTHON_LITERALS else json.loads(value)
        except ValueError:
            arguments[name] = value
    return arguments


#: Python users write these; as strings they would all be true.
_PYTHON_LITERALS = {"True": True, "False": False, "None": None}
