"""Environments: makes them by id, with errors that say what to do, and tells different environments apart.

A recording must not be confused with that of another environment. An environment is identified by its wrappers and itself, each
with its class, what it was made with, and what it holds before the first step: attributes that `reset` and `step` change may be
settings as well (a level that rises). Those that only Gymnasium's own classes change are left out, as `reset` sets them. A
value that cannot be identified (a handle of a simulator) counts by its class in installed classes; in the user's own classes,
it makes the whole environment unidentifiable.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import math
import re
import sys
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import CodeType
from typing import Any

import gymnasium
import numpy as np

from ....errors import RbdataError, UnknownDatasetError, UsageError, is_interrupt
from ...user_code_old.identity import Content, content_hash, hash_files, qualified_name
from ...user_code_old.source_files import is_local_module, names_in, nested_codes
from ..known_environment import making, register

#: Code compiles differently in other versions of Python.
PYTHON = "{}.{}".format(*sys.version_info)
_ALL = "`python -c 'import gymnasium; gymnasium.pprint_registry()'` shows them all"

#: What `gymnasium.make_vec` adds to the arguments of its environments.
_OF_MAKE_VEC = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")
#: Vector wrappers that change neither observations nor actions, rewards or ends.
_OBSERVERS = ("RecordEpisodeStatistics", "DictInfoToList", "RecordVideo", "HumanRendering", "VectorRecorder")

#: Gymnasium's wrappers that change rewards.
_REWARD_WRAPPERS = (
    *(gymnasium.RewardWrapper, gymnasium.vector.VectorRewardWrapper),
    *(gymnasium.wrappers.NormalizeReward, gymnasium.wrappers.vector.NormalizeReward),
)


@dataclass(frozen=True)
class Made:
    """How to make an environment: its id, keyword arguments, and how many copies are stepped together.

    ``make`` is called instead where it is given: ``id`` then only names it in messages. ``own`` is the caller's environment, if
    that exists already.
    """

    id: str
    arguments: Mapping[str, Any]
    count: int = 1
    make: Callable[[], Any] | None = None
    own: Any = None

    def open(self) -> Any:
        """The environment, a `gymnasium.Env`; a single one even if several are to be stepped.

        Raises UnknownDatasetError for an id that is not registered, MissingExtraError for a missing package, UsageError for
        arguments that it does not take, RbdataError when it cannot be made.
        """
        from gymnasium import error

        hint = "install what it needs, or what registers it; a module in the current directory is found as well"
        with making(self.id, hint):
            if self.make is not None:
                return self.make()
            register(self.id)
            try:
                return gymnasium.make(self.id, **self.arguments)
            except error.UnregisteredEnv as problem:
                message = f"Gymnasium has no environment {self.id}: {problem}"
                raise UnknownDatasetError(message, hint=_nearest(self.id)) from problem
            except TypeError as problem:
                if not self.arguments:
                    raise
                message = f"{self.id} does not take {', '.join(self.arguments)}: {problem}"
                raise UsageError(message, hint="check --env-arg") from problem

    @contextmanager
    def opened(self) -> Iterator[list[Any]]:
        """All copies, closed at the end. Raises as `open`, UsageError for copies that cannot be stepped together."""
        envs: list[Any] = []
        try:
            while len(envs) < self.count:
                envs.append(self.open())
            self._check(envs)
            yield envs
        except BaseException:
            for env in envs:
                with suppress(Exception, SystemExit):  # the earlier failure is reported
                    env.close()
            raise
        for env in envs:
            close(env, self.id)

    def _check(self, envs: list[Any]) -> None:
        first = envs[0]
        if len({id(getattr(env, "unwrapped", env)) for env in envs}) < len(envs):
            message = f"what makes {self.id} returns the same environment again and again"
            raise UsageError(message, hint="it must make a new one at every call")
        for env in envs[1:]:
            if env.observation_space != first.observation_space or env.action_space != first.action_space:
                message = f"environments of {self.id} have different spaces: they cannot be stepped together"
                raise UsageError(message, hint="record them one by one: num_envs=1")


def close(env: Any, name: str) -> None:
    """Close an environment. Raises RbdataError where that fails."""
    try:
        env.close()
    except BaseException as problem:
        if is_interrupt(problem):
            raise
        raise RbdataError(f"{name} failed in close: {type(problem).__name__}: {problem}") from problem


def _nearest(name: str) -> str:
    """The registered ids most similar to an unknown id."""
    bare = {known.lower(): known for known in gymnasium.registry}
    near = difflib.get_close_matches(name.lower(), list(bare), n=3, cutoff=0.6)
    return f"did you mean {', '.join(bare[one] for one in near)}?" if near else _ALL


def specification(env: Any) -> dict[str, Any] | None:
    """An environment's specification as JSON values, in Gymnasium's form; for a vector environment, that of a single
    environment.

    An entry point that is an object is left out: the registry has it. ``missing``, ``{"kwargs": [...], "wrappers": [...]}``,
    names the arguments and wrappers that JSON cannot express, or that Gymnasium does not state.
    """
    spec = env.spec
    if spec is None:
        return None
    if not hasattr(spec, "additional_wrappers"):
        return {"id": spec.id}
    found = {one.name: getattr(spec, one.name) for one in dataclasses.fields(spec) if one.init}
    layers = [*_wrappers_inwards(env)]
    arguments, missing = dict(found["kwargs"]), _unstated_wrappers(layers, spec)
    if hasattr(env, "single_action_space"):  # of `make_vec`
        wraps = [getattr(wrap, "func", wrap) for wrap in arguments.get("wrappers", ())]  # of a `functools.partial`
        missing += [getattr(wrap, "__name__", type(wrap).__name__) for wrap in wraps]
        arguments = {name: value for name, value in arguments.items() if name not in _OF_MAKE_VEC}
        found["max_episode_steps"] = arguments.pop("max_episode_steps", found["max_episode_steps"])
    limited = [layer.spec for layer in layers if isinstance(layer, gymnasium.wrappers.TimeLimit)]
    limits: list[Any] = [one.max_episode_steps for one in limited if one]
    found["max_episode_steps"] = min(limits, default=found["max_episode_steps"])
    found["kwargs"] = {name: value for name, value in arguments.items() if _is_json(value)}
    wrappers = spec.additional_wrappers
    missing += [one.name for one in wrappers if not _is_json(one.kwargs)]
    found["additional_wrappers"] = [dataclasses.asdict(one) for one in wrappers if _is_json(one.kwargs)]
    lacking = {"kwargs": sorted({*arguments} - {*found["kwargs"]}), "wrappers": missing}
    stated = {name: value for name, value in found.items() if _is_json(value)}
    return json.loads(json.dumps({**stated, **({"missing": lacking} if any(lacking.values()) else {})}))


def _unstated_wrappers(layers: list[Any], spec: Any) -> list[str]:
    """The classes around an environment that its specification does not name."""
    unstated = [
        type(layer).__name__
        for layer in layers
        if isinstance(layer, gymnasium.vector.VectorWrapper) and type(layer).__name__ not in _OBSERVERS
    ]
    module, _, name = spec.entry_point.partition(":") if isinstance(spec.entry_point, str) else ("", "", "")
    creator = getattr(sys.modules.get(module), name, None) if module else spec.entry_point
    single = isinstance(layers[-1], gymnasium.Env)
    if single and isinstance(creator, type) and not any(isinstance(layer, creator) for layer in layers):
        unstated.append(type(layers[-1]).__name__)  # an environment that holds the one whose specification it has
    return unstated


def wrappers_of_returns(env: Any) -> list[str]:
    """The classes around an environment whose rewards, or ends of episodes, may be other than the environment's own.

    Gymnasium's wrappers are known. Any other one may change what ``step`` returns, if it has its own, and so may a vector
    environment that makes its environments by itself.
    """
    found: list[str] = []
    for layer in _layers(env):
        if isinstance(layer, (gymnasium.Wrapper, gymnasium.vector.VectorWrapper)):
            if getattr(layer, "terminal_on_life_loss", False) or _may_change_returns(type(layer)):
                found.append(type(layer).__name__)
        elif isinstance(layer, gymnasium.vector.AsyncVectorEnv):
            given = layer.spec.kwargs.get("wrappers", ()) if layer.spec else ()  # all that is known: of `make_vec`
            wraps = [getattr(wrap, "func", wrap) for wrap in given]
            changing = [wrap for wrap in wraps if not isinstance(wrap, type) or _may_change_returns(wrap)]
            found += [getattr(wrap, "__name__", type(wrap).__name__) for wrap in changing]
        elif isinstance(layer, gymnasium.vector.VectorEnv) and not _several(layer):
            found.append(type(layer).__name__)
    return found


def _may_change_returns(wrapper: type) -> bool:
    stepped_by = next(one for one in wrapper.__mro__ if "step" in vars(one)).__module__.partition(".")[0]
    known = ("gymnasium", __package__.partition(".")[0])
    return issubclass(wrapper, _REWARD_WRAPPERS) or stepped_by not in known


def _wrappers_inwards(env: Any) -> Iterator[Any]:
    """The wrappers of an environment from the outside in, and what they wrap."""
    while isinstance(env, (gymnasium.Wrapper, gymnasium.vector.VectorWrapper)):
        yield env
        env = env.env
    yield env


def _is_json(value: Any) -> bool:
    """Whether JSON gives the value back, tuples as lists."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) for name in value) and all(map(_is_json, value.values()))
    return value is None or isinstance(value, (bool, int, float, str))


