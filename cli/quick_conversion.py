"""Conversion of simple arguments without pydantic, which Typer uses: importing it takes longer than most commands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any


def spare_conversion(params: list[Any]) -> None:
    """Have these parameters convert simple values themselves."""
    for param in params:
        param.process_value = partial(_process, param, param.process_value)


def _process(param: Any, convert: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    """`Parameter.process_value` for options that are not given, text, paths and lists of text; ``convert`` for the others."""
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    several = param.multiple or param.nargs == -1
    converted: Any
    if value is None and not param.required:
        converted = () if several else None
    elif kind in (str, Path) and isinstance(value, str):
        converted = kind(value)
    elif kind == list[str] and several and value:
        converted = [str(one) for one in value]
    else:
        return convert(ctx, value)
    return param.callback(ctx, param, converted) if param.callback else converted


class QuickHelp:
    """For subclasses of Click's commands: the same for the option ``--help``, which they make themselves."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None and not isinstance(option.process_value, partial):
            spare_conversion([option])
        return option
