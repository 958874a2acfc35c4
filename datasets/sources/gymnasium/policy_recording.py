"""A policy steps environments, and what they return becomes a recording.

    reset -> s0 | act a0, step -> s1 (r0) | act a1, step -> s2 (r1), terminated | reset -> s3 | ...

The observation of every step is stored as it came, the final one of an episode included, and after it the first one of the
next: an episode of n steps has n + 1 states. The last episode of a recording is cut where the recording ends; its final
observation is known as well. Infos are not recorded.

`changes_of_recording` tells whether an existing recording is of the requested policy and environment.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from ....errors import RbdataError, UnfinishedDatasetError, UsageError, is_interrupt, reason
from ....storage.codecs.compressed import compressed_codec
from ...ingest.job import ConvertOptions, Expectation
from ...ingest.recording import END_CUT, RecordingWriter, block_rows
from ...ingest.row_source import staging_folder, unfinished
from ...ingest.spaces import SpaceLeaf, space_json
from ...user_code_old.opened_files import WRITTEN, OpenedFiles, differing
from ...user_code_old.process_state import CallerSettings
from ...workers.task import OnBlock, Task
from .environments import (
    PYTHON,
    Made,
    changes_of_environment,
    describe_environment,
    has_local_code,
    heard,
    importable,
    specification,
    untold_of,
)
from .policy import RANDOM, Actor, changes_of_policy, describe_policy_content, load_policy, seeded
from .recording import EnvironmentJob, LeafRows, columns_of, count_outside, first_observation, step_results

_REPORT_EVERY = 256
_NO_END = 1 << 62
_MOST_ENVS = 1024
#: The limits, in seconds and steps, of the trial with random actions that measures an environment.
_TRIED_SECONDS, _TRIED_STEPS = 0.4, 400
_DEFAULT_STEPS = 20_000


@dataclass(frozen=True)
class RecordTask:
    """Everything needed to make one recording; picklable."""

    index: int
    made: Made
    observation: tuple[SpaceLeaf, ...]
    action: tuple[SpaceLeaf, ...]
    #: The options of the recording: steps, policy, epsilon, seed.
    given: Mapping[str, Any]
    codec: str
    threads: int
    target: Path

    @property
    def rows(self) -> int:
        """Steps, or episodes where only their number is given."""
        return self.given["steps"] or self.given["episodes"]

    def __call__(self, on_block: OnBlock) -> dict[str, Any]:
        """Make a recording in the folder ``target``. Returns an empty record.

        Raises UsageError for a policy that cannot be used, RbdataError when policy or environment fail. A recording that did
        not end leaves nothing behind: the same seed gives the same one again.
        """
        process = os.getpid()
        files = OpenedFiles([self.target.parent])
        try:
            with seeded(self.given["seed"]), staging_folder(self.target) as folder, importable(), files:
                notes: list[str] = []
                with ExitStack() as opened:
                    with heard(notes):
                        envs = opened.enter_context(self.made.opened())
                        actor = Actor(envs, self.given)
                    _Recording(self, envs, actor, folder, notes).run(on_block, files)
        except BaseException:
            _end_forks(process)
            shutil.rmtree(unfinished(self.target), ignore_errors=True)
            if not any(self.target.parent.iterdir()):
                self.target.parent.rmdir()  # so that nothing is left to be continued
            raise
        return {}


def _end_forks(process: int) -> None:
    """End a process that is not ``process``: a policy or environment forked and returned in the child, which shares our
    files."""
    if os.getpid() != process:
        os._exit(1)


class _RecordedEnvironment:
    """One environment, and the rows of it that are not written yet.

    An action is put into its row before the environment gets it, and an observation before the policy gets it: both may
    change what they are given, and may use one array again and again.
    """

    def __init__(
        self, task: RecordTask, number: int, env: Any, values: LeafRows, room: int, shares: tuple[int, int]
    ) -> None:
        self.number, self.env, self._values = number, env, values
        self._steps_share, self._episodes_share = shares
        self.buffers = [np.zeros((room, *leaf.shape), leaf.dtype) for leaf in (*task.observation, *task.action)]
        self.reward, self.end = np.zeros(room), np.zeros(room, np.uint8)
        self._put_state = self._putter(task.observation, self.buffers[: len(task.observation)])
        #: Puts the action of the step that follows into its row.
        self.put_action = self._putter(task.action, self.buffers[len(task.observation) :])
        #: Rows in the buffers.
        self.states = self.steps = 0
        self.all_states = self.made = self.ended = 0
        self.is_active = True

    def state(self, observation: Any) -> None:
        """Take an observation."""
        self._values.check(observation)
        self._put_state(self.states, observation)
        self.states += 1

    def step(self, observation: Any, reward: float, end: int) -> None:
        """Take the results of the step."""
        self.state(observation)
        self.reward[self.steps] = reward
        self.made += 1
        if end or self.made == self._steps_share:
            self.end[self.steps] = end or END_CUT
            self.ended += end > 0
            self.is_active = self.made < self._steps_share and self.ended < self._episodes_share
        self.steps += 1

    def _putter(self, leaves: Sequence[SpaceLeaf], buffers: Sequence[np.ndarray]) -> Callable[[int, Any], None]:
        """A function that stores a value in a row of the buffers."""
        if len(leaves) == 1 and not leaves[0].is_text and not leaves[0].path:
            leaf, rows = leaves[0], buffers[0]
            wanted, shape = rows.dtype, leaf.shape

            def put(row: int, value: Any) -> None:
                if type(value) is np.ndarray and value.dtype == wanted and value.shape == shape:
                    rows[row] = value
                else:
                    rows[row] = self._values.row(leaf, value)

            return put

        def put_all(row: int, value: Any) -> None:
            for leaf, rows in zip(leaves, buffers):
                rows[row] = self._values.row(leaf, self._values.pick(leaf, value))

        return put_all


class _Recording:
    """One run of one environment, or of several in step.

    Environments are not reset by themselves, as those of a vector environment are: the observation that comes with a
    terminated or truncated step is the true final one, and no step is a reset in disguise.
    """

    def __init__(self, task: RecordTask, envs: list[Any], actor: Actor, folder: Path, notes: list[str]) -> None:
        self._task, self._actor, self._notes = task, actor, notes
        count = len(envs)
        columns = columns_of(task.observation, task.action)
        self._writer = RecordingWriter(folder, columns, codec=task.codec, threads=task.threads)
        self._room = block_rows(columns, count)
        self._leaves = (*task.observation, *task.action)
        self._values = LeafRows(task.made.id, space_json(envs[0].observation_space))
        shares = list(zip(*(_shares(task.given.get(name), count) for name in ("steps", "episodes"))))
        self._lanes = [
            _RecordedEnvironment(task, n, env, self._values, self._room, shares[n]) for n, env in enumerate(envs)
        ]
        #: Environments that have not finished their share, and those that begin an episode in the next round.
        self._active, self._over = count, list[_RecordedEnvironment]()
        self._is_full = False
        self._done = 0  # rounds
        self._process = os.getpid()
        self._copies = len(envs) > 1 and not actor.is_random
        self._outside = 0  # actions beyond the bounds of their Box

    def run(self, on_block: OnBlock, files: OpenedFiles) -> None:
        """Make it. ``files`` are those that policy and environment open."""
        with heard(self._notes):
            seeds = range(self._task.given["seed"], self._task.given["seed"] + len(self._lanes))
            observations = []
            for lane, seed in zip(self._lanes, seeds):
                observations.append(self._kept(self._reset(lane, seed=seed)))
                lane.state(observations[-1])
        self._over = self._lanes
        while self._active:
            self._rounds(observations)
            if self._is_full or not self._active:
                self._flush()
            self._report(on_block)
        self._notes += self._values.notes()
        states = [lane.all_states for lane in self._lanes]
        counts = {"actions_out_of_bounds": self._outside}
        content = self._task.given["policy_content"]
        own = {content.get("file"), *content.get("files", {}).values()}
        opened = {label: state for label, state in files.labelled(Path.cwd()).items() if state not in (WRITTEN, *own)}
        self._writer.finish({"states": states, "counts": counts, "notes": self._notes, "opened": opened})

    def _rounds(self, observations: list[Any]) -> None:
        """Rounds, until the buffers are full, a report is due, or every environment has its share.

        A round is a step of every environment, then a reset of those whose episode ends. ``observations`` are those before it,
        and after it. Environments that have their share are stepped with the others, and not recorded.
        """
        actor, lanes, room = self._actor, self._lanes, self._room - 2
        while self._active and not self._is_full:
            if self._over:
                actor.begin(np.array([lane in self._over for lane in lanes]) if len(lanes) > 1 else None)
                self._over = []
            actions = actor(observations)
            for lane, action in zip(lanes, actions):
                if lane.is_active:
                    lane.put_action(lane.steps, action)
            for lane, action in zip(lanes, actions):
                try:
                    observation, reward, end = step_results(lane.env.step(action))
                except BaseException as error:
                    raise self._failed("step", error) from error
                observations[lane.number] = self._kept(observation)
                if end:
                    self._over.append(lane)
                if lane.is_active:
                    lane.step(observation, reward, end)
                    if lane.states > room:
                        self._is_full = True
                    if not lane.is_active:
                        self._active -= 1
            for lane in self._over if self._active else ():
                observation = observations[lane.number] = self._kept(self._reset(lane))
                if lane.is_active:
                    lane.state(observation)
                    self._is_full = self._is_full or lane.states > room
            self._done += 1
            if not self._done % _REPORT_EVERY:
                return

    def _kept(self, observation: Any) -> Any:
        """The observation for the policy, which acts after all environments were stepped: they may share an array."""
        return deepcopy(observation) if self._copies else observation

    def _reset(self, lane: _RecordedEnvironment, **arguments: Any) -> Any:
        try:
            return first_observation(lane.env.reset(**arguments))
        except BaseException as error:
            raise self._failed("reset", error) from error

    def _failed(self, what: str, error: BaseException) -> BaseException:
        if is_interrupt(error):
            return error
        why = reason(error) if isinstance(error, RbdataError) else f"{type(error).__name__}: {reason(error)}"
        why = why.replace(f"{self._task.made.id} gave", "it gave", 1)
        message = f"{self._task.made.id} failed in {what}, after {self._done} steps: {why}"
        hint = getattr(error, "hint", None) or "nothing was written; the same --seed fails at the same place"
        return RbdataError(message, hint=hint)

    def _report(self, on_block: OnBlock) -> None:
        _end_forks(self._process)
        by_steps = self._task.given["steps"] is not None
        on_block(sum(lane.made if by_steps else lane.ended for lane in self._lanes), 0, 0)

    def _flush(self) -> None:
        """Write what is in the buffers."""
        _end_forks(self._process)
        for env, lane in enumerate(self._lanes):
            for number, (leaf, buffer) in enumerate(zip(self._leaves, lane.buffers)):
                is_action = number >= len(self._task.observation)
                rows = buffer[: lane.steps if is_action else lane.states]
                if len(rows):
                    self._writer.column(env, number, rows)
                if is_action:
                    self._outside += count_outside(leaf, rows)
            if lane.steps:
                self._writer.steps(env, lane.reward[: lane.steps], lane.end[: lane.steps])
            lane.all_states += lane.states
            lane.end[: lane.steps] = 0
            lane.states = lane.steps = 0
        self._is_full = False


def _shares(total: int | None, count: int) -> list[int]:
    """How many of ``total`` each environment makes: the first few make one more if the shares cannot be equal."""
    if total is None:
        return [_NO_END] * count
    return [total // count + (number < total % count) for number in range(count)]


class RecordingJob(EnvironmentJob):
    """A recording that a policy makes; ``policy`` replaces that of the options."""

    converter = "gymnasium 1"

    def __init__(self, made: Made, options: ConvertOptions, policy: Any = None) -> None:
        self.given = {**options.extra}
        self.given.pop("name", None)
        if self.given.get("episodes") is None:
            self.given.pop("episodes", None)
            self.given["steps"] = self.given["steps"] or _DEFAULT_STEPS
        count = self.given["num_envs"]
        for unit in ("steps", "episodes"):
            if count > min(self.given.get(unit) or _MOST_ENVS, _MOST_ENVS):
                message = f"num_envs is {count}: at most {_MOST_ENVS}, and no more than {unit} ({self.given.get(unit)})"
                raise UsageError(message, hint=f"record fewer environments, or more {unit}")
        self.made = replace(made, count=count)
        self._policy = self.given["policy"] if policy is None else policy
        notes: list[str] = []
        with importable(), heard(notes):
            self._policy_content = policy_content(self._policy)
            with replace(made, count=1, own=None).opened() as (env,):  # one environment is enough for the spaces
                self._environment = describe_environment(env)
                super().__init__(made.id, env, count, options)
                if made.make is None and self.compresses:
                    self.measured_ratio = self._measure(env)
        self._notes = notes
        if made.make is None and not has_local_code(self._environment):
            self._environment = []  # its id and arguments identify it
        self._process = process_settings() if self._policy_content or self._environment else {}

    def identity(self) -> dict[str, Any]:
        told = {
            "policy_content": self._policy_content.get("content"),
            "policy_files": self._policy_content.get("files"),
            "environment_layers": self._environment,
            "process": self._process,
        }
        told = {name: value for name, value in told.items() if value}
        return {**super().identity(), "policy_sha256": self._policy_content.get("file"), **told, **self.given}

    def describe(self) -> dict[str, Any]:
        policy = dict(self._policy_content)
        options = {**self.given, "unknown_next": self.options.unknown_next}
        about: dict[str, Any] = {**super().describe(), "options": options, "policy_sha256": policy.pop("file", None)}
        # Acting may have changed policy and environment: they are the same all the same.
        policy_after, environment_after = policy.get("content"), self._environment
        with suppress(UsageError):  # their files were edited meanwhile
            if policy_after:
                policy_after = policy_content(self._policy).get("content")
            if self._environment and self.made.own is not None:
                environment_after = describe_environment(self.made.own)
        if policy_after != policy.get("content"):
            policy["content_after"] = policy_after
        if policy.get("files") or "content" in policy:
            about["policy_content"] = policy
        if self._environment:
            about |= {"environment_layers": self._environment, "python": PYTHON}
        if self._process:
            about["process"] = self._process
        if environment_after != self._environment:
            about["environment_layers_after"] = environment_after
        opened = self._recorded().opened
        return {**about, **({"opened": opened} if opened else {})}

    # -- recording -----------------------------------------------------------------------------------------------------

    def expect(self) -> Expectation:
        steps, episodes = self.given["steps"], self.given.get("episodes") or 0
        return self.expect_rows(steps or 0, episodes)  # the lengths of episodes are unknown beforehand

    def _measure(self, env: Any) -> float | None:
        """The compressed share of large rows, measured in a short trial of the environment with random actions."""
        leaves = [leaf for leaf, column in zip(self.observation, self.columns) if column.large]
        rows: list[np.ndarray] = []
        until = time.monotonic() + _TRIED_SECONDS
        env.action_space.seed(0)
        try:
            observation, over = env.reset(seed=0)[0], False
            for _ in range(min(_TRIED_STEPS, self.given["steps"] or _TRIED_STEPS)):
                rows += [np.array(leaf.pick(observation), leaf.dtype).reshape(-1).view(np.uint8) for leaf in leaves]
                if time.monotonic() > until and len(rows) > 20:
                    break
                observation = env.reset()[0] if over else observation
                observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
                over = terminated or truncated
        except (Exception, SystemExit, GeneratorExit):  # the recording will report the error
            return None
        codec = compressed_codec(self._codec)(self.schema[self.bulk[0]])
        dictionary = codec.train(rows[::2])
        stored = int(codec.encoded_lengths(rows[1::2] or rows, dictionary).sum())
        return stored / max(1, sum(map(len, rows[1::2] or rows)))

    def staging_tasks(self, folder: Path, threads: int) -> Sequence[Task]:
        tasks = super().staging_tasks(folder, threads)
        changed = [] if tasks else differing(self._recorded().opened, Path.cwd())
        if changed:
            message = f"{self.name} was recorded by an interrupted run, and files that it read have changed since"
            hint = f"put them back, start over with --force, or remove {folder.parent}"
            raise UnfinishedDatasetError(f"{message} ({', '.join(changed)})", hint=hint)
        return tasks

    def record_task(self, target: Path, threads: int) -> Task:
        leaves = (tuple(self.observation), tuple(self.action))
        given = {**self.given, "policy": self._policy, "policy_content": self._policy_content}
        return RecordTask(0, self.made, *leaves, given, self._codec, threads, target)


def policy_content(policy: Any) -> dict[str, Any]:
    """The identity of a policy (`policy`), empty for a random policy; call it inside `environments.importable`.

    Raises UsageError inside ``torch.autocast``.
    """
    CallerSettings.check_autocast()
    if isinstance(policy, str) and policy == RANDOM:
        return {}
    return describe_policy_content(load_policy(policy)[1] if isinstance(policy, str) else policy)


def process_settings() -> dict[str, str]:
    """The settings of this process that change what policies and environments of the user compute, if not the defaults."""
    found, torch = CallerSettings.read().to_json(), sys.modules.get("torch")
    device = "cpu" if torch is None else str(torch.empty(0).device)
    return found if device == "cpu" else {**found, "device": device}


def changes_of_recording(source: Mapping[str, Any], policy: Any, made: Made | None) -> list[str]:
    """How a recording differs from the request, in words; ``source`` is the record in its manifest.

    ``policy``: None where none is asked for. ``made``: None for the environment of the id, which is only made where its
    classes are the user's.
    """
    changed: list[str] = []
    recorded = {**(source.get("policy_content") or {}), "file": source.get("policy_sha256")}
    if policy is not None and any(recorded.values()):
        changed += changes_of_policy(recorded, policy_content(policy))
    if policy is not None or made is not None:
        changed += [f"contents of {label}" for label in differing(source.get("opened"), Path.cwd())]
    layers = source.get("environment_layers") or []
    asks = (policy is not None and any(recorded.values())) or (made is not None and layers)
    if asks and (source.get("process") or {}) != process_settings():
        changed.append("setting of torch or decimal in the process that asks for it")
    if made is None and has_local_code(layers):
        made = Made(str(source.get("dataset")), (source.get("options") or {}).get("env_args") or {})
    if made is None:
        return changed
    return changed + _changes_of_environment(source, layers, made)


def _opened(made: Made) -> AbstractContextManager[list[Any]]:
    """The caller's environment, or one that is closed at the end."""
    return replace(made, count=1).opened() if made.own is None else nullcontext([made.own])


def _changes_of_environment(source: Mapping[str, Any], layers: Any, made: Made) -> list[str]:
    same = (source.get("python"), source.get("gymnasium_version")) == (PYTHON, gymnasium.__version__)
    with _opened(made) as (env,):
        now, spec = describe_environment(env) if layers else None, specification(env)
    if layers:
        is_as_left = source.get("environment_layers_after") == now
        changed = [] if is_as_left else changes_of_environment(layers, now, same_versions=same)
        if changed and made.own is None:
            with _opened(made) as (env,):
                changed = changes_of_environment(layers, now, same_versions=same, again=describe_environment(env))
        untold = untold_of(now)
        return changed or [f"environment, as far as can be told ({one})" for one in untold[:1]]
    if source.get("gymnasium_version") == gymnasium.__version__ and source.get("environment") != spec:
        return [f"environment ({source.get('environment')} there, {spec} here)"]
    return []
