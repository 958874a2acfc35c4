"""Environments: made by id, by a function, or given; and described for the manifest by specification and names of classes.

An id with its arguments says what an environment is. An object does not: what it holds cannot be told from outside.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from ....errors import DatasetNotFoundError, UsageError
from ..known_environment import making, register

_ALL = "`python -c 'import gymnasium; gymnasium.pprint_registry()'` shows them all"
_INSTALL = "install what it needs, or what registers it; a module in the current directory is found as well"
#: What `gymnasium.make_vec` adds to the arguments of its environments.
_OF_MAKE_VEC = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")
#: Vector wrappers that change neither observations nor actions, rewards or ends.
_OBSERVERS = ("RecordEpisodeStatistics", "DictInfoToList", "RecordVideo", "HumanRendering")
#: Gymnasium's wrappers that change rewards.
_REWARD_WRAPPERS = (
    *(gymnasium.RewardWrapper, gymnasium.vector.VectorRewardWrapper),
    *(gymnasium.wrappers.NormalizeReward, gymnasium.wrappers.vector.NormalizeReward),
)


@dataclass(frozen=True)
class Made:
    """How to make an environment: its id, keyword arguments, and how many copies are stepped together.

    ``make`` is called instead where it is given, and ``own`` is the caller's environment, which is stepped itself and stays
    open: ``id`` then only names it in messages. ``spec`` is what the registry of the asking process has for the id and its
    arguments: that of a worker may not have it.
    """

    id: str
    arguments: Mapping[str, Any]
    count: int = 1
    make: Callable[[], Any] | None = None
    own: Any = None
    spec: Any = None

    @property
    def is_object(self) -> bool:
        """Whether more than id and arguments decides what it is."""
        return self.make is not None or self.own is not None

    def open(self) -> Any:
        """One environment, a `gymnasium.Env`.

        Raises DatasetNotFoundError for an id that is not registered, MissingExtraError for a missing package, UsageError for
        arguments that it does not take, RbdataError when it cannot be made.
        """
        if self.own is not None:
            return self.own
        with making(self.id, _INSTALL):
            if self.make is not None:
                return self.make()
            if self.spec is not None:
                return gymnasium.make(self.spec)
            register(self.id)
            try:
                return gymnasium.make(self.id, **self.arguments)
            except gymnasium.error.UnregisteredEnv as problem:
                raise DatasetNotFoundError(f"Gymnasium has no environment {self.id}: {problem}", hint=_ALL) from problem
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
        finally:
            for env in envs if self.own is None else ():
                with suppress(Exception):  # the data are there, or an earlier failure is reported
                    env.close()

    def _check(self, envs: list[Any]) -> None:
        first = envs[0]
        if len({id(getattr(env, "unwrapped", env)) for env in envs}) < len(envs):
            message = f"what makes {self.id} returns the same environment again and again"
            raise UsageError(message, hint="it must make a new one at every call")
        for env in envs[1:]:
            if env.observation_space != first.observation_space or env.action_space != first.action_space:
                message = f"environments of {self.id} have different spaces: they cannot be stepped together"
                raise UsageError(message, hint="record them one by one: num_envs=1")


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
def warnings_noted(notes: list[str]) -> Iterator[None]:
    """Gymnasium's warnings (an old version, a deprecated argument) become notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(warning.message)).removeprefix("WARN: ").strip()
        if text not in notes:
            notes.append(text)


# -- what the manifest says about an environment -------------------------------------------------------------------------


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
    layers, arguments = _layers(env), dict(found["kwargs"])
    unstated = _unstated_wrappers(layers, spec)
    if hasattr(env, "single_action_space"):  # of `make_vec`
        unstated += [_name_of(wrap) for wrap in _wraps(arguments)]
        arguments = {name: value for name, value in arguments.items() if name not in _OF_MAKE_VEC}
        found["max_episode_steps"] = arguments.pop("max_episode_steps", found["max_episode_steps"])
    else:
        limits = [layer.spec for layer in layers if isinstance(layer, gymnasium.wrappers.TimeLimit)]
        steps: list[Any] = [one.max_episode_steps for one in limits if one]
        found["max_episode_steps"] = min(steps, default=found["max_episode_steps"])
    found["kwargs"] = {name: value for name, value in arguments.items() if _is_json(value)}
    wrappers = spec.additional_wrappers
    unstated += [one.name for one in wrappers if not _is_json(one.kwargs)]
    found["additional_wrappers"] = [dataclasses.asdict(one) for one in wrappers if _is_json(one.kwargs)]
    missing = {"kwargs": sorted({*arguments} - {*found["kwargs"]}), "wrappers": unstated}
    stated = {name: value for name, value in found.items() if _is_json(value)}
    return json.loads(json.dumps({**stated, **({"missing": missing} if any(missing.values()) else {})}))


def _unstated_wrappers(layers: list[Any], spec: Any) -> list[str]:
    """The classes around an environment that its specification does not name."""
    wrappers = [layer for layer in layers if isinstance(layer, gymnasium.vector.VectorWrapper)]
    unstated = [type(layer).__name__ for layer in wrappers if type(layer).__name__ not in _OBSERVERS]
    module, _, name = spec.entry_point.partition(":") if isinstance(spec.entry_point, str) else ("", "", "")
    creator = getattr(sys.modules.get(module), name, None) if module else spec.entry_point
    single = isinstance(layers[-1], gymnasium.Env)
    if single and isinstance(creator, type) and not any(isinstance(layer, creator) for layer in layers):
        unstated.append(type(layers[-1]).__name__)  # an environment that holds the one whose specification it has
    return unstated


def classes_of(env: Any) -> list[str]:
    """The names of the classes of an environment: its wrappers from the outside in, and its own; of a `SyncVectorEnv`, those of
    its first environment too."""
    return [type(layer).__name__ for layer in _layers(env)]


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
        elif isinstance(layer, gymnasium.vector.VectorEnv) and not isinstance(layer, gymnasium.vector.SyncVectorEnv):
            found.append(type(layer).__name__)
    return found


def _may_change_returns(wrapper: type) -> bool:
    stepped_by = next(one for one in wrapper.__mro__ if "step" in vars(one)).__module__.partition(".")[0]
    known = ("gymnasium", __package__.partition(".")[0])
    return issubclass(wrapper, _REWARD_WRAPPERS) or stepped_by not in known


def _layers(env: Any) -> list[Any]:
    """The wrappers of an environment from the outside in, and what they wrap; a `SyncVectorEnv` has its first environment in
    it. Recorders are left out."""
    layers = [env]
    while True:
        if isinstance(env, (gymnasium.Wrapper, gymnasium.vector.VectorWrapper)):
            env = env.env
        elif isinstance(env, gymnasium.vector.SyncVectorEnv):
            env = env.envs[0]
        else:
            return [layer for layer in layers if not type(layer).__module__.startswith(__package__)]
        layers.append(env)


def _wraps(arguments: Mapping[str, Any]) -> list[Any]:
    """What `gymnasium.make_vec` wraps each environment with."""
    return [getattr(wrap, "func", wrap) for wrap in arguments.get("wrappers", ())]  # of a `functools.partial`


def _name_of(wrap: Any) -> str:
    """The name of a function or class, or of the class of an object."""
    return getattr(wrap, "__name__", type(wrap).__name__)


def _is_json(value: Any) -> bool:
    """Whether JSON gives the value back, tuples as lists."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) for name in value) and all(map(_is_json, value.values()))
    return value is None or isinstance(value, (bool, int, float, str))