@contextmanager
def importable() -> Iterator[None]:
    """The current directory can be imported from, after everything else: in a checkout it may hold a ``datasets`` folder."""
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


@contextmanager
def heard(notes: list[str]) -> Iterator[None]:
    """Gymnasium's warnings (an old version, a deprecated argument) become notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(warning.message)).removeprefix("WARN: ").strip()
        if text not in notes:
            notes.append(text)


# -- what identifies an environment ------------------------------------------------------------------------------------

#: Methods through which an environment changes while it is recorded.
_RUNS = ("reset", "step", "render", "close")
_SHOWN = 60


def short_digest(digest: Any) -> str:
    return str(digest)[:12] if digest else "unknown"


def describe_environment(env: Any) -> list[dict[str, Any]]:
    """The wrappers of an environment from the outside in, and itself: ``{class, with, held, code, untold}``.

    ``held``: the attributes besides ``with`` as they are now. ``code`` for local classes; ``untold`` if some of it cannot be
    identified.

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
    """Whether the classes of a recorded environment are code that the user may edit."""
    return any("code" in layer for layer in layers)


def changes_of_environment(before: Any, now: Any, *, same_versions: bool, again: Any = None) -> list[str]:
    """How an environment differs from the recorded one, in words. Without ``same_versions`` of Python and Gymnasium only the
    arguments of the user's own classes can be compared.

    ``again``: the environment made again, if it can be: numbers and arrays that it draws then do not count as differences.
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
    """The names whose values differ, with both values."""
    pairs = {name: (was.get(name), is_now.get(name)) for name in {*was, *is_now}}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _may_be_drawn(shown: Any) -> bool:
    """Whether a value, as it is shown, is one number or array: another object may have settings besides."""
    return isinstance(shown, (int, float)) or str(shown).startswith(("numpy:", "torch:Tensor "))


def untold_of(layers: Any) -> list[str]:
    """The parts of an environment that cannot be identified."""
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
    return f"sha256 {short_digest(content_hash(differing))}" if differing else None


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
    """What an environment or a wrapper holds now, except what only Gymnasium's classes change, and containers of that."""
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
    """Its own attributes, without the environments inside."""
    left_out = {"env", "envs", "spec", "_saved_kwargs"}
    return {str(name): value for name, value in getattr(layer, "__dict__", {}).items() if name not in left_out}


