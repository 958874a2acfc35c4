"""The environment that a dataset comes from, made again.

A dataset is a file that anyone may have written. Unless it is trusted, nothing that it names is imported: its environment is
made only if Gymnasium's registry has its id (a package in `_PACKAGES` that registers it is imported first), and with arguments
that are numbers, words and lists of these.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from ...errors import MissingExtraError, RbdataError, UsageError, reason

#: What registers environments: a pattern of ids, the module, what to install.
_PACKAGES = (
    (r"ALE/.*|.*(NoFrameskip|Deterministic)-v\d", "ale_py", "'rbdata[atari]'"),
    (
        r"(PointMaze|AntMaze|AdroitHand|Franka|Fetch|Hand(Manipulate|Reach)).*",
        "gymnasium_robotics",
        "gymnasium-robotics",
    ),
    (r"(MiniGrid|BabyAI)-.*", "minigrid", "minigrid"),
    (r"dm_control/.*", "shimmy", "'shimmy[dm-control]'"),
    (r"Meta-World/.*", "metaworld", "metaworld"),
    (r"(visual-)?(pointmaze|antmaze|humanoidmaze|antsoccer|cube|scene|puzzle|powderworld)-.*", "ogbench", "ogbench"),
)
#: Strings among a file's arguments; with a colon or a slash one could name a module or a path.
_WORD = re.compile(r"[\w .+-]{0,200}")


def _package_of(name: str) -> tuple[str, str] | None:
    """The module that registers an id of a well-known family, and what to install for it."""
    return next(((module, package) for pattern, module, package in _PACKAGES if re.fullmatch(pattern, name)), None)


def register(name: str) -> None:
    """Import what registers an id of a well-known family. Call it inside of `making`."""
    import gymnasium

    found = _package_of(name)
    if found is None or name in gymnasium.registry:
        return
    imported = importlib.import_module(found[0])
    if found[0] == "ale_py":
        imported.ALEInterface.setLoggerMode(imported.LoggerMode.Error)  # its banner would mix with our output
    gymnasium.register_envs(imported)


@contextmanager
def making(name: str, hint: str) -> Iterator[None]:
    """The errors of an environment that is made inside: MissingExtraError with a ``hint`` if a package or the id is missing,
    otherwise RbdataError."""
    from gymnasium import error

    try:
        yield
    except RbdataError:
        raise
    except error.DependencyNotInstalled as problem:
        message = f"{name} needs a package that is not installed: {reason(problem)}"
        raise MissingExtraError(message, hint=hint) from problem
    except (error.UnregisteredEnv, ModuleNotFoundError) as problem:
        found = _package_of(name)
        hint = f"pip install {found[1]}" if found else hint
        raise MissingExtraError(f"{name} cannot be made: {reason(problem)}", hint=hint) from problem
    except Exception as problem:
        message = f"{name} cannot be made: {type(problem).__name__}: {reason(problem)}"
        raise RbdataError(message, hint=f"try it in Python: gymnasium.make({name!r})") from problem


@dataclass(frozen=True)
class KnownEnvironment:
    """How to make an environment.

    ``stated`` is the specification in a file, as Gymnasium writes it, which is used as it is where the file is trusted.
    ``wrap`` wraps the environment so that it returns the observations of the dataset. ``requirements`` are named in a hint.
    """

    id: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    stated: Mapping[str, Any] | None = None
    wrap: Callable[[Any], Any] | None = None
    requirements: str = ""

    def make(self, trust: bool = False, arguments: Mapping[str, Any] | None = None) -> Any:
        """The environment, a `gymnasium.Env`; ``arguments`` come on top of those it was recorded with.

        ``trust``: what the file names may be imported and run. Raises UsageError for an environment that needs trust,
        MissingExtraError if a package is missing, RbdataError where the environment cannot be made.
        """
        import gymnasium

        given, stated = dict(arguments or {}), {**(self.stated or {})}
        self._check_missing(given)
        if not trust:
            self._check()
        with making(self.id, self._hint):
            if not trust or not ("entry_point" in stated or stated.get("additional_wrappers")):
                register(self.id)
                made = gymnasium.make(self.id, **{**self.arguments, **given})
            else:
                stated.pop("missing", None)
                spec = gymnasium.envs.registration.EnvSpec.from_json(json.dumps(stated))
                if spec.entry_point is None:  # it was registered with an object
                    spec.entry_point = gymnasium.spec(self.id).entry_point
                made = gymnasium.make(spec, **given)
            return self.wrap(made) if self.wrap else made

    def specification(self) -> str:
        """Gymnasium's specification of the environment as JSON, from which ``gymnasium.make`` makes it.

        Raises UsageError where a specification cannot say all of it, MissingExtraError if the environment is not registered.
        """
        import gymnasium

        stated = {**(self.stated or {})}
        self._check_missing({})
        if self.wrap is not None:
            raise UsageError(f"{self.id} has the dataset's observations only in wrappers of this package")
        if "entry_point" in stated and stated["entry_point"] is not None:
            return json.dumps(stated)
        with making(self.id, self._hint):
            register(self.id)
            spec = deepcopy(gymnasium.spec(self.id))
        arguments = dict(self.arguments)
        limit = arguments.pop("max_episode_steps", spec.max_episode_steps)
        spec.max_episode_steps = None if limit == -1 else limit
        spec.kwargs.update(arguments)
        return spec.to_json()

    def _check_missing(self, given: Mapping[str, Any]) -> None:
        """Raise UsageError where the recorded environment had arguments or wrappers that the file does not hold."""
        missing = (self.stated or {}).get("missing")
        begin = f"make it as it was made for the recording, beginning with gymnasium.make({self.id!r})"
        for key, word, hint in (("kwargs", "arguments", "pass them to make_env"), ("wrappers", "wrappers", begin)):
            names = missing.get(key) if isinstance(missing, Mapping) else None
            left = [str(name) for name in names if name not in given] if isinstance(names, list) else []
            if left:
                message = f"{self.id} was recorded with {word} that the manifest cannot hold: {', '.join(left)[:200]}"
                raise UsageError(message, hint=hint)

    def _check(self) -> None:
        """Raise UsageError where a file names something that would be imported."""
        stated = self.stated or {}
        wrappers = [str(one.get("name")) for one in stated.get("additional_wrappers") or () if isinstance(one, Mapping)]
        odd = [name for name, value in self.arguments.items() if self.stated is not None and not _is_plain(value)]
        module = [self.id] if ":" in self.id else []
        what = "the module of" if module else "wrappers:" if wrappers else "arguments that could name files or modules:"
        if named := module or wrappers or odd:
            message = f"the environment of this dataset needs {what} {', '.join(named)[:200]}"
            hint = "make_env(trust=True) imports and runs what the dataset names: only for files whose author you trust"
            raise UsageError(message, hint=hint)

    @property
    def _hint(self) -> str:
        if self.requirements:
            return f"it needs {self.requirements}: install that, import what registers the environment, and try again"
        return "install and import the package that registers it, and try again"


def stated_environment(record: Mapping[str, Any]) -> KnownEnvironment | None:
    """The environment that the ``source`` record of a manifest states: an id, or Gymnasium's specification as JSON."""
    stated = record.get("environment")
    stated = {"id": stated} if isinstance(stated, str) else stated
    if not isinstance(stated, Mapping) or not isinstance(stated.get("id"), str):
        return None
    arguments = stated.get("kwargs")
    arguments = dict(arguments) if isinstance(arguments, Mapping) else {}
    limit = stated.get("max_episode_steps")
    if isinstance(limit, int) and limit > 0:
        arguments["max_episode_steps"] = limit
    elif "max_episode_steps" in stated and limit is None:
        arguments["max_episode_steps"] = -1  # none, whatever the registry says
    metadata = record.get("metadata")
    wanted = metadata.get("requirements") if isinstance(metadata, Mapping) else None
    named = ", ".join(map(str, wanted))[:200] if isinstance(wanted, (list, tuple)) else ""
    return KnownEnvironment(stated["id"], arguments, stated, requirements=named if named.isprintable() else "")


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple, Mapping)):
        values = [*value, *value.values()] if isinstance(value, Mapping) else value
        return all(map(_is_plain, values))
    return bool(_WORD.fullmatch(value)) if isinstance(value, str) else isinstance(value, (bool, int, float, type(None)))
