"""Environments by id: which there are, and making them with errors that say what to do."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....errors import MissingExtraError, RbdataError, UnknownDatasetError, UsageError, is_interrupt

#: What `rbdata list` shows: ids that need nothing but Gymnasium, and two that need the ``atari`` extra.
CLASSIC = (
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "FrozenLake-v1",
    "Blackjack-v1",
    "ALE/Breakout-v5",
    "ALE/Pong-v5",
)

_ALL = "`python -c 'import gymnasium; gymnasium.pprint_registry()'` shows them all"

#: Gymnasium's own syntax, ``(module:)(namespace/)name(-vN)``.
_ID = re.compile(r"(?:[\w.]+:)?(?:[\w:-]+/)?[\w:.-]+?(?:-v\d+)?")


#: Between an environment's id and the name of a recording; no id of Gymnasium has it.
_AT = "@"
_NAME = re.compile(r"\w[\w.+-]*")
#: What `gymnasium.make_vec` adds to the arguments of its environments.
_OF_MAKE_VEC = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")
#: Vector wrappers that change neither observations nor actions, rewards or ends.
_OBSERVERS = ("RecordEpisodeStatistics", "DictInfoToList", "RecordVideo", "HumanRendering", "VectorRecorder")


def is_id(name: str) -> bool:
    """Whether Gymnasium's registry could have such an id."""
    return _ID.fullmatch(name) is not None


def is_name(recording: str) -> bool:
    """Whether a recording can have this name."""
    return _NAME.fullmatch(recording) is not None


def split_name(text: str) -> tuple[str, str | None]:
    """``CartPole-v1@expert`` as environment and recording, the latter None without a name."""
    environment, at, recording = text.partition(_AT)
    return environment, recording if at else None


def join_name(text: str, recording: str | None) -> str:
    """``CartPole-v1`` (or the same with its name already) and ``expert`` as ``CartPole-v1@expert``.

    Raises UsageError for another name than the one that is there, and for one that cannot be part of an id.
    """
    environment, given = split_name(text)
    if recording is None or recording == given:
        return text
    if given is not None:
        message = f"{text} has a name already, which is not {recording}"
        raise UsageError(message, hint=f"leave one out: {environment}{_AT}{recording}")
    return f"{environment}{_AT}{check_name(recording)}"


def check_name(recording: str) -> str:
    """The name of a recording. Raises UsageError for an invalid one."""
    if not isinstance(recording, str) or not is_name(recording):
        hint = "letters, digits and _ . + -, such as expert or seed-3"
        raise UsageError(f"{recording!r} cannot be the name of a recording", hint=hint)
    return recording


@dataclass(frozen=True)
class Made:
    """How to make an environment: its id, keyword arguments, and how many copies are stepped together.

    ``make`` is called instead where it is given: ``id`` then only names it in messages. ``own`` is the caller's environment,
    if it is one that is made already.
    """

    id: str
    arguments: Mapping[str, Any]
    count: int = 1
    make: Callable[[], Any] | None = None
    own: Any = None

    def open(self) -> Any:
        """The environment, a `gymnasium.Env`; one of them where there are to be several.

        Raises UnknownDatasetError for an id that is not registered, MissingExtraError for a missing package, UsageError for
        arguments that it does not take, RbdataError when it cannot be made.
        """
        import gymnasium
        from gymnasium import error

        if self.make is None:
            _register(self.id)
        try:
            return self.make() if self.make is not None else gymnasium.make(self.id, **self.arguments)
        except error.UnregisteredEnv as problem:
            message = f"Gymnasium has no environment {self.id}: {problem}"
            raise UnknownDatasetError(message, hint=_nearest(self.id)) from problem
        except error.DependencyNotInstalled as problem:
            message = f"{self.id} needs a package that is not installed: {problem}"
            raise MissingExtraError(message, hint="install what it asks for and run the command again") from problem
        except ModuleNotFoundError as problem:
            message = f"{self.id} cannot be made: {problem}"
            hint = "install the package that registers it; a module in the current directory is found as well"
            raise MissingExtraError(message, hint=hint) from problem
        except TypeError as problem:
            if not self.arguments:
                raise _failed(self.id, problem) from problem
            message = f"{self.id} does not take {', '.join(self.arguments)}: {problem}"
            raise UsageError(message, hint="check --env-arg") from problem
        except BaseException as problem:
            if is_interrupt(problem):
                raise
            raise _failed(self.id, problem) from problem

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
                with suppress(Exception, SystemExit):  # what failed before is told
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


def _failed(name: str, problem: BaseException) -> RbdataError:
    message = f"{name} cannot be made: {type(problem).__name__}: {problem}"
    return RbdataError(message, hint=f"try it in Python: gymnasium.make({name!r})")


def _register(name: str) -> None:
    """Import what registers environments of a well-known namespace."""
    if not name.startswith("ALE/"):
        return
    import gymnasium

    try:
        import ale_py
    except ImportError as error:
        raise MissingExtraError(f"{name} needs ale-py", hint="pip install 'rbdata[atari]'") from error
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # its banner would mix with our output
    gymnasium.register_envs(ale_py)


def _nearest(name: str) -> str:
    """The registered ids most like one that is not."""
    import gymnasium

    bare = {known.lower(): known for known in gymnasium.registry}
    near = difflib.get_close_matches(name.lower(), list(bare), n=3, cutoff=0.6)
    return f"did you mean {', '.join(bare[one] for one in near)}?" if near else _ALL


def specification(env: Any) -> dict[str, Any] | None:
    """An environment's specification as JSON values, in Gymnasium's form; of a vector environment that of a single one.

    An entry point that is an object is left out: the registry has it. ``missing``, ``{"kwargs": [...], "wrappers": [...]}``,
    names the arguments and wrappers that JSON cannot express, or that Gymnasium does not state.
    """
    spec = env.spec
    if spec is None:
        return None
    if not hasattr(spec, "additional_wrappers"):
        return {"id": spec.id}
    found = {one.name: getattr(spec, one.name) for one in dataclasses.fields(spec) if one.init}
    layers = [*_layers(env)]
    arguments, missing = dict(found["kwargs"]), _unstated_wrappers(layers, spec)
    if hasattr(env, "single_action_space"):  # of `make_vec`
        wraps = [getattr(wrap, "func", wrap) for wrap in arguments.get("wrappers", ())]  # of a `functools.partial`
        missing += [getattr(wrap, "__name__", type(wrap).__name__) for wrap in wraps]
        arguments = {name: value for name, value in arguments.items() if name not in _OF_MAKE_VEC}
        found["max_episode_steps"] = arguments.pop("max_episode_steps", found["max_episode_steps"])
    limits = [layer.spec.max_episode_steps for layer in layers if _is_time_limit(layer) and layer.spec]
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
    import gymnasium

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


def _layers(env: Any) -> Iterator[Any]:
    """The wrappers of an environment from the outside in, and what they wrap."""
    import gymnasium

    while isinstance(env, (gymnasium.Wrapper, gymnasium.vector.VectorWrapper)):
        yield env
        env = env.env
    yield env


def _is_time_limit(layer: Any) -> bool:
    import gymnasium

    return isinstance(layer, gymnasium.wrappers.TimeLimit)


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
    """What Gymnasium warns of (an old version, a deprecated argument) becomes notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(warning.message)).removeprefix("WARN: ").strip()
        if text not in notes:
            notes.append(text)
