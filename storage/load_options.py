"""Which options of `load` act beside which others: one without effect raises UsageError with its name, before anything is read.

A program that gives `padding` without windows means something by it. Pure functions of the options and of the names of leaves,
so that every way to a buffer asks them first. An option that has its default counts as not given.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..errors import UsageError

#: Options that change others: their default, and the options of which one must be given.
_COMPANIONS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "stack_keys": (None, ("frame_stack",)),
    "gamma": (0.99, ("n_step",)),
    "padding": ("repeat", ("windows", "frame_stack")),
    "strict_length": (True, ("slice_len", "num_slices")),
    "pad_output": (False, ("slice_len", "num_slices")),
    "span": (False, ("slice_len", "num_slices")),
    "uniform_over": ("trajectories", ("slice_len", "num_slices")),
    "beta": (None, ("alpha",)),
    "priority_key": ("td_error", ("alpha", "sampler")),
    "shares": ("random", ("weights",)),
}
#: Options that choose what is drawn, and their defaults.
_DRAWING = {"slice_len": None, "num_slices": None, "replacement": True, "alpha": None, "weights": None}


def _is_given(name: str, options: Mapping[str, Any], default: Any) -> bool:
    value = options.get(name, default)
    # By identity first: arrays and tensors have no single answer to ==.
    return value is not default and (type(value) is not type(default) or value != default)


def check_companions(options: Mapping[str, Any]) -> None:
    """Raise UsageError for an option without the one that it belongs to (``gamma`` without ``n_step``)."""
    for name, (default, others) in _COMPANIONS.items():
        if _is_given(name, options, default) and all(options.get(other) is None for other in others):
            raise UsageError(f"{name} goes with {' or '.join(others)}")
    if options.get("replacement", True) and options.get("shuffle", True) != "blocks":
        for name, default in (("drop_last", False), ("shuffle", True)):
            if options.get(name, default) not in (default, "global"):
                raise UsageError(f"{name} goes with replacement=False")


def check_options(options: Mapping[str, Any], leaves: Collection[str]) -> None:
    """Raise UsageError for an option of `load` that has no effect beside the others.

    ``leaves``: the paths of the dataset (``next/reward``). Values are checked by whoever uses them.
    """
    check_companions(options)
    if options.get("sampler") is not None:
        drawing = [name for name, default in _DRAWING.items() if _is_given(name, options, default)]
        if options.get("shuffle", True) == "blocks":
            drawing.append("shuffle")
        if drawing:
            raise UsageError(f"sampler decides what is drawn: leave out {', '.join(drawing)}")
    windows, keys = options.get("windows"), options.get("keys")
    if windows is not None and keys is not None:
        raise UsageError("windows name the leaves that are read: leave out keys")
    if isinstance(windows, Mapping):
        named = [_root(key) for key in windows]
        _check_computed(options, "windows", lambda path: path in named, leaves)
    elif keys is not None and not isinstance(keys, str):
        named = [_root(key) for key in keys]
        _check_computed(options, "keys", lambda path: any(f"{path}/".startswith(f"{one}/") for one in named), leaves)


def _check_computed(options: Mapping[str, Any], by: str, is_read: Any, leaves: Collection[str]) -> None:
    """Raise UsageError for computed leaves that no batch has: ``by`` (windows or keys) says which leaves are read."""
    extra, normalize = _as_keys(options.get("extra")), _as_keys(options.get("normalize"))
    if (
        by == "keys"
        and options.get("reward_scale") is not None
        and not is_read("reward")
        and "return_to_go" not in extra
    ):
        raise UsageError("reward_scale: the reward is not among keys", hint='name it: keys=[..., ("next", "reward")]')
    if by == "windows":  # beside keys, extra leaves are always read
        unread = [path for path in extra if not is_read(path)]
        if unread:
            hint = f'name it there as well: windows={{"{unread[0]}": (0, 0), ...}}'
            raise UsageError(f"extra {', '.join(unread)}: no window reads it", hint=hint)
        if options.get("reward_scale") is not None and not is_read("reward") and not is_read("return_to_go"):
            hint = 'name it there as well: windows={("next", "reward"): (0, 0), ...}'
            raise UsageError("reward_scale: no window reads the reward", hint=hint)
    for path in normalize:
        below = {_root(name) for name in leaves if f"{_root(name)}/".startswith(f"{path}/")}
        if below and not any(map(is_read, below)):
            what = "no window reads it" if by == "windows" else "it is not among keys"
            raise UsageError(f"normalize {path}: {what}", hint=f"name it in {by}, or leave it out of normalize")


def _as_keys(given: Any) -> list[str]:
    """The keys of ``extra`` or ``normalize`` as paths; none for values that are no keys."""
    if given is None or isinstance(given, bool):
        return []
    if isinstance(given, str):
        return [given]
    try:
        return [_path(key) for key in given]
    except TypeError:
        return []


def _path(key: Any) -> str:
    return key if isinstance(key, str) else "/".join(map(str, key))


def _root(key: Any) -> str:
    """``observation`` for it and for its successor ``next/observation``."""
    return _path(key).removeprefix("next/")
