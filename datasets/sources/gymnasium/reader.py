"""A policy steps environments, and what they return becomes a recording.

    reset -> s0 | act a0, step -> s1 (r0) | act a1, step -> s2 (r1), terminated | reset -> s3 | ...

The observation of every step is stored as it came, the final one of an episode included, and after it the first one of the
next: an episode of n steps has n + 1 states. The last episode of a recording is cut where the recording ends; its final
observation is known as well. Infos are not recorded.

Policies and environments given by name are stepped in a worker process, objects in the process that has them. A recording that
did not end leaves nothing behind: the same seed gives the same one again.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....errors import DatasetExistsError, RbdataError, UsageError, reason
from ....storage.codecs import codec_of
from ....storage.episodes import EpisodeTable
from ....storage.manifest import Manifest
from ....storage.reference_scores import OTHER_RETURNS
from ... import user_code
from ...fetch.directory import DirectoryLocation
from ...ingest.block import END_CUT, Block
from ...ingest.estimate import compressed_share, expect_rows
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions, Expectation, PartSpec, count_notes
from ...ingest.spaces import SpaceLeaf, renamed, space_json, space_leaves
from ...ingest.trajectories import Column, count_outcomes
from ...ingest.unit import Facts, Part, Unit
from .environments import Made, classes_of, importable, specification, warnings_noted, wrappers_of_returns
from .lanes import Lane, block_of, block_rows, first_observation, step_results
from .policy import RANDOM, Actor, find_policy, name_policy, reference, seed_generators

_REPORT_EVERY = 256
_MOST_ENVS = 1024
#: The limits, in seconds and steps, of the trial with random actions that measures an environment.
_TRIED_SECONDS, _TRIED_STEPS = 0.4, 400
_DEFAULT_STEPS = 20_000


@dataclass(frozen=True)
class PolicyUnit(Unit):
    """One recording; picklable if policy and environment are given by name. ``rows`` counts steps, or episodes where only their
    number is given. ``given``: the options of the recording: steps, episodes, epsilon, seed."""

    made: Made
    policy: Any
    observation: tuple[SpaceLeaf, ...]
    action: tuple[SpaceLeaf, ...]
    columns: tuple[Column, ...]
    given: Mapping[str, Any]

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        """Seeds the global generators of Python, NumPy and torch. Raises UsageError for a policy that cannot be used,
        RbdataError when policy or environment fail."""
        notes: list[str] = []
        with importable():
            with warnings_noted(notes):
                policy = self.policy
                if isinstance(policy, str):
                    policy = None if policy == RANDOM else find_policy(policy)
                seed_generators(self.given["seed"])
                with self.made.opened() as envs:
                    actor = Actor(envs, policy, name_policy(self.policy), self.given["epsilon"], self.given["seed"])
                    yield from _Recording(self, envs, actor).blocks()
            yield Block({}, place=(0, 0), record={"notes": notes}, done=self.rows)


class _EnvLane(Lane):
    """One of the environments that are stepped together, and the steps and episodes that it has still to make."""

    env: Any
    steps_left: float
    episodes_left: float
    is_active = True


class _Recording:
    """One run of one environment, or of several in step.

    Environments are not reset by themselves, as those of a vector environment are: the observation that comes with a
    terminated or truncated step is the true final one, and no step is a reset in disguise. One that has made its share is
    stepped with the others, and not recorded.
    """

    def __init__(self, task: PolicyUnit, envs: list[Any], actor: Actor) -> None:
        self._task, self._actor, self._done = task, actor, 0
        space, room = space_json(envs[0].observation_space), block_rows(task.columns, len(envs))
        of = (task.made.id, space, task.observation, task.action, room)
        self._lanes = [_EnvLane(number, *of) for number in range(len(envs))]
        for lane, env in zip(self._lanes, envs):
            lane.env = env
            lane.steps_left = _share(task.given["steps"], len(envs), lane.number)
            lane.episodes_left = _share(task.given.get("episodes"), len(envs), lane.number)
        #: A policy acts after all environments were stepped, which may share an array.
        self._copies = len(envs) > 1 and not actor.is_random

    def blocks(self) -> Iterator[Block]:
        """Step the environments until each has its share."""
        lanes, actor, seed = self._lanes, self._actor, self._task.given["seed"]
        observations = [self._reset(lane, seed=seed + lane.number) for lane in lanes]
        over = lanes
        while True:
            if over:
                actor.begin(np.array([lane in over for lane in lanes]) if len(lanes) > 1 else None)
            actions = actor(observations)
            for lane, action in zip(lanes, actions):  # before any is stepped: actions may share memory
                if lane.is_active:
                    lane.put_action(action)
            ends = [self._step(lane, action, observations) for lane, action in zip(lanes, actions)]
            over = [lane for lane, end in zip(lanes, ends) if end]
            self._done += 1
            if not any(lane.is_active for lane in lanes):
                break
            for lane in over:
                observations[lane.number] = self._reset(lane)
            if any(lane.is_full for lane in lanes):
                yield from self._rows()
            if not self._done % _REPORT_EVERY:
                yield Block({}, place=(0, 0), done=self._counted())
        yield from self._rows()

    def _step(self, lane: _EnvLane, action: Any, observations: list[Any]) -> int:
        """Step an environment; returns how its episode ends, 0 if it goes on."""
        try:
            observation, reward, end = step_results(lane.env.step(action))
            if lane.is_active:
                lane.steps_left -= 1
                lane.episodes_left -= end > 0
                lane.is_active = lane.steps_left > 0 and lane.episodes_left > 0
                lane.put_step(observation, reward, end or (0 if lane.is_active else END_CUT))
        except (Exception, SystemExit) as error:
            raise self._failed("step", error) from error
        observations[lane.number] = self._kept(observation)
        return end

    def _reset(self, lane: _EnvLane, **arguments: Any) -> Any:
        try:
            observation = first_observation(lane.env.reset(**arguments))
            if lane.is_active:
                lane.put_state(observation)
        except (Exception, SystemExit) as error:
            raise self._failed("reset", error) from error
        return self._kept(observation)

    def _kept(self, observation: Any) -> Any:
        return deepcopy(observation) if self._copies else observation

    def _failed(self, what: str, error: BaseException) -> RbdataError:
        why = reason(error) if isinstance(error, RbdataError) else f"{type(error).__name__}: {reason(error)}"
        why = why.replace(f"{self._task.made.id} gave", "it gave", 1)
        message = f"{self._task.made.id} failed in {what}, after {self._done} steps: {why}"
        hint = getattr(error, "hint", None) or "nothing was written; the same --seed fails at the same place"
        return RbdataError(message, hint=hint)

    def _counted(self) -> int:
        """How much of the unit's rows is done."""
        by_steps = self._task.given["steps"] is not None
        return int(self._task.rows - sum(lane.steps_left if by_steps else lane.episodes_left for lane in self._lanes))

    def _rows(self) -> Iterator[Block]:
        """What is in memory."""
        for lane in self._lanes:
            rows, rewards, bits = lane.ready()
            if len(bits):
                yield block_of(self._task.columns, rows, rewards, bits, lane.number, self._counted())
                lane.drop()


