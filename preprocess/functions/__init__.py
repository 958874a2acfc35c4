"""Built-in preprocessing functions: ``--fn rbdata:NAME``, or ``from rbdata.preprocess.functions import NAME``.

``NAME.py`` holds the function ``NAME``, which is imported when it is first used: the names alone do not load torch. To add a
function, write such a module, decorate the function with `traits.Traits` and add its name to ``BUILTIN``.

Conventions:

- A function maps a TED TensorDict of ``n`` steps to another one and does not modify its input: unchanged leaves are shared
  with it, changed leaves are new tensors.
- ``keys`` selects leaves by path (``"observation/pixels"``; a folder selects all leaves below it; a list, or one string
  separated by commas). A key selects the leaf at the root and its successor under ``next``, so that both are always changed
  alike. None selects all observations: the leaves that exist at the root and under ``next``, flags excluded.
- Invalid arguments raise UsageError; `rbdata.preprocess` checks them before it reads any data.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from ...errors import FunctionNotFoundError

BUILTIN = (
    "clip_rewards",
    "filter_episodes",
    "grayscale",
    "n_step",
    "normalize_observations",
    "relabel_rewards",
    "resize_frames",
    "returns_to_go",
    "scale_rewards",
    "select_keys",
    "subsample",
    "to_float",
)


def find_builtin(name: str) -> Callable[..., Any]:
    """The built-in function ``name``. Raises FunctionNotFoundError."""
    if name not in BUILTIN:
        near = difflib.get_close_matches(name, BUILTIN, n=3)
        hint = (f"did you mean {', '.join(near)}? " if near else "") + f"built-in functions: {', '.join(BUILTIN)}"
        raise FunctionNotFoundError(f"rbdata has no built-in function {name!r}", hint=hint)
    function: Callable[..., Any] = getattr(import_module("." + name, __name__), name)
    return function


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in BUILTIN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return find_builtin(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *BUILTIN})


class _FunctionsPackage(ModuleType):
    """Python binds an imported submodule to its name in the package: here the name stands for the function inside it."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, getattr(value, name) if name in BUILTIN and isinstance(value, ModuleType) else value)


sys.modules[__name__].__class__ = _FunctionsPackage
