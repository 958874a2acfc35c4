"""One recording, from an environment to a dataset: recorded into files first (`recording`), then planned and filled.

`changes_of_recording` tells whether a recording that is there is of the policy and the environment that are asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from ....errors import UsageError
from ....storage.codecs import PLAIN, load_codec
from ....storage.codecs.compressed import compressed_codec
from ....storage.episodes import CUT, TERMINATED, TRUNCATED
from ....storage.writer import ColumnWriter
from ...fetch import Location
from ...fetch.directory import DirectoryLocation
from ...ingest.protocol import ConvertOptions, Expectation, Job, PartSpec, Plan
from ...ingest.row_source import StagedPart
from ...ingest.spaces import renamed, space_json, space_leaves
from ...ingest.trajectories import TrajectoryWriter, block_steps, cuts, lay_out
from . import recording as kinds
from .environments import Made, heard, importable, specification, split_name
from .participants import (
    PYTHON,
    changes_of_environment,
    changes_of_policy,
    describe_environment,
    describe_policy_content,
    has_local_code,
    untold_of,
)
from .policy import RANDOM, load_policy
from .recorder import RecordTask, columns_of
from .recording import Recording

CITATION = (
    "Mark Towers et al. Gymnasium: A Standard Interface for Reinforcement Learning Environments. 2024. arXiv:2407.17032"
)
_MOST_ENVS = 1024
RECORDING = "recording"
#: What frames are guessed to shrink to where no environment can be tried; it ranges from 1/200 (Pong) to 1/2 (noise).
_GUESSED_RATIO = 0.1
#: How long, in seconds and steps, an environment is tried with random actions to measure it instead.
_TRIED_SECONDS, _TRIED_STEPS = 0.4, 400
_DEFAULT_STEPS = 20_000


class RecordedJob(Job):
    """What recordings have in common, whoever steps the environment.

    ``env`` has the spaces and the specification; it is not stepped here. ``environments`` are recorded side by side.
    """

    staging = "recording"
    _folder: Path

    def __init__(self, name: str, env: Any, environments: int, options: ConvertOptions) -> None:
        self.name, self.options, self.environments = name, options, environments
        self.location: Location = DirectoryLocation("this machine")  # only its name is used: there is nothing to fetch
        self._notes: list[str] = []
        several = hasattr(env, "single_action_space")
        pair = ("single_observation_space", "single_action_space") if several else ("observation_space", "action_space")
        spaces = dict(zip(("observation", "action"), (getattr(env, one) for one in pair)))
        self.spaces = {key: space_json(space) for key, space in spaces.items()}
        self.spec = specification(env)
        text = options.extra["text"]
        self.observation, left_out = space_leaves(self.spaces["observation"], "observation", text)
        self.action, also_out = space_leaves(self.spaces["action"], "action", text)
        self.left_out = {**left_out, **also_out}
        if not self.observation or not self.action:
            raise UsageError(f"no observations or no actions of {name} remain: {self.left_out}")
        self.columns = columns_of(self.observation, self.action)
        self.schema, self.bulk = lay_out(self.columns, options)
        #: The codec of the large columns.
        self._codec = next((leaf.codec for leaf in self.schema.states), PLAIN)

    def parts(self) -> int:
        return 1

    def ratio(self) -> float:
        """What large rows are expected to shrink to."""
        return _GUESSED_RATIO

    def _compresses(self) -> bool:
        return bool(self.bulk) and not load_codec(self._codec).fixed_rows

    def ratio_range(self) -> tuple[float, float]:
        """So many times `ratio` is what large rows shrink to at least, and at most."""
        return 1 / 20, 5.0

    def expect_rows(self, steps: int, episodes: int = 0) -> Expectation:
        """What so many steps are expected to take on the disk."""
        small = sum(column.row_bytes for column in self.columns if not column.large)
        large: float = sum(column.row_bytes for column in self.columns if column.large)
        if large and not load_codec(self._codec).fixed_rows:
            large *= self.ratio()
        bulk = set(self.bulk)
        lasting = sum(leaf.row_bytes for leaf in self.schema.steps if leaf.name not in bulk)
        lasting += int(large) * (2 if self.options.layout == "ted" else 1)
        # The recording lies beside the dataset until that is complete.
        disk, stored = int(steps * (small + large + 5 + lasting)), steps * lasting
        low, high = self.ratio_range() if self._compresses() else (1.0, 1.0)
        guessed = steps * int(large) if self._compresses() else 0
        return Expectation(
            *(0, steps, episodes, disk, ["recording"]),
            stored_bytes=(int(stored - guessed * (1 - low)), int(stored + guessed * (high - 1))),
            certain_bytes=int(disk - 2 * guessed * (1 - low)),
        )

    # -- plan and fill -------------------------------------------------------------------------------------------------

    def plan(self, columns: ColumnWriter, files: Mapping[str, Path], on_progress: Callable[[int, int], None]) -> Plan:
        """Reads the recording: call after the task of `staging_tasks` is done."""
        recording = self._recorded()
        columns.reserve(sum(recording.states))
        writer = TrajectoryWriter(columns, self.columns)
        size = block_steps(self.columns)
        small = [(number, column) for number, column in enumerate(self.columns) if not column.large]
        for env in range(self.environments):
            end, reward = recording.end(env), recording.reward(env)
            ends = np.flatnonzero(end)
            rows = {column.key: (column, recording.rows(env, number)) for number, column in small}
            for cut in cuts(np.diff(np.concatenate([[-1], ends])), size):
                here = slice(*cut.steps)
                block = {
                    key: all_rows[slice(*cut.states) if column.per == "state" else here]
                    for key, (column, all_rows) in rows.items()
                }
                flag = end[here]
                terminated, truncated = (flag == kinds.TERMINATED) | (flag == kinds.BOTH), flag >= kinds.TRUNCATED
                writer.append(block, cut.lengths, np.array(reward[here]), terminated, truncated, _OUTCOMES[flag])
            on_progress(env + 1, self.environments)
        episodes = writer.episodes()
        counts = {**writer.counts, **recording.counts, "environments": self.environments}
        part = PartSpec(
            name="recording",
            number=0,
            first_state=0,
            states=episodes.steps + len(episodes),
            layout="recording",
            object={"name": self.name, "size": None, "crc32c": None},
        )
        notes = self._all_notes(counts, recording)
        return Plan(episodes, counts, notes, parts=[part], spaces=self.spaces)

    def staged_dictionary(self) -> bytes:
        return (self._recorded().folder / kinds.DICTIONARY).read_bytes()

    def row_sources(self) -> list[StagedPart]:
        recording = self._recorded()
        large = {column.key: recording.staged(number) for number, column in enumerate(self.columns) if column.large}
        return [StagedPart(self.name, large)]

    def _recorded(self) -> Recording:
        return Recording(self._folder / RECORDING, self.columns)

    # -- what the manifest says ----------------------------------------------------------------------------------------

    def about_source(self) -> dict[str, Any]:
        """What recordings of one kind state besides."""
        raise NotImplementedError

    def about(self) -> dict[str, Any]:
        import gymnasium

        return {
            "source": {
                "name": "gymnasium",
                "upstream": "gymnasium",
                "dataset": self.name,
                "environment": self.spec,
                "gymnasium_version": gymnasium.__version__,
                "keys": renamed([*self.observation, *self.action]),
                "left_out": self.left_out,
                **self.about_source(),
            },
            "licence": None,
            "citation": CITATION,
        }

    def _all_notes(self, counts: Mapping[str, Any], recording: Recording) -> list[str]:
        notes = list(dict.fromkeys([*self._notes, *recording.notes]))
        cut, outside = counts["cut_episodes"], counts["actions_out_of_bounds"]
        if cut:
            is_cut = "episode was" if cut == 1 else "episodes were"
            notes.append(f"{cut} {is_cut} cut by the end of the recording; the final observation is true.")
        if outside:
            notes.append(f"{outside} actions lie outside their Box; stored as the policy gave them.")
        if any(leaf.is_text for leaf in [*self.observation, *self.action]):
            notes.append("Texts are stored as UTF-8 bytes, zero-padded.")
        return notes


#: From the end of a step in a recording to the outcome of its episode.
_OUTCOMES = np.array([0, TERMINATED, TRUNCATED, TERMINATED, CUT], np.uint8)


class RecordingJob(RecordedJob):
    """A recording that a policy makes. ``made`` replaces the environment of the name, ``policy`` that of the options."""

    def __init__(self, name: str, options: ConvertOptions, made: Made | None = None, policy: Any = None) -> None:
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
        one = made or Made(split_name(name)[0], self.given["env_args"])
        self.made = replace(one, count=count)
        self._policy = self.given["policy"] if policy is None else policy
        self._ratio: float | None = None
        notes: list[str] = []
        with importable(), heard(notes):
            self._policy_content = policy_content(self._policy)
            with Made(one.id, one.arguments, 1, one.make).opened() as (env,):  # one is enough to know the spaces
                self._environment = describe_environment(env)
                super().__init__(one.id, env, count, options)
                self._ratio = self._measure(env) if one.make is None and self._compresses() else None
        self._notes = notes
        if one.make is None and not has_local_code(self._environment):
            self._environment = []  # its id and arguments say what it is

    def identity(self) -> dict[str, Any]:
        told = {
            "policy_content": self._policy_content.get("content"),
            "policy_files": self._policy_content.get("files"),
        }
        told["environment_layers"] = self._environment
        return {
            "converter": "gymnasium 1",
            "environment": self.spec,
            "leaves": [leaf.to_json() for leaf in self.schema],
            "policy_sha256": self._policy_content.get("file"),
            **{name: value for name, value in told.items() if value},
            **self.given,
        }

    def about_source(self) -> dict[str, Any]:
        policy = dict(self._policy_content)
        about: dict[str, Any] = {"options": {**self.given, "unknown_next": self.options.unknown_next}}
        about["policy_sha256"] = policy.pop("file", None)
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
        if environment_after != self._environment:
            about["environment_layers_after"] = environment_after
        return about

    # -- recording -----------------------------------------------------------------------------------------------------

    def expect(self) -> Expectation:
        steps, episodes = self.given["steps"], self.given.get("episodes") or 0
        return self.expect_rows(steps or 0, episodes)  # how long episodes are is not known before

    def ratio(self) -> float:
        return _GUESSED_RATIO if self._ratio is None else self._ratio

    def ratio_range(self) -> tuple[float, float]:
        # Measured on some seconds of random play, which later frames may be unlike.
        return super().ratio_range() if self._ratio is None else (1 / 3, 3.0)

    def _measure(self, env: Any) -> float:
        """What large rows shrink to: the environment is tried with random actions for a moment."""
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
        except (Exception, SystemExit, GeneratorExit):  # what is wrong with it is said when it is recorded
            return _GUESSED_RATIO
        codec = compressed_codec(self._codec)(self.schema[self.bulk[0]])
        dictionary = codec.train(rows[::2])
        stored = int(codec.encoded_lengths(rows[1::2] or rows, dictionary).sum())
        return stored / max(1, sum(map(len, rows[1::2] or rows)))

    def staged_parts(self, folder: Path) -> int:
        return int((folder / RECORDING).is_dir())

    def staging_tasks(self, folder: Path, threads: int) -> list[RecordTask]:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        target = folder / RECORDING
        if target.is_dir():
            return []
        leaves = (tuple(self.observation), tuple(self.action))
        given = {**self.given, "policy": self._policy, "policy_content": self._policy_content}
        return [RecordTask(0, self.made, *leaves, given, self._codec, threads, target)]


def policy_content(policy: Any) -> dict[str, Any]:
    """What a policy is (`participants`), nothing of a random one; call it inside `environments.importable`."""
    if isinstance(policy, str) and policy == RANDOM:
        return {}
    return describe_policy_content(load_policy(policy)[1] if isinstance(policy, str) else policy)


def changes_of_recording(source: Mapping[str, Any], policy: Any, made: Made | None) -> list[str]:
    """In what a recording differs, in words; ``source`` is what its manifest says of it.

    ``policy``: None where none is asked for. ``made``: None for the environment of the id, which is only made where its
    classes are the user's.
    """
    changed: list[str] = []
    recorded = {**(source.get("policy_content") or {}), "file": source.get("policy_sha256")}
    if policy is not None and any(recorded.values()):
        changed += changes_of_policy(recorded, policy_content(policy))
    layers = source.get("environment_layers") or []
    if made is None and has_local_code(layers):
        made = Made(str(source.get("dataset")), (source.get("options") or {}).get("env_args") or {})
    if made is None:
        return changed
    return changed + _changes_of_environment(source, layers, made)


@contextmanager
def _opened(made: Made) -> Iterator[Any]:
    """The caller's environment, or one that is closed at the end."""
    if made.own is not None:
        yield made.own
        return
    env = made.open()
    try:
        yield env
    finally:
        env.close()


def _changes_of_environment(source: Mapping[str, Any], layers: Any, made: Made) -> list[str]:
    same = (source.get("python"), source.get("gymnasium_version")) == (PYTHON, gymnasium.__version__)
    with _opened(made) as env:
        now, spec = describe_environment(env) if layers else None, specification(env)
    if layers:
        is_as_left = source.get("environment_layers_after") == now
        changed = [] if is_as_left else changes_of_environment(layers, now, same_versions=same)
        if changed and made.own is None:
            with _opened(made) as env:
                changed = changes_of_environment(layers, now, same_versions=same, again=describe_environment(env))
        untold = untold_of(now)
        return changed or [f"environment, as far as can be told ({one})" for one in untold[:1]]
    if source.get("gymnasium_version") == gymnasium.__version__ and source.get("environment") != spec:
        return [f"environment ({source.get('environment')} there, {spec} here)"]
    return []
