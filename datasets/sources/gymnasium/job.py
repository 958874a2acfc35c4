"""One recording, from an environment to a dataset: recorded into files first (`recording`), then planned and filled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import UsageError
from ....storage.codecs import PLAIN, load_codec
from ....storage.column_writer import ColumnWriter
from ....storage.episodes import CUT, TERMINATED, TRUNCATED
from ...fetch import Location
from ...fetch.directory import DirectoryLocation
from ...ingest.protocol import ConvertOptions, Expectation, Job, PartSpec, Plan
from ...ingest.spaces import renamed, space_json, space_leaves
from ...ingest.staging import StagedPart
from ...ingest.trajectories import TrajectoryWriter, block_steps, cuts, lay_out
from . import recording as kinds
from .environments import Made, heard, importable, specification
from .policy import RANDOM, load_function
from .recorder import RecordTask, columns_of
from .recording import Recording

CITATION = (
    "Mark Towers et al. Gymnasium: A Standard Interface for Reinforcement Learning Environments. 2024. arXiv:2407.17032"
)
_MOST_ENVS = 1024
_RECORDING = "recording"
#: What frames are guessed to shrink to, for the estimate; it ranges from 1/200 (Pong) to 1/2 (noise).
_GUESSED_RATIO = 0.1


class RecordingJob(Job):
    """One recording, from an environment to a dataset."""

    staging = "recording"

    def __init__(self, name: str, options: ConvertOptions) -> None:
        self.name, self.options = name, options
        self.location: Location = DirectoryLocation("this machine")  # only its name is used: there is nothing to fetch
        self.given = dict(options.extra)
        count, steps = self.given["num_envs"], self.given["steps"]
        if count > min(steps, _MOST_ENVS):
            message = f"num_envs is {count}: at most {_MOST_ENVS}, and no more than steps ({steps})"
            raise UsageError(message, hint="record fewer environments, or more steps")
        self.made = Made(name, self.given["env_args"], count)
        self._notes: list[str] = []
        with importable(), heard(self._notes):
            self._policy_sha256 = _policy_digest(self.given["policy"])
            env = Made(name, self.given["env_args"]).open()  # one is enough to know the spaces
            try:
                spaces = {"observation": env.observation_space, "action": env.action_space}
                self.spaces = {key: space_json(space) for key, space in spaces.items()}
                self.spec = specification(env)
            finally:
                env.close()
        text = self.given["text"]
        self.observation, left_out = space_leaves(self.spaces["observation"], "observation", text)
        self.action, also_out = space_leaves(self.spaces["action"], "action", text)
        self.left_out = {**left_out, **also_out}
        if not self.observation or not self.action:
            raise UsageError(f"no observations or no actions of {name} remain: {self.left_out}")
        self.columns = columns_of(self.observation, self.action)
        self.schema, self.bulk = lay_out(self.columns, options)
        #: The codec of the large columns.
        self._codec = next((leaf.codec for leaf in self.schema.states), PLAIN)

    def identity(self) -> dict[str, Any]:
        return {
            "converter": "gymnasium 1",
            "environment": self.spec,
            "leaves": [leaf.to_json() for leaf in self.schema],
            "policy_sha256": self._policy_sha256,
            **self.given,
        }

    def parts(self) -> int:
        return 1

    # -- recording -----------------------------------------------------------------------------------------------------

    def expect(self) -> Expectation:
        steps = self.given["steps"]
        small = sum(column.row_bytes for column in self.columns if not column.large)
        large = sum(column.row_bytes for column in self.columns if column.large)
        if not load_codec(self._codec).fixed_rows:
            large = int(large * _GUESSED_RATIO)
        bulk = set(self.bulk)
        lasting = sum(leaf.row_bytes for leaf in self.schema.steps if leaf.name not in bulk)
        lasting += large * (2 if self.options.layout == "ted" else 1)
        # The recording lies beside the dataset until that is complete.
        return Expectation(0, steps, 0, steps * (small + large + 5 + lasting), ["recording"])

    def staging_tasks(self, folder: Path, threads: int) -> list[RecordTask]:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        target = folder / _RECORDING
        if target.is_dir():
            return []
        leaves = (tuple(self.observation), tuple(self.action))
        return [RecordTask(0, self.made, *leaves, self.given, self._codec, threads, target)]

    # -- plan and fill -------------------------------------------------------------------------------------------------

    def plan(self, columns: ColumnWriter, files: Mapping[str, Path], on_progress: Callable[[int, int], None]) -> Plan:
        """Reads the recording: call after the task of `staging_tasks` is done."""
        recording = self._recorded()
        columns.reserve(self.given["steps"])
        writer = TrajectoryWriter(columns, self.columns)
        size = block_steps(self.columns)
        small = [(number, column) for number, column in enumerate(self.columns) if not column.large]
        for env in range(self.made.count):
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
            on_progress(env + 1, self.made.count)
        episodes = writer.episodes()
        counts = {**writer.counts, **recording.counts, "environments": self.made.count}
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
        return Recording(self._folder / _RECORDING, self.columns)

    # -- what the manifest says ----------------------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        import gymnasium

        return {
            "source": {
                "name": "gymnasium",
                "upstream": "gymnasium",
                "dataset": self.name,
                "options": {**self.given, "unknown_next": self.options.unknown_next},
                "environment": self.spec,
                "gymnasium_version": gymnasium.__version__,
                "policy_sha256": self._policy_sha256,
                "keys": renamed([*self.observation, *self.action]),
                "left_out": self.left_out,
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


def _policy_digest(policy: str) -> str | None:
    """sha256 of the file a policy comes from: with other contents it is another policy."""
    if policy == RANDOM:
        return None
    import hashlib

    _, file = load_function(policy)
    return hashlib.sha256(file.read_bytes()).hexdigest() if file and file.is_file() else None
