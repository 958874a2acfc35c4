"""Write Atari experience in the DQN Replay format: the ring buffer whose logs are the public dataset.

DQN Replay (https://github.com/google-research/batch_rl) is not a sequence of shards that somebody cut. It is what a
circular replay buffer left on disk: every time the ring was nearly full the whole ring was saved, in ring order, with
whatever its last slot still held. A reader has to undo that, and a test of a reader needs such files with known
contents. This module writes them, of any capacity, and says which steps a perfect reader can find in them::

    writer = DQNReplayWriter(folder / "Pong" / "1" / "replay_logs", capacity=1000)
    for frame, action, reward, terminal in play:
        writer.add(frame, action, reward, terminal)
    writer.close()
    writer.recoverable_steps().present      # bool [steps]

Six files are saved per checkpoint N, each one ``.npy`` stream inside one gzip stream:

==================================  =======  =====================  ===============================================
file                                dtype    shape                  content
==================================  =======  =====================  ===============================================
``$store$_observation_ckpt.N.gz``   uint8    [capacity, 84, 84]     one grey frame a row, the newest of the state
``$store$_action_ckpt.N.gz``        int32    [capacity]             the action the agent chose
``$store$_reward_ckpt.N.gz``        float32  [capacity]             the reward it caused, clipped to [-1, 1]
``$store$_terminal_ckpt.N.gz``      uint8    [capacity]             1 when the transition ended the episode
``add_count_ckpt.N.gz``             int64    []                     rows written since the run began, pads included
``invalid_range_ckpt.N.gz``         int64    [stack_size + 1]       rows whose stack or successor crosses the cursor
==================================  =======  =====================  ===============================================

The ring at the moment of saving (capacity 8, cursor ``^`` at the last slot)::

    file 0    a0 a1 a2 a3 a4 a5 a6 ??       ?? was never written: whatever the memory held
                                   ^
    file 1    b0 b1 b2 b3 b4 b5 b6 a7       a7 comes right before b0, and right after a6 of file 0
                                   ^
    final     c0 c1 c2 b3 b4 b5 b6 b7       saved when training stops; add_count holds the cursor (3), not the count
                       ^                    c3.. was never played: b3..b6 are left over from file 1, b7 precedes c0
"""

from __future__ import annotations

import gzip
import mmap
import tempfile
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PAD = -1  # a row of zeros that the writer put before an episode
UNWRITTEN = -2  # a row that was never written

COLUMNS = {"observation": np.uint8, "action": np.int32, "reward": np.float32, "terminal": np.uint8}
GARBAGE = {"action": -559038737, "reward": np.nan, "terminal": 255}
UPDATE_HORIZON = 1
BLOCK_BYTES = 4 << 20  # the ring goes to gzip in pieces of this size: a 7 GB column is never copied


@dataclass(frozen=True)
class Episode:
    """What was added for one episode.

    Attributes:
        first_step: number of its first step, counting every step ever added from 0.
        actions: int32 [length].
        rewards: float32 [length].
        terminal: whether the last step was added as terminal (False only for an episode that was still open).
    """

    first_step: int
    actions: np.ndarray
    rewards: np.ndarray
    terminal: bool

    def __len__(self) -> int:
        return len(self.actions)


@dataclass(frozen=True)
class Dump:
    """One saved checkpoint: which step every row of it holds.

    Attributes:
        suffix: the N of its file names.
        add_count: as saved, so the cursor for the final dump.
        final: whether `close` wrote it.
        step_ids: int64 [capacity], step number, `PAD` or `UNWRITTEN`.
    """

    suffix: int
    add_count: int
    final: bool
    step_ids: np.ndarray

    def new_rows(self) -> np.ndarray:
        """Rows that the format says are new in this file, in the order of time, int64 [at most capacity]."""
        capacity = len(self.step_ids)
        cursor = self.add_count % capacity
        if self.final and self.suffix > 0 and cursor == capacity - 1:
            # The run stopped in the very step after which the ring had just been saved: nothing new.
            return np.empty(0, np.int64)
        # The last slot belongs to the lap before. A file tells that there was such a lap by its suffix or its count.
        first = [capacity - 1] if self.suffix > 0 or self.add_count >= capacity else []
        return np.array([*first, *range(cursor)], np.int64)


