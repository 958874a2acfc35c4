"""Who took part in a recording, so that another one is not taken for it: the policy and the environment.

A policy given by name is the files that it is loaded from; one given as an object is its content (`datasets.user_code`). An
environment is its wrappers and itself, each with its class, what it was made with, and what it holds before the first step:
attributes that `reset` and `step` change may be settings as well (a level that rises). Those that only Gymnasium's own classes
change are left out, as `reset` sets them. In installed classes what cannot be told apart (a handle of a simulator) counts by
its class; in the user's own it makes an environment that cannot be told from another one.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    """The wrappers of an environment from the outside in, and itself: ``{class, with, held, code, untold}``.

    ``held``: the attributes besides ``with`` as they are now. Of local classes ``code``, and ``untold``, where there is what
    cannot be told from another one.

    Raises UsageError for code whose file was edited since it was imported.
    """
    layers = []
    for layer in _layers(env):
        kind = type(layer)
        if kind.__module__.partition(".")[0] == __package__.partition(".")[0]:
            continue
        untold: list[str] = []
        settings, held = _settings(layer, untold), _held(layer, untold)
        held = {name: shown for name, shown in held.items() if name not in settings or settings[name] != shown}
        described: dict[str, Any] = {"class": qualified_name(layer), "with": settings, "held": held}
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
            if untold:
                described["untold"] = sorted({*untold})
        layers.append(described)
    return layers


def has_local_code(layers: Any) -> bool:
    """Whether an environment as it was recorded is of classes that the user may edit."""
    return any("code" in layer for layer in layers)


def changes_of_environment(before: Any, now: Any, *, same_versions: bool, again: Any = None) -> list[str]:
    """In what an environment differs from the recorded one, in words. Without ``same_versions`` of Python and Gymnasium only
    the arguments of the user's own classes can be compared.

    ``again``: the environment made once more, if it can be: numbers and arrays that it draws are then no difference.
    """
    if not same_versions:
        before, now = ([layer for layer in layers if "code" in layer] for layers in (before, now))
    old, new = ([layer.get("class") for layer in layers] for layers in (before, now))
    if old != new:
        return [f"environment ({' of '.join(map(str, old))} there, {' of '.join(map(str, new))} here)"]
    changed = []
    for number, (one, other) in enumerate(zip(before, now)):
        name = str(other["class"]).rpartition(":")[2]
        differing = _differing(one["with"], other["with"])
        if same_versions and "held" in one:  # recordings of earlier versions have none
            random = _differing(again[number]["held"], other["held"]) if again else {}
            held = _differing(one["held"], other["held"])
            drawn = {key for key, pair in random.items() if all(map(_may_be_drawn, pair))}
            differing = {**{key: pair for key, pair in held.items() if key not in drawn}, **differing}
        for key, (was, is_now) in sorted(differing.items()):
            changed.append(f"environment ({name}.{key} is {was} there, {is_now} here)")
        if same_versions and one.get("code") != other.get("code"):
            changed.append(f"environment (the code of {name})")
    return changed


def _differing(was: Mapping[str, Any], is_now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Both values of the names that differ."""
    pairs = {name: (was.get(name), is_now.get(name)) for name in {*was, *is_now}}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _may_be_drawn(shown: Any) -> bool:
    """Whether a value, as it is shown, is one number or array: another object may have settings besides."""
    return isinstance(shown, (int, float)) or str(shown).startswith(("numpy:", "torch:Tensor "))


def untold_of(layers: Any) -> list[str]:
    """What in an environment cannot be told from another one."""
    return [f"{one} of {layer['class']}" for layer in layers for one in layer.get("untold", ())]


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


