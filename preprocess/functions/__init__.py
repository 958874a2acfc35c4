"""Ready-made preprocessing functions: ``--fn rbdata:NAME``, or ``from rbdata.preprocess.functions import NAME``.

They are imported when they are asked for: the names alone cost no torch.

Conventions they share:

- A function maps a TED TensorDict of ``n`` steps to another and leaves its input as it is: untouched leaves are handed on,
  changed ones are new tensors.
- ``keys`` names leaves as paths (``"observation/pixels"``; a folder stands for all leaves in it; a list, or one string with
  commas). A key stands for the leaf at the root and for its successor under ``next``, so that both are always changed
  alike. None means all observations: what is at the root and under ``next`` as well, flags excluded.
- Arguments that make no sense raise UsageError, before any data is read where `rbdata.preprocess` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from ...errors import UsageError

#: Name -> "module:attribute" inside this package.
READY: Mapping[str, str] = MappingProxyType(
    {
        "clip_rewards": "rewards:clip_rewards",
        "filter_episodes": "filter:filter_episodes",
        "grayscale": "grey:grayscale",
        "n_step": "multi_step:n_step",
        "normalize_observations": "normalize:normalize_observations",
        "relabel_rewards": "relabel:relabel_rewards",
        "resize_frames": "resize:resize_frames",
        "returns_to_go": "returns:returns_to_go",
        "scale_rewards": "rewards:scale_rewards",
        "select_keys": "select:select_keys",
        "subsample": "thin:subsample",
        "to_float": "cast:to_float",
    }
)


def ready(name: str) -> Callable[..., Any]:
    """The function called ``name``. Raises UsageError where there is none."""
    try:
        module, _, attribute = READY[name].partition(":")
    except KeyError:
        message = f"rbdata has no ready-made function {name!r}"
        raise UsageError(message, hint=f"there are {', '.join(READY)}") from None
    function: Callable[..., Any] = getattr(import_module("." + module, __name__), attribute)
    return function


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in READY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return ready(name)


def __dir__() -> list[str]:
    return [*globals(), *READY]
