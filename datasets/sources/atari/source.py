"""The Atari DQN Replay dataset: 60 games, 5 runs each, about 50 M steps a run.

Agarwal, Schuurmans, Norouzi, "An Optimistic Perspective on Offline Reinforcement Learning", ICML 2020
(https://arxiv.org/abs/1907.04543). Logged by a Nature-DQN with sticky actions (0.25), frame skip 4, 84x84 greyscale,
rewards clipped to [-1, 1] before they were stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import ObjectNotFoundError
from ....storage.reference_scores import ReferenceScores
from ...fetch import Location
from ...ingest.protocol import ConvertOptions
from ..human_scores import human_scores
from ..known_environment import KnownEnvironment
from ..source import Source
from ..source_option import SourceOption
from .games import GAMES, RUNS
from .rl_unplugged.files import group as group_episodes
from .shards import group
from .upstream import AUTO, DQN_REPLAY, HOME, RL_UNPLUGGED, make_job, open_run, places, where_else

if TYPE_CHECKING:
    from .upstream import AnyJob


class AtariSource(Source):
    """Names are ``<Game>/<run>``."""

    name = "atari"
    home = HOME
    options = (
        SourceOption(
            "upstream",
            "which copy of the data; auto: the bucket, else RL Unplugged (on a mirror: whichever it holds)",
            choices=(AUTO, DQN_REPLAY, RL_UNPLUGGED),
            default=AUTO,
            setting=True,
        ),
    )
    supports = frozenset({"parts", "time_limit", "codec", "layout", "unknown_next"})

    def names(self) -> Sequence[str]:
        return [f"{game}/{run}" for game in GAMES for run in RUNS]

    def reference_scores(self, record: Mapping[str, Any]) -> ReferenceScores | None:
        """The human's; rewards of the datasets are clipped, so that they are for returns in the game itself."""
        return human_scores(str(record.get("dataset")).partition("/")[0], clipped=True)

    def environment(self, record: Mapping[str, Any]) -> KnownEnvironment | None:
        """The game with sticky actions, and every fourth frame as the datasets have it (Machado et al. 2018); its rewards are
        those of the game, not clipped."""
        game = str(record.get("dataset")).partition("/")[0]
        if game not in GAMES:
            return None
        arguments = {"frameskip": 1, "repeat_action_probability": 0.25, "full_action_space": False}
        return KnownEnvironment(f"ALE/{game}-v5", arguments, wrap=_observe_as_stored, requirements="opencv-python")

    def places(self, name: str, options: ConvertOptions) -> Sequence[str]:
        return places(self.check(options, "download").extra["upstream"])

    def where_else(self, name: str) -> str:
        return where_else(name)

    def find(self, name: str, location: Location, options: ConvertOptions) -> AnyJob:
        """Lists the run's shards, or its episodes at RL Unplugged; raises as `upstream.open_run`."""
        return open_run(name, location, options)

    def recognises(self, path: Path) -> bool:
        patterns = ("*_ckpt.*.gz", "replay_logs/*_ckpt.*.gz", "run_*-*-of-*")
        return path.is_dir() and any(any(path.glob(pattern)) for pattern in patterns)

    def find_in_folder(self, location: Location, options: ConvertOptions) -> AnyJob:
        """A folder that holds ``*_ckpt.N.gz`` or ``run_R-X-of-N`` files, or a ``replay_logs`` folder with the former."""
        wanted = options.extra["upstream"]
        for folder in ("", "replay_logs") if wanted in (AUTO, DQN_REPLAY) else ():
            try:
                shards = group(location.list(folder))
            except ObjectNotFoundError:
                continue
            if shards:
                return make_job(DQN_REPLAY, None, location, shards, options)
        episodes = group_episodes(location.list(), None, location.url) if wanted in (AUTO, RL_UNPLUGGED) else []
        if episodes:
            return make_job(RL_UNPLUGGED, None, location, episodes, options)
        message = f"{location.url} holds no DQN Replay shards and no RL Unplugged episodes"
        hint = "expected files like $store$_observation_ckpt.0.gz or run_1-00000-of-00050 directly in it"
        raise ObjectNotFoundError(message, hint=hint)


def _observe_as_stored(env: Any) -> Any:
    from gymnasium.wrappers import AtariPreprocessing

    return AtariPreprocessing(env, noop_max=0, frame_skip=4, screen_size=84, terminal_on_life_loss=False)
