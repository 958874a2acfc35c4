"""Who took part in a recording, so that another one is not taken for it: the policy and the environment.

A policy given by name is the files that it is loaded from; one given as an object is its content (`datasets.user_code`). An
environment is its wrappers and itself, each with its class and what it was made with; what `reset` and `step` change is left
out. Where something cannot be told apart (an open file, a handle of a simulator), its class counts.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import gymnasium
import numpy as np

from ....errors import UsageError
from ...user_code.identity import Content, content_hash, defining_module, hash_files, labelled, qualified_name
from ...user_code.source_files import is_local_module, nested_codes

#: Code compiles to something else in other versions of Python.
PYTHON = "{}.{}".format(*sys.version_info)
#: Methods through which an environment changes while it is recorded.
_RUNS = ("reset", "step", "render", "close")
_SHOWN = 60


def describe_policy_content(policy: Any) -> dict[str, Any]:
    """What a policy is: ``{content, file, files, python}``; of a module (a policy given by name) only its files.

    ``content`` is None where the policy cannot be told from another one; ``why`` then says what in it. Raises UsageError for
    code whose file was edited since it was imported.
    """
    content = Content("the policy")
    digest: str | None = None
    why = None
    try:
        content.add(policy)
        digest = content.sha256
    except UsageError as error:
        why = error.message
    hashes, own = hash_files(content), defining_module(policy)
    files = labelled(hashes, content.files, own)
    found: dict[str, Any] = {"python": PYTHON, "file": hashes.get(str(own)), "files": files}
    if isinstance(policy, ModuleType):
        return found
    return {**found, "content": digest, **({"why": why} if why else {})}


def changes_of_policy(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In what a policy differs from the recorded one, in words."""
    labels = {"the policy's file": (before.get("file"), now.get("file"))}
    old, new = before.get("files") or {}, now.get("files") or {}
    labels |= {label: (old[label], new.get(label)) for label in old}
    changed = [
        f"contents of {label}" for label, (one, other) in labels.items() if None not in (one, other) and one != other
    ]
    if changed or "content" not in before or "content" not in now or before.get("python") != now["python"]:
        return changed
    if now["content"] is None:
        return [f"policy, as far as can be told ({now.get('why')})"]
    if now["content"] in (before["content"], before.get("content_after")):
        return []
    return [f"policy (sha256 {_short(before['content'])} there, {_short(now['content'])} here)"]


def _short(digest: Any) -> str:
    return str(digest)[:12] if digest else "unknown"


def describe_environment(env: Any) -> list[dict[str, Any]]:
    """The wrappers of an environment from the outside in, and itself: ``{class, with, code}``, the latter of local classes.

    Raises UsageError for code whose file was edited since it was imported.
    """
    layers = []
    for layer in _layers(env):
        kind = type(layer)
        if kind.__module__.partition(".")[0] == __package__.partition(".")[0]:
            continue
        described: dict[str, Any] = {"class": qualified_name(layer), "with": _settings(layer)}
        others = _others(layer)
        if others:
            described["with"]["others"] = others
        if is_local_module(kind.__module__):
            content = Content(qualified_name(layer), changing=_changed_attributes)
            try:
                content.add(kind)
                described["code"] = content.sha256
            except UsageError:
                described["code"] = None
            described["files"] = hash_files(content)
        layers.append(described)
    return layers


def has_local_code(layers: Any) -> bool:
    """Whether an environment as it was recorded is of classes that the user may edit."""
    return any("code" in layer for layer in layers)


def changes_of_environment(before: Any, now: Any, *, same_versions: bool) -> list[str]:
    """In what an environment differs from the recorded one, in words. Without ``same_versions`` of Python and Gymnasium only
    the arguments of the user's own classes can be compared."""
    if not same_versions:
        before, now = ([layer for layer in layers if "code" in layer] for layers in (before, now))
    old, new = ([layer.get("class") for layer in layers] for layers in (before, now))
    if old != new:
        return [f"environment ({' of '.join(map(str, old))} there, {' of '.join(map(str, new))} here)"]
    changed = []
    for one, other in zip(before, now):
        name = str(other["class"]).rpartition(":")[2]
        was, is_now = one.get("with") or {}, other["with"]
        for key in sorted({*was, *is_now}):
            if was.get(key) != is_now.get(key):
                changed.append(f"environment ({name}.{key} is {was.get(key)} there, {is_now.get(key)} here)")
        if same_versions and one.get("code") != other.get("code"):
            changed.append(f"environment (the code of {name})")
    return changed