def _settings(layer: Any, untold: list[str]) -> dict[str, Any]:
    """What an environment or a wrapper was made with: its recorded arguments, and the attributes that it does not change."""
    saved = _saved(layer)
    follows = _set_by_installed(type(layer)) if saved is not None else ()
    changing = _changed_attributes(type(layer))
    shown = {str(name): _shown(value, _changed_attributes, untold) for name, value in (saved or {}).items()}
    for name, value in _attributes(layer).items():
        if name in changing or (name in follows and not _may_be_set_by_hand(value)):
            continue
        now, argument = _shown(value, _changed_attributes, untold), name.lstrip("_")
        repeats_argument = name not in (saved or {}) and argument in (saved or {}) and shown[argument] == now
        if not repeats_argument:  # ``_x`` is the argument ``x``
            shown[name] = now
    return dict(sorted(shown.items()))


def _held(layer: Any, untold: list[str]) -> dict[str, Any]:
    """What an environment or a wrapper holds now, but for what only classes of Gymnasium change, and containers of those."""
    follows = _set_by_installed(type(layer)) if _saved(layer) is not None else ()
    changing = _changed_by_gymnasium(type(layer))
    return {
        name: _shown(value, _changed_by_gymnasium, untold)
        for name, value in sorted(_attributes(layer).items())
        if name not in changing and not (name in follows and isinstance(value, (list, dict, set, deque)))
    }


def _saved(layer: Any) -> Mapping[str, Any] | None:
    """The arguments that a wrapper has recorded (``gymnasium.utils.RecordConstructorArgs``)."""
    saved = getattr(layer, "__dict__", {}).get("_saved_kwargs")
    return saved if isinstance(saved, Mapping) else None


def _attributes(layer: Any) -> dict[str, Any]:
    """Those of its own, without the environments inside."""
    left_out = {"env", "envs", "spec", "_saved_kwargs"}
    return {str(name): value for name, value in getattr(layer, "__dict__", {}).items() if name not in left_out}


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
    return set().union(*_changed_by_classes(kind).values())


def _changed_by_gymnasium(kind: type) -> set[str]:
    """Those that only classes of Gymnasium assign: `reset` sets them, whatever they were."""
    found = _changed_by_classes(kind)
    others = [names for one, names in found.items() if one.__module__.partition(".")[0] != "gymnasium"]
    return _changed_attributes(kind).difference(*others)


def _changed_by_classes(kind: type) -> dict[type, set[str]]:
    """The attributes that the code of each class changes, of a class and those that it is derived from."""
    found: dict[type, set[str]] = {one: set() for one in kind.__mro__}
    for one, names in found.items():
        for value in vars(one).values():
            code = getattr(value.fget, "__code__", None) if isinstance(value, property) else None
            names |= _assigned(code) if code is not None else set()
    left, done = [*_RUNS], set[str]()
    while left:
        name = left.pop()
        if name in done:
            continue
        done.add(name)
        for one, names in found.items():
            for code in _own_codes(one, name):
                names |= _assigned(code)
                left += [other for other in code.co_names if other not in done]
    return found


@functools.lru_cache(maxsize=4096)
def _assigned(code: CodeType) -> frozenset[str]:
    """The attributes that a code object assigns."""
    import dis

    return frozenset(str(step.argval) for step in dis.get_instructions(code) if step.opname == "STORE_ATTR")


def _own_codes(kind: type, name: str) -> Iterator[CodeType]:
    value = vars(kind).get(name)
    for function in (value.fget, value.fset) if isinstance(value, property) else (value,):
        code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
        if isinstance(code, CodeType):
            yield from nested_codes(code)


def _shown(value: Any, changing: Callable[[type], Collection[str]], untold: list[str]) -> Any:
    """A setting as JSON: a number or text as it is, all else by a hash. What cannot be told apart is added to ``untold``."""
    if type(value) in (bool, int, float, str, type(None)) and len(str(value)) <= _SHOWN:
        return value if not isinstance(value, float) or math.isfinite(value) else repr(value)
    kind = qualified_name(type(value))
    if isinstance(value, (Path, Enum)) and not is_local_module(type(value).__module__):
        return repr(value)
    content = Content(kind, changing=changing)
    try:
        content.add(value)
    except UsageError:
        return kind
    finally:
        untold += content.untold
    return f"{kind} sha256 {_short(content.sha256)}"
