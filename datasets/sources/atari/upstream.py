"""Where a run comes from: the DQN Replay bucket, RL Unplugged, or a mirror in the layout of either.

    dqn-replay     gs://atari-replay-datasets/dqn, the ring shards: 60 games; access denied since April 2025
    rl-unplugged   gs://rl_unplugged, the same experience as ordered episodes: 46 of the games

``auto`` takes the mirror if there is one, whichever layout it has, else the bucket, else RL Unplugged. Both give the same
dataset, except that episodes which cross two checkpoints are whole in the shards and cut in the ordered episodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from ....errors import FetchError, ForbiddenError, ObjectNotFoundError
from ...fetch import Location, open_location
from ...fetch.http_errors import status_of
from ...ingest.protocol import ConvertOptions
from .rl_unplugged.files import FOLDER, LEFT_OUT, EpisodeFile, find_files
from .rl_unplugged.files import HOME as RLU_HOME
from .rl_unplugged.files import UPSTREAM as RL_UNPLUGGED
from .shards import UPSTREAM as DQN_REPLAY
from .shards import Shard, find_shards

if TYPE_CHECKING:
    from .job import AtariJob
    from .rl_unplugged.job import RluJob

    AnyJob: TypeAlias = AtariJob | RluJob

Found: TypeAlias = "list[Shard] | list[EpisodeFile]"

AUTO = "auto"
HOME = "gs://atari-replay-datasets/dqn"


def open_run(name: str, location: Location, options: ConvertOptions) -> AnyJob:
    """Find a run's raw objects; ``location`` is a mirror, or HOME where there is none.

    Raises ObjectNotFoundError when no place has them, ForbiddenError when access is denied where they may be.
    """
    wanted = options.extra["upstream"]
    if location.url != HOME:
        return _job(name, location, options, _find_at_mirror(name, location, wanted))
    errors: dict[str, FetchError] = {}
    if wanted in (AUTO, DQN_REPLAY):
        found = _try(_find_shards, name, location, errors)
        if found is not None:
            return _job(name, location, options, found)
    if wanted in (AUTO, RL_UNPLUGGED):
        location = open_location(RLU_HOME, options=location.options)
        found = _try(_find_episodes, name, location, errors)
        if found is not None:
            job = _job(name, location, options, found)
            if errors:
                job.why = f"upstream rl-unplugged, because {HOME}: {_describe(errors[HOME])}"
            return job
    raise _not_available(name, errors) from next(iter(errors.values()))


def _job(name: str, location: Location, options: ConvertOptions, found: Found) -> AnyJob:
    """The job for what was found."""
    if isinstance(found[0], EpisodeFile):
        from .rl_unplugged.job import RluJob

        return RluJob(name, location, found, options)
    from .job import AtariJob

    return AtariJob(name, location, found, options)


def _find_shards(name: str, location: Location) -> Found:
    game, _, run = name.partition("/")
    return find_shards(location, game, int(run))


def _find_episodes(name: str, location: Location) -> Found:
    game, _, run = name.partition("/")
    if location.url == RLU_HOME and game in LEFT_OUT:
        raise ObjectNotFoundError(f"RL Unplugged does not have {game}")
    return find_files(location, game, int(run))


def _find_at_mirror(name: str, location: Location, wanted: str) -> Found:
    missing = []
    for upstream, find in ((DQN_REPLAY, _find_shards), (RL_UNPLUGGED, _find_episodes)):
        if wanted not in (AUTO, upstream):
            continue
        try:
            return find(name, location)
        except ObjectNotFoundError as error:
            missing.append(error)
    if len(missing) == 1:
        raise missing[0]
    message = f"no shards and no episodes of {name} at {location.url}"
    raise ObjectNotFoundError(message, hint="; ".join(str(error.hint) for error in missing)) from missing[0]


def _try(
    find: Callable[[str, Location], Found], name: str, location: Location, errors: dict[str, FetchError]
) -> Found | None:
    """What is there; None, with the error noted, where access is denied or nothing is found. Other errors pass."""
    try:
        return find(name, location)
    except (ForbiddenError, ObjectNotFoundError) as error:
        errors[location.url] = error
        return None


def _not_available(name: str, errors: dict[str, FetchError]) -> FetchError:
    """The error when no public place gives a run: what each answered, and what can be done."""
    answers = "; ".join(f"{place}: {_describe(error)}" for place, error in errors.items())
    game = name.partition("/")[0]
    hint = (
        f"give --mirror (or RBDATA_ATARI_MIRROR) a copy that holds dqn/{name}/replay_logs, {FOLDER}/{game}, or the "
        "converted dataset; if you were given access, run `gcloud auth application-default login`; see docs/mirrors.md"
    )
    kind = (
        ForbiddenError if any(isinstance(error, ForbiddenError) for error in errors.values()) else ObjectNotFoundError
    )
    return kind(f"atari/{name} is not available: {answers}", hint=hint)


def _describe(error: FetchError) -> str:
    status = f" (HTTP {code})" if (code := status_of(error)) else ""
    return f"access denied{status}" if isinstance(error, ForbiddenError) else f"not found{status}"