def _layers(env: Any) -> Iterator[Any]:
    seen: set[int] = set()
    while env is not None and id(env) not in seen:
        seen.add(id(env))
        yield env
        several = _several(env)
        env = several[0] if several else getattr(env, "__dict__", {}).get("env")


def _several(layer: Any) -> Sequence[Any]:
    """The environments of a vector environment in this process."""
    several = getattr(layer, "__dict__", {}).get("envs")
    return several if isinstance(several, (list, tuple)) else ()


def _others(layer: Any) -> str | None:
    """The environments of a vector environment that differ from its first one, as a hash."""
    first, *others = map(describe_environment, _several(layer)) if len(_several(layer)) > 1 else [None]
    differing = [(number, other) for number, other in enumerate(others, 1) if other != first]
    return f"sha256 {_short(content_hash(differing))}" if differing else None


def _settings(layer: Any) -> dict[str, Any]:
    """What an environment or a wrapper was made with: its recorded arguments, and the attributes that it does not change."""
    inside = getattr(layer, "__dict__", {})
    changing = _changed_attributes(type(layer)) | {"env", "envs", "spec", "_saved_kwargs"}
    named = {str(name): value for name, value in inside.items() if name not in changing}
    saved = inside.get("_saved_kwargs")  # gymnasium.utils.RecordConstructorArgs
    if not isinstance(saved, Mapping):
        saved = {}
    else:
        follows = _set_by_installed(type(layer))
        named = {name: value for name, value in named.items() if name not in follows or _may_be_set_by_hand(value)}
    shown = {str(name): _shown(value) for name, value in saved.items()}
    for name, value in named.items():
        now, argument = _shown(value), name.lstrip("_")
        repeats_argument = (
            name not in saved and argument in saved and shown[argument] == now
        )  # ``_x`` is the argument ``x``
        if not repeats_argument:
            shown[name] = now
    return dict(sorted(shown.items()))


def _set_by_installed(kind: type) -> set[str]:
    """The attributes that the constructors of installed classes set."""
    found: set[str] = set()
    for one in kind.__mro__:
        if not is_local_module(one.__module__):
            found.update(*(_assigned(code) for code in _own_codes(one, "__init__")))
    return found


def _may_be_set_by_hand(value: Any) -> bool:
    """Whether an attribute of an installed wrapper is a setting; containers and objects are what it works with."""
    if callable(value) or is_local_module(type(value).__module__):
        return True
    return isinstance(value, (bool, int, float, str, tuple, type(None), np.generic, np.ndarray, gymnasium.Space))


def _changed_attributes(kind: type) -> set[str]:
    """The attributes that `reset`, `step` and what they call assign, and those that properties keep."""
    getters: list[Any] = [
        value.fget for one in kind.__mro__ for value in vars(one).values() if isinstance(value, property)
    ]
    found = {name for getter in getters if hasattr(getter, "__code__") for name in _assigned(getter.__code__)}
    left, done = [*_RUNS], set[str]()
    while left:
        name = left.pop()
        if name in done:
            continue
        done.add(name)
        for code in _codes(kind, name):
            found |= _assigned(code)
            left += [other for other in code.co_names if other not in done]
    return found


@functools.lru_cache(maxsize=4096)
def _assigned(code: CodeType) -> frozenset[str]:
    """The attributes that a code object assigns."""
    import dis

    return frozenset(str(step.argval) for step in dis.get_instructions(code) if step.opname == "STORE_ATTR")


def _codes(kind: type, name: str) -> Iterator[CodeType]:
    """The code of a method or property, in a class and those that it is derived from."""
    for one in kind.__mro__:
        yield from _own_codes(one, name)


def _own_codes(kind: type, name: str) -> Iterator[CodeType]:
    value = vars(kind).get(name)
    for function in (value.fget, value.fset) if isinstance(value, property) else (value,):
        code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
        if isinstance(code, CodeType):
            yield from nested_codes(code)


def _shown(value: Any) -> Any:
    """A setting as JSON: a number or text as it is, all else by a hash."""
    if type(value) in (bool, int, float, str, type(None)) and len(str(value)) <= _SHOWN:
        return value if not isinstance(value, float) or math.isfinite(value) else repr(value)
    kind = qualified_name(type(value))
    if isinstance(value, (Path, Enum)) and not is_local_module(type(value).__module__):
        return repr(value)
    try:
        content = Content(kind, changing=_changed_attributes)
        content.add(value)
    except UsageError:
        return kind
    return f"{kind} sha256 {_short(content.sha256)}"
