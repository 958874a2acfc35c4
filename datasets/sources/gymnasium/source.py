"""Gymnasium as a source: a dataset is a recording of an environment, made on this machine.

Towers et al., "Gymnasium: A Standard Interface for Reinforcement Learning Environments", 2024
(https://arxiv.org/abs/2407.17032).

Nothing is fetched. What decides the bytes is the environment, the policy and a seed; a recording is made first (into a
`recording`), because the number of episodes is known only afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ....errors import DatasetExistsError, DatasetNotFoundError, UsageError
from ....storage.manifest import Manifest
from ....storage.reference_scores import ReferenceScores, stated_wrappers
from ...fetch import Location
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions
from ..human_scores import game_of, human_scores
from ..options import declared
from ..source import Source

#: Gymnasium's own syntax, ``(module:)(namespace/)name(-vN)``.
_ID = re.compile(r"(?:[\w.]+:)?(?:[\w:-]+/)?[\w:.-]+?(?:-v\d+)?")
#: Between an environment's id and the name of a recording; no id of Gymnasium has it.
_AT = "@"
_NAME = re.compile(r"\w[\w.+-]*")


def is_id(name: str) -> bool:
    """Whether Gymnasium's registry could have such an id."""
    return _ID.fullmatch(name) is not None


def is_name(recording: str) -> bool:
    """Whether a recording can have this name."""
    return _NAME.fullmatch(recording) is not None


def split_name(text: str) -> tuple[str, str | None]:
    """``CartPole-v1@expert`` as environment and recording, the latter None without a name."""
    environment, at, recording = text.partition(_AT)
    return environment, recording if at else None


def join_name(text: str, recording: str | None) -> str:
    """``CartPole-v1`` (or the same with its name already) and ``expert`` as ``CartPole-v1@expert``.

    Raises UsageError for a name that differs from the one already given, and for one that cannot be part of an id.
    """
    environment, given = split_name(text)
    if recording is None or recording == given:
        return text
    if given is not None:
        message = f"{text} has a name already, which is not {recording}"
        raise UsageError(message, hint=f"leave one out: {environment}{_AT}{recording}")
    return f"{environment}{_AT}{check_name(recording)}"


def check_name(recording: str) -> str:
    """The name of a recording. Raises UsageError for an invalid one."""
    if not isinstance(recording, str) or not is_name(recording):
        hint = "letters, digits and _ . + -, such as expert or seed-3"
        raise UsageError(f"{recording!r} cannot be the name of a recording", hint=hint)
    return recording


class GymnasiumSource(Source):
    """Names are environment ids (``CartPole-v1``, ``ALE/Pong-v5``, ``my_package:MyEnv-v0``), or ``ID@NAME`` of a recording."""

    name = "gymnasium"
    home = "/"  # no place is searched
    options = declared("gymnasium")
    supports = frozenset({"codec", "layout"})
    makes = True
    open_ended = True

    def knows(self, name: str) -> bool:
        """Whether this could be an id; whether the environment exists is known only when it is made."""
        environment, recording = split_name(name)
        return is_id(environment) and (recording is None or is_name(recording))

    def full_name(self, name: str, options: ConvertOptions) -> str:
        return join_name(name, options.extra.get("name"))

    def check_existing(self, manifest: Manifest, options: ConvertOptions) -> None:
        """Raises DatasetExistsError for a recording with a different number of episodes, by another policy, or by an object,
        which cannot be compared with a name."""
        from ... import user_code
        from .environments import importable
        from .policy import RANDOM, reference

        recorded, asked = manifest.source, options.extra
        episodes, policy = asked.get("episodes"), asked.get("policy")
        differs = []
        if episodes not in (None, recorded.get("options", {}).get("episodes")):
            differs.append("another number of episodes")
        if any(value is not None for name, value in asked.items() if name != "name"):
            differs += [f"the {name} as an object" for name in recorded.get("given_as_objects", ())]
        if recorded.get("appended") and any(asked.get(name) is not None for name in ("steps", "episodes", "policy")):
            differs.append("more recordings appended to it")
        before = recorded.get("policy_files")
        if policy not in (None, RANDOM) and before:
            with importable():
                now = user_code.identity(reference(policy))
            changed = [label for label in {**before, **now} if before.get(label) != now.get(label)]
            names = {next(iter(before)): "the policy's file"}
            differs += [f"a different version of {names.get(label, label)}" for label in changed]
        if differs:
            message = f"{manifest.id} is there already, recorded with {' and '.join(differs)}"
            raise DatasetExistsError(message, hint="record it under another --name, or replace it with --force")

    def check_new(self, name: str, options: ConvertOptions, mirror: str | None) -> None:
        """A name is known to whoever recorded it: nothing else is recorded in its place."""
        if split_name(name)[1] is None and mirror is None:
            return
        if all(options.extra.get(option) is None for option in ("policy", "steps", "episodes")):
            where = "on this machine" if mirror is None else f"at {mirror}"
            message = f"{self.name}/{name} is not {where}, and only whoever recorded it has it"
            hint = "name the mirror that has it with --mirror; or record one yourself: say --policy or --steps"
            raise DatasetNotFoundError(message, hint=hint)

    def words_to_get(self, manifest: Manifest) -> list[str] | None:
        """A recording of random actions in an environment by id is the same for all who ask for it with its options."""
        record, own = manifest.source, ("recorded_by", "given_as_objects", "environment_layers", "appended")
        options = record.get("options", {})
        if options.get("policy") != "random" or any(record.get(name) for name in own):
            return None
        words = ["download", manifest.id]
        named = split_name(manifest.id)[1] is not None
        for option in self.options:
            value = options.get(option.name)
            if option.name != "policy" and value not in (None, option.default):
                each = (
                    [f"{key}={json.dumps(one)}" for key, one in value.items()] if isinstance(value, dict) else [value]
                )
                words += [str(word) for one in each for word in (option.flag, one)]
        return words + (["--policy", "random"] if named and "--steps" not in words else [])

    def reference_scores(self, record: Mapping[str, Any]) -> ReferenceScores | None:
        """The human scores for Atari games; they do not apply to returns that a wrapper may have changed."""
        scores = human_scores(game_of(split_name(str(record.get("dataset")))[0]))
        wrappers = stated_wrappers(record)
        if scores is None or not wrappers:
            return scores
        caveat = f"{', '.join(wrappers)} may have changed its rewards, or where its episodes end"
        return replace(scores, caveat=caveat)

    def find(self, name: str, location: Location, options: ConvertOptions) -> Reader:
        """Makes the environment once, to know its spaces. Raises as `Made.open`, and UsageError for the options."""
        from .environments import Made
        from .reader import PolicyReader

        return PolicyReader(Made(split_name(name)[0], options.extra["env_args"]), options)
