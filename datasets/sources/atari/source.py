"""The Atari DQN Replay dataset: 60 games, 5 runs each, about 50 M steps a run.

Agarwal, Schuurmans, Norouzi, "An Optimistic Perspective on Offline Reinforcement Learning", ICML 2020
(https://arxiv.org/abs/1907.04543). Logged by a Nature-DQN with sticky actions (0.25), frame skip 4, 84x84 greyscale,
rewards clipped to [-1, 1] before they were stored. There are two upstreams, and mirrors have the layout of either:

    dqn-replay     gs://atari-replay-datasets/dqn, the ring shards: 60 games; access denied since April 2025
    rl-unplugged   gs://rl_unplugged, the same experience as ordered episodes: 46 of the games

``auto`` takes the mirror if there is one, in either layout, else the bucket, else RL Unplugged. Both give the same dataset,
except that episodes which cross two checkpoints are whole in the shards and cut in the ordered episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ....errors import ObjectNotFoundError, page
from ....storage.reference_scores import ReferenceScores
from ...fetch import Location
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions
from ..human_scores import human_scores
from ..known_environment import KnownEnvironment
from ..options import declared
from ..source import Source
from .raw_files import (
    DQN_REPLAY,
    DQN_REPLAY_HOME,
    FOLDER,
    RL_UNPLUGGED,
    RL_UNPLUGGED_HOME,
    find_episode_files,
    find_shards,
    group_episode_files,
    group_shards,
)

_AUTO = "auto"
#: Where each upstream is, and what finds the raw files of a run there, in the order in which they are tried.
_UPSTREAMS: dict[str, tuple[str, Callable[[Location, str, int], Sequence[Any]]]] = {
    DQN_REPLAY: (DQN_REPLAY_HOME, find_shards),
    RL_UNPLUGGED: (RL_UNPLUGGED_HOME, find_episode_files),
}


class AtariSource(Source):
    """Names are ``<Game>/<run>``."""

    name = "atari"
    home = DQN_REPLAY_HOME
    options = declared("atari")
    supports = frozenset({"parts", "time_limit", "codec", "layout", "unknown_next"})

    def reference_scores(self, record: Mapping[str, Any]) -> ReferenceScores | None:
        """The scores of the human; the datasets' rewards are clipped, so the scores are for returns in the game itself."""
        return human_scores(str(record.get("dataset")).partition("/")[0], clipped=True)

    def reward_range(self, record: Mapping[str, Any]) -> tuple[float, float, str]:
        """Rewards were clipped before they were published."""
        return -1.0, 1.0, "rewards of the published data are clipped"

    def environment(self, record: Mapping[str, Any]) -> KnownEnvironment | None:
        """The game with sticky actions, and every fourth frame as the datasets have it (Machado et al. 2018); its rewards are
        those of the game, not clipped."""
        game = str(record.get("dataset")).partition("/")[0]
        if game not in games():
            return None
        arguments = {"frameskip": 1, "repeat_action_probability": 0.25, "full_action_space": False}
        return KnownEnvironment(f"ALE/{game}-v5", arguments, wrap=_observe_as_stored, requirements="opencv-python")

    def places(self, name: str, options: ConvertOptions) -> Sequence[str]:
        """Where the upstream is; all of them for ``auto``, in the order in which they are tried."""
        wanted = self.check(options, "download").extra["upstream"]
        return [home for upstream, (home, _) in _UPSTREAMS.items() if wanted in (_AUTO, upstream)]

    def where_else(self, name: str) -> str:
        return (
            f"give --mirror (or RBDATA_ATARI_MIRROR) a copy that holds dqn/{name}/replay_logs, "
            f"{FOLDER}/{name.partition('/')[0]}, or the converted dataset; if you were given access, run "
            f"`gcloud auth application-default login`; see {page('mirrors.md')}"
        )

    def find(self, name: str, location: Location, options: ConvertOptions) -> Reader:
        """Lists the run's raw files: at a public place one upstream's, at a mirror either's.

        Raises ObjectNotFoundError if they are missing.
        """
        game, _, run = name.partition("/")
        wanted = options.extra["upstream"]
        chosen = {upstream: where for upstream, where in _UPSTREAMS.items() if wanted in (_AUTO, upstream)}
        here = {upstream: where for upstream, where in chosen.items() if where[0] == location.url}
        errors: list[ObjectNotFoundError] = []
        for upstream, (_, find) in (here or chosen).items():
            try:
                return _make_reader(upstream, name, location, find(location, game, int(run)), options)
            except ObjectNotFoundError as error:
                if error.partly_there:
                    raise
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        message = f"no shards and no episodes of {name} at {location.url}"
        raise ObjectNotFoundError(message, hint="; ".join(str(error.hint) for error in errors)) from errors[0]

    def recognises(self, path: Path) -> bool:
        digits = "[0-9]" * 5
        patterns = ("*observation_ckpt.*.gz", "replay_logs/*observation_ckpt.*.gz", f"run_*-{digits}-of-{digits}")
        return path.is_dir() and any(any(path.glob(pattern)) for pattern in patterns)

    def find_in_folder(self, location: Location, options: ConvertOptions) -> Reader:
        """A folder that holds ``*_ckpt.N.gz`` or ``run_R-X-of-N`` files, or a ``replay_logs`` folder with the former."""
        wanted = options.extra["upstream"]
        for folder in ("", "replay_logs") if wanted in (_AUTO, DQN_REPLAY) else ():
            try:
                shards = group_shards(location.list(folder))
            except ObjectNotFoundError:
                continue
            if shards:
                return _make_reader(DQN_REPLAY, None, location, shards, options)
        episodes = group_episode_files(location.list(), None, location.url) if wanted in (_AUTO, RL_UNPLUGGED) else []
        if episodes:
            return _make_reader(RL_UNPLUGGED, None, location, episodes, options)
        message = f"{location.url} holds no DQN Replay shards and no RL Unplugged episodes"
        hint = "expected files like $store$_observation_ckpt.0.gz or run_1-00000-of-00050 directly in it"
        raise ObjectNotFoundError(message, hint=hint)


def games() -> list[str]:
    """The games as the bucket spells them."""
    return list(dict.fromkeys(name.partition("/")[0] for name in AtariSource().names()))


def _make_reader(upstream: str, name: str | None, location: Location, found: Any, options: ConvertOptions) -> Reader:
    """The reader of the shards or files that were found."""
    if upstream == RL_UNPLUGGED:
        from .rl_unplugged import RluReader

        return RluReader(name, location, found, options)
    from .dqn_replay import DqnReplayReader

    return DqnReplayReader(name, location, found, options)


def _observe_as_stored(env: Any) -> Any:
    from gymnasium.wrappers import AtariPreprocessing

    return AtariPreprocessing(env, noop_max=0, frame_skip=4, screen_size=84, terminal_on_life_loss=False)
