"""Where a run comes from: the DQN Replay bucket, RL Unplugged, or a mirror in the layout of either.

    dqn-replay     gs://atari-replay-datasets/dqn, the ring shards: 60 games; access denied since April 2025
    rl-unplugged   gs://rl_unplugged, the same experience as ordered episodes: 46 of the games

``auto`` takes the mirror if there is one, whichever layout it has, else the bucket, else RL Unplugged. Both give the same
dataset, except that episodes which cross two checkpoints are whole in the shards and cut in the ordered episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ....errors import FetchError, ForbiddenError, ObjectNotFoundError, page
from ...fetch import Location, open_location
from ...fetch.http_errors import status_of
from ...ingest.protocol import ConvertOptions
from .rl_unplugged.files import FOLDER, find_files
from .rl_unplugged.files import HOME as RLU_HOME
from .rl_unplugged.files import UPSTREAM as RL_UNPLUGGED
from .shards import UPSTREAM as DQN_REPLAY
from .shards import find_shards

if TYPE_CHECKING:
    from .job import AtariJob
    from .rl_unplugged.job import RluJob

    AnyJob: TypeAlias = AtariJob | RluJob

AUTO = "auto"
HOME = "gs://atari-replay-datasets/dqn"
#: Where each upstream is, and what finds the raw objects of a run there, in the order in which they are tried.
_UPSTREAMS: dict[str, tuple[str, Callable[[Location, str, int], Sequence[Any]]]] = {
    DQN_REPLAY: (HOME, find_shards),
    RL_UNPLUGGED: (RLU_HOME, find_files),
}


def open_run(name: str, location: Location, options: ConvertOptions) -> AnyJob:
    """Find a run's raw objects; ``location`` is a mirror, or HOME where there is none.

    Raises ObjectNotFoundError when no place has them, ForbiddenError when access is denied where they may be.
    """
    game, _, run = name.partition("/")
    at_home = location.url == HOME
    errors: dict[str, FetchError] = {}
    for upstream, (home, find) in _UPSTREAMS.items():
        if options.extra["upstream"] not in (AUTO, upstream):
            continue
        place = open_location(home, options=location.options) if at_home and home != HOME else location
        try:
            found = find(place, game, int(run))
        except (ForbiddenError, ObjectNotFoundError) as error:
            if not at_home and isinstance(error, ForbiddenError):
                raise
            errors[home] = error
            continue
        job = make_job(upstream, name, place, found, options)
        if at_home and errors:
            job.why = f"upstream {upstream}, because {HOME}: {_describe(errors[HOME])}"
        return job
    first = next(iter(errors.values()))
    if at_home:
        raise _not_available(name, errors) from first
    if len(errors) == 1:
        raise first
    message = f"no shards and no episodes of {name} at {location.url}"
    raise ObjectNotFoundError(message, hint="; ".join(str(error.hint) for error in errors.values())) from first


def make_job(upstream: str, name: str | None, location: Location, found: Any, options: ConvertOptions) -> AnyJob:
    """The job for the shards or files that were found."""
    if upstream == RL_UNPLUGGED:
        from .rl_unplugged.job import RluJob

        return RluJob(name, location, found, options)
    from .job import AtariJob

    return AtariJob(name, location, found, options)


def _not_available(name: str, errors: dict[str, FetchError]) -> FetchError:
    """The error when no public place gives a run: what each answered, and what can be done."""
    answers = "; ".join(f"{place}: {_describe(error)}" for place, error in errors.items())
    game = name.partition("/")[0]
    hint = (
        f"give --mirror (or RBDATA_ATARI_MIRROR) a copy that holds dqn/{name}/replay_logs, {FOLDER}/{game}, or the "
        f"converted dataset; if you were given access, run `gcloud auth application-default login`; see {page('mirrors.md')}"
    )
    kind = (
        ForbiddenError if any(isinstance(error, ForbiddenError) for error in errors.values()) else ObjectNotFoundError
    )
    return kind(f"atari/{name} is not available: {answers}", hint=hint)


def _describe(error: FetchError) -> str:
    status = f" (HTTP {code})" if (code := status_of(error)) else ""
    return f"access denied{status}" if isinstance(error, ForbiddenError) else f"not found{status}"