def _set_by_installed(kind: type) -> set[str]:
    """The attributes that the constructors of installed classes set."""
    found: set[str] = set()
    for one in kind.__mro__:
        if not is_local_module(one.__module__):
            found.update(*(names_in(code, "STORE_ATTR") for code in _own_codes(one, "__init__")))
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
    """The attributes that only classes of Gymnasium assign: `reset` sets them, whatever their values were."""
    found = _changed_by_classes(kind)
    others = [names for one, names in found.items() if one.__module__.partition(".")[0] != "gymnasium"]
    return _changed_attributes(kind).difference(*others)


def _changed_by_classes(kind: type) -> dict[type, set[str]]:
    """The attributes that the code of each class changes, of a class and those that it is derived from."""
    found: dict[type, set[str]] = {one: set() for one in kind.__mro__}
    for one, names in found.items():
        for value in vars(one).values():
            code = getattr(value.fget, "__code__", None) if isinstance(value, property) else None
            names |= names_in(code, "STORE_ATTR") if code is not None else set()
    left, done = [*_RUNS], set[str]()
    while left:
        name = left.pop()
        if name in done:
            continue
        done.add(name)
        for one, names in found.items():
            for code in _own_codes(one, name):
                names |= names_in(code, "STORE_ATTR")
                left += [other for other in code.co_names if other not in done]
    return found


def _own_codes(kind: type, name: str) -> Iterator[CodeType]:
    value = vars(kind).get(name)
    for function in (value.fget, value.fset) if isinstance(value, property) else (value,):
        code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
        if isinstance(code, CodeType):
            yield from nested_codes(code)


def _shown(value: Any, changing: Callable[[type], Collection[str]], untold: list[str]) -> Any:
    """A setting as JSON: a number or text as it is, all else by a hash. A setting that cannot be identified is added to
    ``untold``."""
    if type(value) in (bool, int, float, str, type(None)) and len(str(value)) <= _SHOWN:
        return value if not isinstance(value, float) or math.isfinite(value) else repr(value)
    kind = qualified_name(type(value))
    if isinstance(value, (Path, Enum)) and not is_local_module(type(value).__module__):
        return repr(value)
    content = Content(kind, changing=changing, unpickled=True)
    try:
        content.add(value)
    except UsageError:
        return kind
    finally:
        untold += content.untold
    return f"{kind} sha256 {short_digest(content.sha256)}"
