"""Gymnasium as a source: a dataset is a recording of an environment, made on this machine.

Towers et al., "Gymnasium: A Standard Interface for Reinforcement Learning Environments", 2024
(https://arxiv.org/abs/2407.17032).

Nothing is fetched. What decides the bytes is the environment, the policy and a seed; a recording is made first (into a
`recording`), because only then it is known how many episodes there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ....errors import DatasetExistsError
from ....storage.manifest import Manifest
from ....storage.reference_scores import ReferenceScores
from ...fetch import Location
from ...ingest.protocol import ConvertOptions
from ..human_scores import game_of, human_scores
from ..options import TEXT, SourceOption
from ..source import Source
from .environments import CLASSIC, is_id, is_name, join_name, split_name

if TYPE_CHECKING:
    from .job import RecordingJob  # loaded when a recording is made: lists do without


class GymnasiumSource(Source):
    """Names are environment ids (``CartPole-v1``, ``ALE/Pong-v5``, ``my_package:MyEnv-v0``), or ``ID@NAME`` of a recording."""

    name = "gymnasium"
    home = "/"  # no place is looked at
    options = (
        SourceOption("name", "a name for the recording, so that there can be several: ID@NAME", metavar="NAME"),
        SourceOption(
            "steps",
            "steps to record, of all environments together; 20000 where episodes are not given",
            int,
            least=1,
            metavar="N",
        ),
        SourceOption("episodes", "whole episodes to record, of all environments together", int, least=1, metavar="N"),
        SourceOption("policy", "random, or yours: pkg.mod:name or file.py:name, a function or a class", str, "random"),
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
        environment, recording = split_name(name)
        return is_id(environment) and (recording is None or is_name(recording))

    def full_name(self, name: str, options: ConvertOptions) -> str:
        return join_name(name, options.extra.get("name"))

    def check_existing(self, manifest: Manifest, options: ConvertOptions) -> None:
        """Raises DatasetExistsError for a recording of another number of episodes, policy or environment.

        ``options.extra`` may hold the policy as an object, and ``made``, the environment that is asked for if it is not the one
        of the id (`environments.Made`).
        """
        from .environments import importable
        from .job import changes_of_recording

        recorded, asked = manifest.source.get("options", {}), options.extra
        differs = [name for name in ("episodes",) if asked.get(name) not in (None, recorded.get(name))]
        with importable():
            differs += changes_of_recording(manifest.source, asked.get("policy"), asked.get("made"))
        if differs:
            message = f"{manifest.id} is there already, recorded with another {' and '.join(differs)}"
            raise DatasetExistsError(message, hint="record it under another --name, or replace it with --force")

    def reference_scores(self, record: Mapping[str, Any]) -> ReferenceScores | None:
        """Of Atari games the human's."""
        return human_scores(game_of(split_name(str(record.get("dataset")))[0]))

    def find(self, name: str, location: Location, options: ConvertOptions) -> RecordingJob:
        """Makes the environment once, to know its spaces. Raises as `Made.open`, and UsageError for the options."""
        from .job import RecordingJob

        return RecordingJob(name, options)
