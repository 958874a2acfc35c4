"""One recording, from an environment to a dataset: recorded into a `spool` first, then planned and filled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import ObjectNotFoundError, UsageError
from ....storage.column_writer import ColumnWriter
from ....storage.episodes import CUT, TERMINATED, TRUNCATED
from ...fetch import FetchOptions, Location, RemoteObject
from ...fetch.location import Names, Objects
from ...ingest.protocol import ConvertOptions, Expectation, Plan, RawObject, SpoolingJob
from ...ingest.spaces import renamed, space_json, space_leaves
from ...ingest.trajectories import TrajectoryWriter, block_steps, cuts, lay_out
from . import spool as kinds
from .environments import Made, heard, importable, specification
from .fill import FillTask
from .policy import RANDOM, load_function
from .recorder import RecordTask, columns_of
from .spool import Spool

CITATION = (
    "Mark Towers et al. Gymnasium: A Standard Interface for Reinforcement Learning Environments. 2024. arXiv:2407.17032"
)
_MOST_ENVS = 1024
_SPOOL = "recording"
#: What frames are guessed to shrink to, for the outlook; it ranges from 1/200 (Pong) to 1/2 (noise).
_GUESSED_RATIO = 0.1


@dataclass(frozen=True)
class Here:
    """Stands where other sources have a place: recordings are made on this machine, and there is nothing to fetch."""

    url: str = "this machine"
    options: FetchOptions = field(default_factory=FetchOptions)

    def list(self, folder: str = "") -> Objects:
        return []

    def folders(self, folder: str = "") -> Names:
        return []

    def stat(self, path: str) -> RemoteObject:
        raise ObjectNotFoundError(f"a recording has no object {path}")

    def refresh(self, obj: RemoteObject) -> RemoteObject:
        return obj

    def open(self, obj: RemoteObject, offset: int = 0) -> Any:
        raise ObjectNotFoundError(f"a recording has no object {obj.url}")


class RecordingJob(SpoolingJob):
    """One recording, from an environment to a dataset."""

    first_stage = "recording"

    def __init__(self, name: str, options: ConvertOptions) -> None:
        self.name, self.options = name, options
        self.location: Location = Here()
        self.given = _checked(options)
        self.made = Made(name, self.given["env_args"], self.given["num_envs"])
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
            raise UsageError(f"nothing is left of what {name} observes or does: {self.left_out}")
        self.columns = columns_of(self.observation, self.action)
        self.schema, self.bulk = lay_out(self.columns, options)
        self._compress = any(leaf.codec == "zstd" for leaf in self.schema)
        self._spool: Spool | None = None

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

    def files(self) -> list[RemoteObject]:
        return []

    # -- recording -----------------------------------------------------------------------------------------------------

    def expect(self) -> Expectation:
        steps = self.given["steps"]
        small = sum(column.row_bytes for column in self.columns if not column.large)
        large = sum(column.row_bytes for column in self.columns if column.large)
        if self._compress:
            large = int(large * _GUESSED_RATIO)
        bulk = set(self.bulk)
        lasting = sum(leaf.row_bytes for leaf in self.schema.steps if leaf.name not in bulk)
        lasting += large * (2 if self.options.layout == "ted" else 1)
        # The spool lies beside the dataset until that is complete.
        return Expectation(0, steps, 0, steps * (small + large + 5 + lasting), ["recording"])

    def spooling(self, folder: Path, threads: int) -> list[RecordTask]:
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / _SPOOL
        if target.is_dir():
            self._spool = Spool(target, self.columns)
            return []
        self._folder = folder
        return [
            RecordTask(
                index=0,
                made=self.made,
                observation=tuple(self.observation),
                action=tuple(self.action),
                steps=self.given["steps"],
                policy=self.given["policy"],
                epsilon=self.given["epsilon"],
                seed=self.given["seed"],
                compress=self._compress,
                threads=threads,
                target=target,
            )
        ]

    # -- plan and fill -------------------------------------------------------------------------------------------------

    def plan(self, columns: ColumnWriter, files: Mapping[str, Path], on_progress: Callable[[int, int], None]) -> Plan:
        """Reads the spool: call after the task of `spooling` is done."""
        spool = self._recorded()
        columns.reserve(self.given["steps"])
        writer = TrajectoryWriter(columns, self.columns)
        size = block_steps(self.columns)
        small = [(number, column) for number, column in enumerate(self.columns) if not column.large]
        for env in range(self.made.count):
            end, reward = spool.end(env), spool.reward(env)
            ends = np.flatnonzero(end)
            rows = {column.key: (column, spool.rows(env, number)) for number, column in small}
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
        counts = {**writer.counts, **spool.counts, "environments": self.made.count}
        states = episodes.steps + len(episodes)
        part = {
            "name": "recording",
            "number": 0,
            "first_state": 0,
            "states": states,
            "layout": "recording",
            "object": {"name": self.name, "size": None, "crc32c": None},
        }
        notes = self._all_notes(counts, spool)
        return Plan(episodes, counts, notes, parts=[part], fetch_bytes=[0], spaces=self.spaces)

    def dictionary(self) -> bytes:
        return (self._recorded().folder / kinds.DICTIONARY).read_bytes()

    def row_estimate(self, dictionary: bytes) -> float:
        spool = self._recorded()
        size = sum(
            spool.path(env, number).stat().st_size for number, _ in self._large for env in range(self.made.count)
        )
        twice = 2 if self.options.layout == "ted" else 1
        return twice * size / max(1, sum(spool.states))

    def tasks(self, folder: Path, threads: int) -> Sequence[FillTask]:
        spool = self._recorded()
        columns, large = tuple(self.columns), tuple(self._large)
        return [FillTask(0, folder, spool.folder, self.schema, columns, large, sum(spool.states))]

    @property
    def _large(self) -> list[tuple[int, Any]]:
        return [(number, column) for number, column in enumerate(self.columns) if column.large]

    def _recorded(self) -> Spool:
        if self._spool is None:
            self._spool = Spool(self._folder / _SPOOL, self.columns)
        return self._spool

    # -- what the manifest says ----------------------------------------------------------------------------------------

    def objects(self) -> list[dict[str, Any]]:
        return []

    def raw_objects(self) -> list[RawObject]:
        return []

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

    def _all_notes(self, counts: Mapping[str, Any], spool: Spool) -> list[str]:
        notes = list(dict.fromkeys([*self._notes, *spool.notes]))
        if counts["cut_episodes"]:
            is_cut = "episode was" if counts["cut_episodes"] == 1 else "episodes were"
            notes.append(
                f"{counts['cut_episodes']} {is_cut} cut by the end of the recording; the final observation is true."
            )
        if counts["actions_out_of_bounds"]:
            notes.append(
                f"{counts['actions_out_of_bounds']} actions lie outside their Box; stored as the policy gave them."
            )
        if any(leaf.is_text for leaf in [*self.observation, *self.action]):
            notes.append("Texts are stored as UTF-8 bytes, zero-padded.")
        return notes


#: From what a spool says of the end of a step to the outcome of its episode.
_OUTCOMES = np.array([0, TERMINATED, TRUNCATED, TERMINATED, CUT], np.uint8)


def _checked(options: ConvertOptions) -> dict[str, Any]:
    """All options of a recording. Raises UsageError for more environments than there can be."""
    given = dict(options.extra)
    if given["num_envs"] > min(given["steps"], _MOST_ENVS):
        message = f"num_envs is {given['num_envs']}: at most {_MOST_ENVS}, and no more than steps ({given['steps']})"
        raise UsageError(message, hint="record fewer environments, or more steps")
    return given


def _policy_digest(policy: str) -> str | None:
    """sha256 of the file a policy comes from: with other contents it is another policy."""
    if policy == RANDOM:
        return None
    import hashlib

    _, file = load_function(policy)
    return hashlib.sha256(file.read_bytes()).hexdigest() if file and file.is_file() else None
