"""Built-in preprocessing functions: ``--fn rbdata:NAME``, or ``from rbdata.preprocess.functions import NAME``.

A function is imported when it is first used: the names alone do not load torch. To add a function, write it in the module of
its kind, decorate it with `traits.Traits` and add its name to ``BUILTIN``.

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
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ...errors import UsageError

#: Name -> module of this package that holds the function.
BUILTIN = {
    "clip_rewards": "rewards",
    "filter_episodes": "episodes",
    "grayscale": "frames",
    "identity": "episodes",
    "n_step": "rewards",
    "normalize_observations": "observations",
    "relabel_rewards": "rewards",
    "resize_frames": "frames",
    "returns_to_go": "rewards",
    "scale_rewards": "rewards",
    "select_keys": "observations",
    "subsample": "episodes",
    "to_float": "observations",
    "trim": "episodes",
}


def find_builtin(name: str) -> Callable[..., Any]:
    """Return the built-in function ``name``. Raises UsageError."""
    if name not in BUILTIN:
        near = difflib.get_close_matches(name, BUILTIN, n=3)
        hint = (f"did you mean {', '.join(near)}? " if near else "") + f"built-in functions: {', '.join(BUILTIN)}"
        raise UsageError(f"rbdata has no built-in function {name!r}", hint=hint)
    function: Callable[..., Any] = getattr(import_module("." + BUILTIN[name], __name__), name)
    return function


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in BUILTIN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return find_builtin(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *BUILTIN})
