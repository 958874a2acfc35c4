"""Records an environment, given by id, specification, factory or object, with a policy."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .. import settings
from ..errors import DatasetExistsError, UsageError
from ..storage.folder import DatasetPlace
from ..storage.lock import when_free
from . import acquire, catalogue
from .ingest.bar import progress_listener
from .ingest.pipeline import run
from .ingest.records import ConvertOptions
from .ingest.request import Listener, Request, extend, find_existing

if TYPE_CHECKING:
    import gymnasium
    import gymnasium.envs.registration

    from ..storage.manifest import Manifest
    from .sources.gymnasium.environments import Made


def record(
    env: str | gymnasium.envs.registration.EnvSpec | gymnasium.Env | Callable[[], gymnasium.Env],
    policy: Any = "random",
    *,
    name: str | None = None,
    steps: int | None = None,
    episodes: int | None = None,
    seed: int = 0,
    num_envs: int = 1,
    epsilon: float = 0.0,
    env_args: dict[str, Any] | None = None,
    text: Literal["bytes", "omit"] = "bytes",
    codec: str = "auto",
    layout: Literal["auto", "ted"] = "auto",
    version: str | None = None,
    procs: int = 1,
    append: bool = False,
    force: bool = False,
    wait: bool = True,
    root: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    listener: Listener | None = None,
) -> Path:
    """Record a policy that acts in an environment; returns the folder, for `load` and `open_dataset`.

    ``env`` is a Gymnasium id, an ``EnvSpec``, a factory, or an environment (which stays open). The dataset is
    ``gymnasium/ID`` or, with a name, ``gymnasium/ID@NAME``; an environment without an id needs a name, and is ``my/NAME``.
    ``policy`` is as on the command line (``"random"``, ``"file.py:name"``), or an object: a function from an observation to an
    action, a callable or an object with ``act``, or a class of such objects, which is instantiated. Its ``reset``, if it has
    one, is called at the beginning of each episode. ``num_envs`` environments are stepped together; the policy then gets
    stacked observations and returns stacked actions. Environment i is reset with ``seed + i``: seeds of several recordings are
    to be at least ``num_envs`` apart.

    ``steps`` (20,000 by default) or ``episodes`` limit the recording; with both, the first limit reached counts. A policy and
    an environment given as text act in a worker process (``procs=0``: in this one, for a debugger), and an existing recording
    with the same options, and a policy whose files are the same, is not made again. Objects act in this process, whose global
    generators (``random``, ``numpy.random``, torch) are seeded; an object does not say what it is, so that an existing
    recording is an error, unless both were given the same ``version``, your own word for what the objects are.

    With ``append`` the episodes come after those of the recording that is there (without one it is made), which grows when all
    of them are recorded, and otherwise stays as it is. Spaces must be the same, the policy and the environment may be others;
    ``source["appended"]`` of the manifest states them. A seed is used once: ``seed`` to ``seed + num_envs - 1`` must be new.

    If another process is making it, this one waits (``wait=False`` raises DatasetBusyError). ``progress`` and ``listener`` are
    those of `download`. Raises DatasetExistsError for a different recording (``force`` replaces it) and for a seed that was
    used, UsageError for other spaces, FunctionError if the policy raises, and as `acquire.download`.
    """
    extra: dict[str, Any] = {"steps": steps, "episodes": episodes, "seed": seed, "num_envs": num_envs}
    extra |= {"epsilon": epsilon, "env_args": env_args or {}, "text": text, "name": name}
    where = None if root is None else Path(root)

    def request(dataset_id: str, called: str) -> Request:
        options = ConvertOptions(codec, layout, extra={**extra, "policy": called})
        return Request(dataset_id, where, options=options, procs=procs, append=append, force=force, wait=wait)

    if isinstance(env, str) and isinstance(policy, str):
        if version is not None:
            raise UsageError("version is for objects: what is given as text is known by its files", hint="leave it out")
        asked = request(f"gymnasium/{env}", policy)
        with progress_listener("@".join(filter(None, (asked.id, name))), listener, progress) as events:
            return acquire.download(asked, events).path

    from .sources.gymnasium.policy import name_policy
    from .sources.gymnasium.reader import PolicyReader
    from .sources.gymnasium.source import check_name, join_name

    environment, made = _environment(env, env_args or {}, num_envs)
    if environment is None and name is None:
        raise UsageError("an environment without an id needs a name", hint='record(env, policy, name="...")')
    full = f"gymnasium/{join_name(environment, name)}" if environment else f"my/{check_name(str(name))}"
    asked = replace(request(full, name_policy(policy)), root=settings.root(root))
    place = DatasetPlace(settings.root(root), full)

    def check(existing: Manifest) -> Path:
        recorded, appended = existing.source.get("version"), existing.source.get("appended")
        if version is None or version != recorded or appended:
            of_it = f", as version {recorded!r}" if recorded is not None else ""
            message = f"{full} is there already{of_it}, and an object does not tell whether it is the same"
            if appended:
                message = f"{full} is there already{of_it}, with more recordings appended to it"
            hint = 'replace it with force=True, or record under another name="..."; version="..." says what the objects are'
            raise DatasetExistsError(message, hint=hint)
        return place.path

    existing = find_existing(place, asked)
    if existing is not None:
        return check(existing)
    asked = extend(place, asked, ()) if append else asked
    options = catalogue.load_source("gymnasium").check(asked.options, "download")
    made = replace(made, id=environment.partition("@")[0] if environment else str(name))
    reader = PolicyReader(made, options, None if isinstance(policy, str) else policy, version)
    with progress_listener(full, listener, progress) as events:
        action = partial(run, reader, place, asked, events, reader.location.url, check)
        return when_free(action, wait, events.on_note, events.on_stage).path


def _environment(env: Any, arguments: dict[str, Any], num_envs: int) -> tuple[str | None, Made]:
    """The id of an environment, if it has one, and how to make it."""
    from .sources.gymnasium.environments import Made

    if isinstance(env, str):
        return env, Made(env, arguments)
    if arguments:
        raise UsageError("env_args are for an environment by id", hint="give them where the environment is made")
    import gymnasium.envs.registration

    if isinstance(env, gymnasium.envs.registration.EnvSpec):
        return env.id, Made(env.id, {}, make=lambda: gymnasium.make(env))
    if isinstance(env, gymnasium.Env):
        if num_envs > 1:
            hint = "give its id, or a function that makes one"
            raise UsageError("num_envs needs more than one environment", hint=hint)
        return env.spec.id if env.spec else None, Made("", {}, own=env)
    if callable(env):
        made = env()
        if not isinstance(made, gymnasium.Env):
            raise UsageError(f"the function that makes the environment returned {type(made).__name__}")
        found = made.spec.id if made.spec else None
        made.close()
        return found, Made("", {}, make=env)
    hint = "give an id, an EnvSpec, a factory or a gymnasium.Env"
    raise UsageError(f"{type(env).__name__} is not an environment", hint=hint)
