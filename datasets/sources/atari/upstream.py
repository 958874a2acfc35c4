"""Where a run comes from: the DQN Replay bucket, RL Unplugged, or a mirror in the layout of either.

    dqn-replay     gs://atari-replay-datasets/dqn, the ring shards: 60 games; access denied since April 2025
    rl-unplugged   gs://rl_unplugged, the same experience as ordered episodes: 46 of the games

``auto`` takes the mirror if there is one, whichever layout it has, else the bucket, else RL Unplugged. Both give the same
dataset, except that episodes which cross two checkpoints are whole in the shards and cut in the ordered episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ....errors import ObjectNotFoundError, page
from ...fetch import Location
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


def places(upstream: str) -> list[str]:
    """Where an upstream is; all of them for ``auto``, in the order in which they are tried."""
    return [home for name, (home, _) in _UPSTREAMS.items() if upstream in (AUTO, name)]


def open_run(name: str, location: Location, options: ConvertOptions) -> AnyJob:
    """Find a run's raw objects at a public place, which has one upstream's, or a mirror, which may have either's.

    Raises ObjectNotFoundError where they are not there.
    """
    game, _, run = name.partition("/")
    wanted = options.extra["upstream"]
    chosen = {upstream: where for upstream, where in _UPSTREAMS.items() if wanted in (AUTO, upstream)}
    here = {upstream: where for upstream, where in chosen.items() if where[0] == location.url}
    errors: list[ObjectNotFoundError] = []
    for upstream, (_, find) in (here or chosen).items():
        try:
            return make_job(upstream, name, location, find(location, game, int(run)), options)
        except ObjectNotFoundError as error:
            if error.partly_there:
                raise
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    message = f"no shards and no episodes of {name} at {location.url}"
    raise ObjectNotFoundError(message, hint="; ".join(str(error.hint) for error in errors)) from errors[0]


def make_job(upstream: str, name: str | None, location: Location, found: Any, options: ConvertOptions) -> AnyJob:
    """The job for the shards or files that were found."""
    if upstream == RL_UNPLUGGED:
        from .rl_unplugged.job import RluJob

        return RluJob(name, location, found, options)
    from .job import AtariJob

    return AtariJob(name, location, found, options)


def where_else(name: str) -> str:
    """What can be done when no public place gives a run."""
    return (
        f"give --mirror (or RBDATA_ATARI_MIRROR) a copy that holds dqn/{name}/replay_logs, "
        f"{FOLDER}/{name.partition('/')[0]}, or the converted dataset; if you were given access, run "
        f"`gcloud auth application-default login`; see {page('mirrors.md')}"
    )