@dataclass(frozen=True)
class Recoverable:
    """What a perfect reader finds: bool [steps] each. `successor_present` is False after a terminal step."""

    present: np.ndarray
    successor_present: np.ndarray


def invalid_range(cursor: int, capacity: int, stack_size: int) -> np.ndarray:
    """Rows whose stack of `stack_size` frames or one-step successor crosses the cursor, int64 [stack_size + 1]."""
    return (cursor - UPDATE_HORIZON + np.arange(stack_size + UPDATE_HORIZON, dtype=np.int64)) % capacity


class DQNReplayWriter:
    """The logged ring buffer of DQN Replay.

    Args:
        folder: where the checkpoints go (``.../<Game>/<run>/replay_logs`` in the public bucket); created if missing.
        capacity: rows of the ring.
        stack_size: frames in an agent's state; ``stack_size - 1`` rows of zeros are written before every episode.
        frame_shape: shape of one frame.
        fill: byte that never-written memory holds. None means noise, terminal 255 and reward NaN, so that a reader
            which touches that memory is caught.
        gzip_level: 0 to 9; the public files were written at 9, which is slow. 0 to 3 with `fast_gzip`.
        fast_gzip: compress with ISA-L, several times as fast and 10 to 30 % larger.
        scratch: folder for the ring's frames, which are then mapped from an unnamed file there; None keeps them in
            memory (7 GB at full capacity).
        seed: of the noise.
    """

    def __init__(
        self,
        folder: Path,
        capacity: int = 1_000_000,
        stack_size: int = 4,
        frame_shape: tuple[int, ...] = (84, 84),
        fill: int | None = None,
        *,
        gzip_level: int = 6,
        fast_gzip: bool = False,
        scratch: Path | None = None,
        seed: int = 0,
    ) -> None:
        if capacity < stack_size + UPDATE_HORIZON:
            raise ValueError(f"capacity {capacity} cannot hold one transition of {stack_size} stacked frames")
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.capacity = capacity
        self.stack_size = stack_size
        self.add_count = 0
        self.dumps: list[Dump] = []
        self._fill = fill
        self._noise = np.random.default_rng(seed)
        self._gzip_level = min(gzip_level, 3) if fast_gzip else gzip_level
        self._fast_gzip = fast_gzip

        frames: np.ndarray
        if scratch is None:
            frames = np.zeros((capacity, *frame_shape), np.uint8)
        else:
            scratch.mkdir(parents=True, exist_ok=True)
            file = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 -- lives, unnamed, as long as its mapping
            frames = np.memmap(file, np.uint8, "w+", shape=(capacity, *frame_shape))
        self._ring = {name: np.zeros(capacity, dtype) for name, dtype in COLUMNS.items() if name != "observation"}
        self._ring["observation"] = frames
        self._release_rows = max(1, (64 << 20) // frames[0].nbytes)  # give mapped pages back every 64 MiB

        # The truth, kept beside the ring: which step stands in which row, and what was added.
        self._step_ids = np.full(capacity, UNWRITTEN, np.int64)
        self._actions, self._rewards, self._terminals = array("i"), array("f"), array("B")

    @property
    def cursor(self) -> int:
        """The row that is written next."""
        return self.add_count % self.capacity

    def add(self, frame: np.ndarray, action: int, reward: float, terminal: bool) -> None:
        """Add one transition: the frame the agent saw, what it did, what it got, and whether the episode ended."""
        if self.add_count == 0 or self._ring["terminal"][self.cursor - 1] == 1:
            for _ in range(self.stack_size - 1):
                self._write_row(0, 0, 0.0, 0, PAD)
        self._write_row(frame, action, reward, int(terminal), len(self._actions))
        self._actions.append(action)
        self._rewards.append(reward)
        self._terminals.append(terminal)
        # Tested once per call, not once per row: at the start of an episode the cursor moves by stack_size, and when
        # that jump passes over the last slot this whole lap is never saved. The public data has such lost laps.
        if self.cursor == self.capacity - 1:
            self._dump(self.add_count, final=False)

    def close(self, final_dump: bool = True) -> None:
        """Stop: save the ring as it stands, unless `final_dump` is False, and give its memory back."""
        if self._ring and final_dump:
            self._dump(self.cursor, final=True)
        self._ring = {}

    # -- the truth -------------------------------------------------------------------------------------------------

    def episodes(self) -> list[Episode]:
        """Every episode ever added, in order; the last one may be open."""
        actions, rewards = np.array(self._actions, np.int32), np.array(self._rewards, np.float32)
        terminals = np.array(self._terminals, bool)
        stops = (np.flatnonzero(terminals) + 1).tolist()
        if len(terminals) and not terminals[-1]:
            stops.append(len(terminals))
        starts = [0, *stops]
        return [
            Episode(start, actions[start:stop], rewards[start:stop], bool(terminals[stop - 1]))
            for start, stop in zip(starts, stops, strict=False)
        ]

    def recoverable_steps(self) -> Recoverable:
        """For every step added: can it be read from the saved files, and can the step after it.

        Read off the tags of the rows that were saved, so it owes nothing to any reader. Not counted are rows that
        only a comparison of whole files could tell from stale ones: when the last lap before the end was lost, the
        final file still holds part of it behind its cursor.
        """
        steps = len(self._terminals)
        present = np.zeros(steps + 1, bool)
        for dump in self.dumps:
            ids = dump.step_ids[dump.new_rows()]
            present[ids[ids >= 0]] = True
        successor = present[1:] & ~np.array(self._terminals, bool)
        return Recoverable(present[:-1], successor)

    # -- the ring --------------------------------------------------------------------------------------------------

    def _write_row(self, frame: np.ndarray | int, action: int, reward: float, terminal: int, step_id: int) -> None:
        row, ring = self.cursor, self._ring
        ring["observation"][row] = frame
        ring["action"][row] = action
        ring["reward"][row] = reward
        ring["terminal"][row] = terminal
        self._step_ids[row] = step_id
        self.add_count += 1
        if row % self._release_rows == 0:
            _release(ring["observation"])

    def _dump(self, add_count: int, final: bool) -> None:
        suffix = len(self.dumps)
        for name, column in self._ring.items():
            with self._create(f"$store$_{name}_ckpt.{suffix}.gz") as file:
                np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(column))
                rows = max(1, BLOCK_BYTES // column[:1].nbytes)
                for start in range(0, self.capacity, rows):
                    file.write(self._saved_block(name, start, start + rows).data)
                    _release(column)
        for name, value in {
            "add_count": np.array(add_count, np.int64),
            "invalid_range": invalid_range(self.cursor, self.capacity, self.stack_size),
        }.items():
            with self._create(f"{name}_ckpt.{suffix}.gz") as file:
                np.lib.format.write_array(file, value, allow_pickle=False)
        self.dumps.append(Dump(suffix, add_count, final, self._step_ids.copy()))

    def _saved_block(self, name: str, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop) as they are saved: as they stand, or as memory that nobody initialised."""
        block = self._ring[name][start:stop]
        unwritten = self._step_ids[start:stop] == UNWRITTEN
        if unwritten.any():
            block = block.copy()
            block[unwritten] = self._garbage(name, block[unwritten].shape)
        return block

    def _garbage(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        dtype = np.dtype(COLUMNS[name])
        if self._fill is not None:
            return np.full((*shape, dtype.itemsize), self._fill, np.uint8).view(dtype)[..., 0]
        if name == "observation":
            return self._noise.integers(0, 256, shape, np.uint8)
        return np.full(shape, GARBAGE[name], dtype)

    def _create(self, name: str) -> gzip.GzipFile:
        path = self.folder / name
        if self._fast_gzip:
            from isal import igzip

            return igzip.IGzipFile(path, "wb", compresslevel=self._gzip_level, mtime=0)
        return gzip.GzipFile(path, "wb", compresslevel=self._gzip_level, mtime=0)  # mtime 0: same play, same bytes


def _release(column: np.ndarray) -> None:
    """Let go of the pages of a mapped ring: they stay in the file, and stop counting as this process's memory."""
    mapping = getattr(column, "_mmap", None)
    if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)
