"""Gymnasium as a source: a dataset is a recording of an environment, made on this machine.

Towers et al., "Gymnasium: A Standard Interface for Reinforcement Learning Environments", 2024
(https://arxiv.org/abs/2407.17032).

Nothing is fetched. What decides the bytes is the environment, the policy and a seed; a recording is made first (into a
`spool`), because only then it is known how many episodes there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....errors import UsageError
from ...fetch import Location
from ...ingest.protocol import ConvertOptions, Source
from .environments import CLASSIC, is_id

if TYPE_CHECKING:
    from .job import RecordingJob  # loaded when a recording is made: lists do without


class GymnasiumSource(Source):
    """Names are environment ids (``CartPole-v1``, ``ALE/Pong-v5``, ``my_package:MyEnv-v0``).

    Options: ``steps`` (of all environments together), ``policy`` (``random``, ``package.module:function`` or
    ``file.py:function``), ``num_envs``, ``seed``, ``epsilon`` (chance of a random action instead of the policy's),
    ``env_args`` (keyword arguments of the environment), ``text`` (``bytes`` or ``omit``).
    """

    name = "gymnasium"
    home = "/"  # no place is looked at
    makes = True
    open_ended = True

    def names(self) -> Sequence[str]:
        """A few well-known ones; any registered environment can be recorded."""
        return list(CLASSIC)

    def knows(self, name: str) -> bool:
        """Whether this could be an id; whether there is such an environment is found out when it is made."""
        return is_id(name)

    def open(self, name: str, location: Location, options: ConvertOptions) -> RecordingJob:
        """Makes the environment once, to know its spaces. Raises as `Made.open`, and UsageError for the options."""
        from .job import RecordingJob

        return RecordingJob(name, options)

    def open_folder(self, location: Location, options: ConvertOptions) -> RecordingJob:
        message = "a recording is made from an environment, not from a folder"
        raise UsageError(message, hint="rbdata download gymnasium/CartPole-v1 --steps 20000")
