"""Stepping environments, and recording what they return.

    reset -> s0 | act a0, step -> s1 (r0) | act a1, step -> s2 (r1), terminated | reset -> s3 | ...

The observation of every step is stored as it came, the final one of an episode included, and after it the first one of the
next: an episode of n steps has n + 1 states. The last episode of a recording is cut where the recording ends; its final
observation is known as well. Infos are not recorded.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import RbdataError, reason
from ....storage.durable import sync_folder
from ...ingest.spaces import SpaceLeaf
from ...ingest.trajectories import Column
from ...workers.task import OnBlock
from .environments import Made, heard, importable
from .leaf_rows import LeafRows
from .policy import Actor, seeded
from .recording import CUT, RecordingWriter

#: Bytes of rows kept in memory for all environments together, and the most rows for one.
_BUFFER_BYTES, _BUFFER_ROWS = 32 << 20, 8192
_REPORT_EVERY = 256
_NO_END = 1 << 62


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
        partial = self.target.with_name(self.target.name + ".part")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            with importable(), seeded(self.given["seed"]):
                notes: list[str] = []
                with heard(notes):
                    env = self.made.open()
                    actor = Actor(env, self.made.count, self.given)
                try:
                    _Recording(self, env, actor, partial, notes).run(on_block)
                finally:
                    env.close()
            partial.rename(self.target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            if not any(self.target.parent.iterdir()):
                self.target.parent.rmdir()  # so that nothing is left to be continued
            raise
        sync_folder(self.target.parent)
        return {}


def columns_of(observation: Sequence[SpaceLeaf], action: Sequence[SpaceLeaf]) -> list[Column]:
    """The columns of a recording: observations per state, actions per step."""
    states = [Column(leaf.key, leaf.dtype, leaf.shape, "state") for leaf in observation]
    return states + [Column(leaf.key, leaf.dtype, leaf.shape, "step") for leaf in action]


class _Recording:
    """One run of one environment, or of several in step."""

    def __init__(self, task: RecordTask, env: Any, actor: Actor, folder: Path, notes: list[str]) -> None:
        self._task, self._env, self._actor, self._notes = task, env, actor, notes
        count = task.made.count
        columns = columns_of(task.observation, task.action)
        self._writer = RecordingWriter(folder, columns, codec=task.codec, threads=task.threads)
        self._room = block_rows(columns, count)
        self._leaves = (*task.observation, *task.action)
        self._buffers = [np.zeros((count, self._room, *leaf.shape), leaf.dtype) for leaf in self._leaves]
        self._reward = np.zeros((count, self._room))
        self._end = np.zeros((count, self._room), np.uint8)
        #: Rows in the buffers: states and steps of each environment.
        self._states, self._steps = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._all_states = np.zeros(count, np.int64)
        self._done = 0  # rounds
        self._outside = 0  # actions beyond the bounds of their Box
        self._values = LeafRows(task.made.id)

    def run(self, on_block: OnBlock) -> None:
        count = self._task.made.count
        with heard(self._notes):
            observation = self._call("reset", seed=self._task.given["seed"])[0]
        if count == 1:
            self._run_one(observation, on_block)
        else:
            self._run_many(observation, on_block)
        self._flush()
        self._notes += self._values.notes()
        counts = {"actions_out_of_bounds": self._outside}
        self._writer.finish({"states": self._all_states.tolist(), "counts": counts, "notes": self._notes})

    # -- one environment -----------------------------------------------------------------------------------------------

    def _run_one(self, observation: Any, on_block: OnBlock) -> None:
        env, actor = self._env, self._actor
        steps, episodes = self._task.given["steps"] or _NO_END, self._task.given.get("episodes") or _NO_END
        by_steps = steps < _NO_END
        begins, ended = True, 0
        put_state = self._single(self._task.observation, 0)
        put_action = self._single(self._task.action, len(self._task.observation))
        reward_row, end_row = self._reward[0], self._end[0]
        room = self._room - 2
        state = step = 0
        put_state(state, observation)
        state += 1
        for number in range(1, steps + 1):
            if begins:
                actor.begin()
            action = actor(observation)
            try:
                observation, reward, terminated, truncated, _ = env.step(action)
                reward_row[step] = reward if type(reward) is float else self._values.reward(reward)
            except Exception as error:
                raise self._failed("step", error) from error
            put_action(step, action)
            end = self._values.end(terminated, truncated)
            end_row[step] = CUT if number == steps and not end else end
            put_state(state, observation)
            step, state, self._done = step + 1, state + 1, number
            begins, ended = end > 0, ended + (end > 0)
            last = number == steps or ended == episodes
            if end and not last:
                observation = self._call("reset")[0]
                put_state(state, observation)
                state += 1
            if state > room or last:
                self._states[0], self._steps[0] = state, step
                self._flush()
                state = step = 0
                on_block(number if by_steps else ended, 0, 0)
            elif not number % _REPORT_EVERY:
                on_block(number if by_steps else ended, 0, 0)
            if last:
                break

    def _single(self, leaves: Sequence[SpaceLeaf], first: int) -> Callable[[int, Any], None]:
        """A function that stores the value of one environment in a row of the buffers."""
        if len(leaves) == 1 and not leaves[0].is_text and not leaves[0].path:
            leaf, rows = leaves[0], self._buffers[first][0]
            wanted, shape = rows.dtype, leaf.shape

            def put(row: int, value: Any) -> None:
                if type(value) is np.ndarray and value.dtype == wanted and value.shape == shape:
                    rows[row] = value
                else:
                    rows[row] = self._values.row(leaf, value)

            return put
        targets = [(leaf, self._buffers[first + number][0]) for number, leaf in enumerate(leaves)]

        def put_all(row: int, value: Any) -> None:
            for leaf, rows in targets:
                rows[row] = self._values.row(leaf, self._values.pick(leaf, value))

        return put_all

    # -- several, in step ----------------------------------------------------------------------------------------------

    def _run_many(self, observation: Any, on_block: OnBlock) -> None:
        """Every environment makes its share of the steps, the first few one more; or of the episodes, the same way."""
        count, given = self._task.made.count, self._task.given
        steps, episodes = (_shares(given.get(name), count) for name in ("steps", "episodes"))
        by_steps, everyone = given["steps"] is not None, np.arange(count)
        made, ended = np.zeros(count, np.int64), np.zeros(count, np.int64)
        active, number = everyone, 0
        self._put_states(everyone, observation)
        begins = np.ones(count, bool)
        while len(active):
            number += 1
            if begins.any():
                self._actor.begin(begins)
            action = self._actor(observation)
            try:
                observation, reward, terminated, truncated, _ = self._env.step(action)
            except Exception as error:
                raise self._failed("step", error) from error
            at = self._steps[active]
            for index, leaf in enumerate(self._task.action):
                rows = self._values.batch(leaf, self._values.pick(leaf, action))
                self._buffers[len(self._task.observation) + index][active, at] = rows[active]
            end = terminated.astype(np.uint8) + 2 * truncated.astype(np.uint8)
            made[active] += 1
            self._reward[active, at] = reward[active]
            self._end[active, at] = np.where((made == steps) & (end == 0), CUT, end)[active]
            self._steps[active] += 1
            self._put_states(active, observation)
            self._done = number
            over = begins = end > 0
            ended[active] += over[active]
            going = (made < steps) & (ended < episodes)
            active = active[going[active]]
            if over.any() and len(active):
                observation = self._call("reset", options={"reset_mask": over})[0]
                self._put_states(np.flatnonzero(over & going), observation)
            done = int(made.sum() if by_steps else ended.sum())
            if int(self._states.max()) > self._room - 2 or not len(active):
                self._flush()
                on_block(done, 0, 0)
            elif not number % _REPORT_EVERY:
                on_block(done, 0, 0)

    def _put_states(self, envs: np.ndarray, observation: Any) -> None:
        at = self._states[envs]
        for index, leaf in enumerate(self._task.observation):
            self._buffers[index][envs, at] = self._values.batch(leaf, self._values.pick(leaf, observation))[envs]
        self._states[envs] += 1

    # -- both ----------------------------------------------------------------------------------------------------------

    def _call(self, name: str, **arguments: Any) -> Any:
        try:
            return getattr(self._env, name)(**arguments)
        except Exception as error:
            raise self._failed(name, error) from error

    def _failed(self, what: str, error: Exception) -> RbdataError:
        message = (
            f"{self._task.made.id} failed in {what}, after {self._done} steps: {type(error).__name__}: {reason(error)}"
        )
        return RbdataError(message, hint="nothing was written; the same --seed fails at the same place")

    def _flush(self) -> None:
        """Write what is in the buffers."""
        for env in range(self._task.made.count):
            states, steps = int(self._states[env]), int(self._steps[env])
            if not np.isfinite(self._reward[env, :steps]).all():
                raise RbdataError(f"{self._task.made.id} gave a reward that is not a finite number")
            for number, leaf in enumerate(self._leaves):
                rows = states if number < len(self._task.observation) else steps
                if rows:
                    self._writer.column(env, number, self._buffers[number][env, :rows])
                if number >= len(self._task.observation):
                    self._outside += count_outside(leaf, self._buffers[number][env, :rows])
            if steps:
                self._writer.steps(env, self._reward[env, :steps], self._end[env, :steps])
            self._all_states[env] += states
        self._states[:] = self._steps[:] = 0


def block_rows(columns: Sequence[Column], count: int) -> int:
    """How many rows of each environment are kept in memory, of ``count``."""
    row = sum(column.row_bytes for column in columns) + 5
    return max(4, min(_BUFFER_ROWS, _BUFFER_BYTES // (row * count)))


def _shares(total: int | None, count: int) -> np.ndarray:
    """How many of ``total`` each environment makes: the first few one more where they cannot be equal."""
    if total is None:
        return np.full(count, _NO_END)
    return np.full(count, total // count) + (np.arange(count) < total % count)


def count_outside(leaf: SpaceLeaf, rows: np.ndarray) -> int:
    """How many rows of an action lie outside its Box."""
    if leaf.space["type"] != "Box" or leaf.space["low"] is None or leaf.space["high"] is None:
        return 0
    low, high = (np.array(leaf.space[name], float).astype(rows.dtype) for name in ("low", "high"))
    beyond = (rows < low) | (rows > high)
    return int(beyond.reshape(len(rows), -1).any(1).sum()) if len(rows) else 0