def _share(total: int | None, count: int, number: int) -> float:
    """How many of ``total`` environment ``number`` makes: the first few make one more if the shares cannot be equal."""
    return math.inf if total is None else total // count + (number < total % count)


_COUNTED = {
    "cut_episodes": "{n:episode was|episodes were} cut by the end of the recording; the final observation is true."
}


class EnvironmentReader(Reader):
    """Recordings of ``environments`` side by side. ``env`` has the spaces and the specification; it is not stepped here."""

    source = "gymnasium"
    citation = (
        "Mark Towers et al. Gymnasium: A Standard Interface for Reinforcement Learning Environments. 2024. "
        "arXiv:2407.17032"
    )

    def __init__(self, name: str, env: Any, environments: int, options: ConvertOptions) -> None:
        self.more_notes: list[str] = []
        several = "single_" if hasattr(env, "single_action_space") else ""
        self.spaces = {key: space_json(getattr(env, f"{several}{key}_space")) for key in ("observation", "action")}
        self.spec, self._classes, self._wrappers = specification(env), classes_of(env), wrappers_of_returns(env)
        text = options.extra["text"]
        self.observation, left_out = space_leaves(self.spaces["observation"], "observation", text)
        self.action, also_out = space_leaves(self.spaces["action"], "action", text)
        self.left_out = {**left_out, **also_out}
        if not self.observation or not self.action:
            raise UsageError(f"no observations or no actions of {name} remain: {self.left_out}")
        columns = [Column(leaf.key, leaf.dtype, leaf.shape, "state") for leaf in self.observation]
        columns += [Column(leaf.key, leaf.dtype, leaf.shape, "step") for leaf in self.action]
        # Only the name of the location is used: there is nothing to fetch.
        super().__init__(name, DirectoryLocation("this machine"), options)
        self.environments = environments
        self.set_columns(columns)

    def identity(self) -> dict[str, Any]:
        leaves = [leaf.to_json() for leaf in self.schema]
        return {"converter": self.converter, **self._environment(), "leaves": leaves}

    def _environment(self) -> dict[str, Any]:
        return {"environment": self.spec, "environment_classes": self._classes}

    def check_append(self, old: Manifest) -> None:
        for key, space in self.spaces.items():
            there = old.spaces.get(key)
            if there is not None and there != space:
                message = f"{self.title} has another {key} space than {old.id}: {space}; there {there}"
                raise UsageError(message, hint="record it under another name")

    def describe(self) -> dict[str, Any]:
        import gymnasium

        about = {**self._environment(), "gymnasium_version": gymnasium.__version__}
        about |= {"keys": renamed([*self.observation, *self.action]), "left_out": self.left_out}
        return {**about, **({OTHER_RETURNS: self._wrappers} if self._wrappers else {})}

    @property
    def fingerprint(self) -> str:
        """The identity of the one unit."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()

    def facts(self, parts: Sequence[Part], episodes: EpisodeTable) -> Facts:
        counts = {**count_outcomes(episodes.outcomes), "environments": self.environments}
        made_of = {"name": self.name, "size": None, "crc32c": None}
        states = episodes.steps + len(episodes)
        spec = PartSpec("recording", states, "recording", made_of, number=0, first_state=0)
        notes = list(dict.fromkeys([*self.more_notes, *parts[-1].about.get("notes", ())])) + count_notes(
            _COUNTED, counts
        )
        if any(leaf.is_text for leaf in [*self.observation, *self.action]):
            notes.append("Texts are stored as UTF-8 bytes, zero-padded.")
        return Facts(counts, notes, [spec], self.spaces)


class PolicyReader(EnvironmentReader):
    """A recording that a policy makes; ``policy`` (an object) replaces that of the options.

    ``version`` is the user's own word for what objects are; without it their recording is not continued.
    """

    converter = "gymnasium 2"
    #: The share of their size that compressed rows took in a trial, if there was one.
    _ratio: float | None = None

    def __init__(self, made: Made, options: ConvertOptions, policy: Any = None, version: str | None = None) -> None:
        self.given = {name: value for name, value in options.extra.items() if name != "name"}
        if self.given.get("episodes") is None:
            self.given.pop("episodes", None)
            self.given["steps"] = self.given["steps"] or _DEFAULT_STEPS
        count = self.given["num_envs"]
        for unit in ("steps", "episodes"):
            if count > min(self.given.get(unit) or _MOST_ENVS, _MOST_ENVS):
                message = f"num_envs is {count}: at most {_MOST_ENVS}, and no more than {unit} ({self.given.get(unit)})"
                raise UsageError(message, hint=f"record fewer environments, or more {unit}")
        self._made = replace(made, count=count)
        self._policy = self.given["policy"] if policy is None else policy
        given = {"policy": policy is not None, "environment": made.is_object}
        self._objects, self._version = [name for name, is_object in given.items() if is_object], version
        self.continues = not self._objects or version is not None
        named = policy is None and self._policy != RANDOM
        with importable():
            self._files = user_code.identity(reference(self._policy)) if named else {}
            notes: list[str] = []
            with replace(self._made, count=1).opened() as (env,), warnings_noted(notes):  # one is enough for the spaces
                super().__init__(made.id, env, count, options)
                if not made.is_object and self.compressed():
                    self._ratio = self._measure(env)
        # An id may be registered with a class or function of this process.
        self.in_worker = not self._objects and isinstance(env.spec.entry_point, str)
        self.here = not self.in_worker
        if self.in_worker:
            self._made = replace(self._made, spec=env.spec)
        self.more_notes = notes

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), **self._participants(), **self.given}

    def _participants(self) -> dict[str, Any]:
        return {"policy_files": self._files, "given_as_objects": self._objects, "version": self._version}

    def check_append(self, old: Manifest) -> None:
        """Environment i is seeded with ``seed + i``: a seed is used once."""
        super().check_append(old)
        every = [one.get("options", {}) for one in (old.source, *old.source.get("appended", ()))]
        used = [(one["seed"], one["seed"] + one.get("num_envs", 1)) for one in every if "seed" in one]
        first, stop = self.given["seed"], self.given["seed"] + self.given["num_envs"]
        again = [max(first, low) for low, high in used if low < stop and first < high]
        if again:
            message = f"{old.id} has a recording with seed {min(again)} already, whose episodes begin like these would"
            raise DatasetExistsError(message, hint=f"give another seed, such as seed={max(high for _, high in used)}")

    def describe(self) -> dict[str, Any]:
        about: dict[str, Any] = {name: value for name, value in self._participants().items() if value}
        if self._files:  # that of the policy's own file
            about["policy_sha256"] = next(iter(self._files.values()))
        options = {**self.given, "unknown_next": self.options.unknown_next}
        return {**super().describe(), "options": options, **about}

    # -- recording -----------------------------------------------------------------------------------------------------

    def expect(self) -> Expectation:
        steps, episodes = self.given["steps"], self.given.get("episodes") or 0
        # The lengths of episodes are unknown beforehand.
        return expect_rows(self, steps or 0, episodes, **({} if self._ratio is None else {"ratio": self._ratio}))

    def units(self, lead: Part | None) -> list[PolicyUnit]:
        title = f"the recording with {self.given['policy'] or 'random actions'}"
        rows = self.given["steps"] or self.given["episodes"]
        leaves = (tuple(self.observation), tuple(self.action), tuple(self.columns))
        return [PolicyUnit(0, title, rows, self.fingerprint, self._made, self._policy, *leaves, self.given)]

    def _measure(self, env: Any) -> float | None:
        """The compressed share of large rows, measured in a short trial of the environment with random actions."""
        large = [leaf for leaf, column in zip(self.observation, self.columns) if column.large]
        rows, until, over = list[np.ndarray](), time.monotonic() + _TRIED_SECONDS, True
        env.action_space.seed(0)
        try:
            for step in range(min(_TRIED_STEPS, self.given["steps"] or _TRIED_STEPS)):
                if over:
                    observation, over = env.reset(seed=None if step else 0)[0], False
                else:
                    observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
                    over = terminated or truncated
                rows += [np.array(leaf.pick(observation), leaf.dtype).reshape(-1).view(np.uint8) for leaf in large]
                if time.monotonic() > until and len(rows) > 20:
                    break
        except Exception:  # the recording will report the error
            return None
        return compressed_share(codec_of(self.compressed()[0]), rows)
