"""Gymnasium as a source: a dataset is a recording of an environment, made on this machine.

Towers et al., "Gymnasium: A Standard Interface for Reinforcement Learning Environments", 2024
(https://arxiv.org/abs/2407.17032).

Nothing is fetched. What decides the bytes is the environment, the policy and a seed; a recording is made first (into a
`recording`), because only then it is known how many episodes there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ....storage.reference_scores import ReferenceScores
from ...fetch import Location
from ...ingest.protocol import ConvertOptions
from ..human_scores import game_of, human_scores
from ..source import Source
from ..source_option import TEXT, SourceOption
from .environments import CLASSIC, is_id

if TYPE_CHECKING:
    from .job import RecordingJob  # loaded when a recording is made: lists do without


class GymnasiumSource(Source):
    """Names are environment ids (``CartPole-v1``, ``ALE/Pong-v5``, ``my_package:MyEnv-v0``)."""

    name = "gymnasium"
    home = "/"  # no place is looked at
    options = (
        SourceOption("steps", "steps to record, of all environments together", int, 20_000, least=1, metavar="N"),
        SourceOption("policy", "random, or your function: pkg.mod:fn or file.py:fn", str, "random"),
        SourceOption("num_envs", "environments stepped together", int, 1, least=1, metavar="N"),
        SourceOption("seed", "the same seed gives the same recording", int, 0, least=0, metavar="S"),
        SourceOption(
            "epsilon",
            "probability of a random action instead of the policy's",
            float,
            0.0,
            least=0,
            most=1,
            metavar="E",
        ),
        SourceOption(
            "env_args",
            "an argument of the environment, such as is_slippery=false; repeatable",
            dict,
            {},
            metavar="KEY=VALUE",
            flag="--env-arg",
        ),
        TEXT,
    )
    supports = frozenset({"codec", "layout"})
    makes = True
    open_ended = True

    def names(self) -> Sequence[str]:
        """A few well-known ones; any registered environment can be recorded."""
        return list(CLASSIC)

    def knows(self, name: str) -> bool:
        """Whether this could be an id; whether there is such an environment is found out when it is made."""
        return is_id(name)

    def reference_scores(self, record: Mapping[str, Any]) -> ReferenceScores | None:
        """Of Atari games the human's."""
        return human_scores(game_of(str(record.get("dataset"))))

    def find(self, name: str, location: Location, options: ConvertOptions) -> RecordingJob:
        """Makes the environment once, to know its spaces. Raises as `Made.open`, and UsageError for the options."""
        from .job import RecordingJob

        return RecordingJob(name, options)
