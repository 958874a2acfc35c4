"""Columns that read rows around each step, never across an episode: stacks, n-step returns, windows by key.

With a frame stack of k, the k - 1 states before a step are read with it, its successor is the next state (or the n-th after
it), and both stacks are made of these k + 1 rows.

n-step returns (Sutton, 1988) are cut at the end of the episode, not of the batch: rewards are read from the storage.

    episode of 4, n = 3         steps   0    1    2    3 (done)
                                reward  r0   r1   r2   r3
    from step 0                 r0 + g r1 + g^2 r2          next is that of step 2      3 steps
    from step 2                 r2 + g r3                   next is that of step 3      2 steps, done

``next/reward`` alone is summed. All other leaves under ``next`` (costs, infos) are those of the last step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from ...errors import UsageError
from ..codecs import load_codec
from ..codecs.codec import Rows
from ..memory_map import in_numpy
from ..schema import FLAGS, LARGE_ROW, at_and_below
from ..window import Windows, as_words, plan_windows, read_windows
from .around import Around, NStep
from .columns import At, BatchColumn, Only, step_columns
from .storages.rows import by_position
from .storages.storage import Storage

#: Observations that are laid out as plain TED are stacked when their path begins with one of these.
STACKED = ("observation", "pixels")


def columns_around(
    storage: Storage, leaves: Mapping[str, Rows], around: Around, *, with_info: bool
) -> list[BatchColumn]:
    """Return the columns of batches with stacks, n-step returns or windows.

    Raises UsageError for keys that are missing, and for leaves that do not allow it.
    """
    if around.windows is not None:
        if storage.batch_tail:
            raise UsageError("windows are of steps: the records of this storage are trajectories")
        return window_columns(leaves, around)
    columns: list[BatchColumn] = []
    if around.n_step is not None:
        columns.append(NStepColumn(storage, leaves, around))
    if around.frame_stack is not None:
        for column in stack_columns(storage, leaves, around):
            keys = storage.keys
            names = [name for name in column.names if keys is None or name in keys]
            columns.append(column if len(names) == 2 else Only(column, names))
    made = {name for column in columns for name in column.names}
    return columns + step_columns(storage, leaves, with_info=with_info, without=made)


# -- n-step returns ------------------------------------------------------------------------------------------------------


class NStepColumn(BatchColumn):
    """The discounted sum of rewards, and what goes with it."""

    names = ("next/reward", "next/original_reward", "steps_to_next_obs", "gamma")

    def __init__(self, storage: Storage, leaves: Mapping[str, Rows], around: Around) -> None:
        if "next/reward" not in leaves:
            raise UsageError(f"{storage!r} has no next/reward to sum up")
        assert around.n_step is not None
        self._rows, self._n_step = leaves["next/reward"], NStep(around.n_step, around.gamma)
        self._n_step.check_rewards(leaves)
        self.bytes = self._rows.leaf.row_bytes * (around.n_step + 2) + 12
        keys = storage.keys
        replaced = [name for name in self.names[1:] if name in leaves and (keys is None or name in keys)]
        if replaced:
            what = getattr(getattr(storage, "dataset", None), "id", f"the {type(storage).__name__}")
            message = f"{what} has {', '.join(replaced)}, which n_step would replace"
            hint = "leave out n_step where rewards are of several steps already; else rename these leaves, or use keys="
            raise UsageError(message, hint=hint)

    def plan(self, at: At) -> None:
        _ = at.last

    def read(self, at: At) -> tuple[torch.Tensor, ...]:
        rows = by_position(self._rows, at.timeline)
        windows = plan_windows(rows.count, at.position, self._n_step.steps, at.low, at.high, "zero")
        rewards, taken = read_windows(rows, windows), at.last - at.position + 1
        return self._n_step.total(rewards), rewards[:, 0].clone(), taken, self._n_step.discount(taken)


# -- stacks --------------------------------------------------------------------------------------------------------------


def stack_columns(storage: Storage, leaves: Mapping[str, Rows], around: Around) -> list[BatchColumn]:
    """Return the columns of stacked observations: those of ``stack_keys``, or all."""
    keys, pad = around.stack_keys, around.padding
    columns: list[BatchColumn] = []
    if keys is not None:
        keys = [name for key in keys for name in _named(key, leaves, "to stack")]
        if any(key in FLAGS for key in keys):
            raise UsageError("flags cannot be stacked")
    wanted = storage.keys
    assert around.frame_stack is not None
    for name, rows in leaves.items():
        if keys is None and not (rows.leaf.kind == "state" or name.partition("/")[0] in STACKED):
            continue
        if (keys is not None and name not in keys) or (wanted is not None and not {name, f"next/{name}"} & {*wanted}):
            continue
        if rows.leaf.kind == "state":
            columns.append(StateStackColumn(rows, around.frame_stack, pad))
            continue
        after = leaves.get(f"next/{name}")
        if after is not None and after.leaf.shape == rows.leaf.shape:
            columns.append(StackColumn(rows, after, around.frame_stack, pad))
        elif keys is not None:
            message = f"{name} cannot be stacked: it has no next/{name} of the same shape"
            raise UsageError(message, hint="stacks are of observations, which have a successor")
    if not columns:
        raise UsageError(f"{storage!r} has no observation to stack", hint="name the keys with stack_keys")
    return columns


class StackColumn(BatchColumn):
    """Stacks of an observation laid out as plain TED, with separate leaves for step and successor.

    The stack of a successor is the stack of its step without the oldest observation, followed by the successor:

        stack of 3 at step 4        o2 o3 o4
        after it                       o3 o4 n4
    """

    def __init__(self, rows: Rows, after: Rows, stack: int, pad: Any) -> None:
        self._rows, self._after, self._stack, self._pad = rows, after, stack, pad
        self.names, self.bytes = (rows.leaf.name, after.leaf.name), 2 * stack * rows.leaf.row_bytes

    def plan(self, at: At) -> None:
        _ = at.low, at.high, at.last_rows
        at.kept(f"stack {self._stack}", lambda: self._plan(at, at.position, self._stack))

    def _plan(self, at: At, last: torch.Tensor, length: int) -> Windows:
        count = int(at.timeline.starts[-1])
        return plan_windows(count, last - (length - 1), length, at.low, at.high, self._pad)

    def read(self, at: At) -> tuple[torch.Tensor, ...]:
        rows, k = by_position(self._rows, at.timeline), self._stack
        stack = read_windows(rows, at.kept(f"stack {k}", lambda: self._plan(at, at.position, k)))
        before = stack[:, 1:]
        if at.n_step is not None and k > 1:
            before = read_windows(rows, self._plan(at, at.last, k - 1))
        return stack, _append(before, self._after.take(at.last_rows))


class StateStackColumn(BatchColumn):
    """Stacks of a state leaf, at a step and at its successor, from one window of rows.

    A batch on a GPU gets ``shared``, the windows that both were cut from: half of the bytes to copy (`devices`).
    """

    def __init__(self, rows: Rows, stack: int, pad: Any) -> None:
        self._rows, self._stack, self._pad = rows, stack, pad
        self.names, self.bytes = (rows.leaf.name, f"next/{rows.leaf.name}"), 2 * stack * rows.leaf.row_bytes
        self._decodes = not load_codec(rows.leaf.codec).fixed_rows

    def _windows(self, at: At) -> Windows:
        """The rows to read: of a whole slice at once, or of each step."""
        own = at.starts if at.whole is not None and at.n_step is None else at
        extra = at.slices.length if own is not at and at.slices is not None else at.n_step or 1
        length = self._stack + extra

        def plan() -> Windows:
            low, high = own.low + own.episode, own.high + own.episode + 1
            return plan_windows(self._rows.count, own.state - (self._stack - 1), length, low, high, self._pad)

        return own.kept(f"states {self._stack}", plan)

    def plan(self, at: At) -> None:
        self._windows(at)
        _ = at.last if at.n_step is not None else None

    def read(self, at: At) -> tuple[torch.Tensor, ...]:
        read, k = read_windows(self._rows, self._windows(at)), self._stack
        if at.n_step is not None:
            after = (at.last - at.position + 1)[:, None] + torch.arange(k, device="cpu")
            return read[:, :k].clone(), read[torch.arange(len(read), device="cpu")[:, None], after]
        if at.whole is None:
            return _lazy_copy(read)[:, :-1], read[:, 1:]
        stacks = read.unfold(1, k, 1).movedim(-1, 2)  # [slices, L + 1, k, *shape]
        return _copy(stacks[:, :-1]).flatten(0, 1), _copy(stacks[:, 1:]).flatten(0, 1)


def _append(rows: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """``rows`` ``[B, k, *shape]`` followed by ``last`` ``[B, *shape]``; by NumPy if possible, see `row_index.lookup`."""
    if not in_numpy(rows):
        return torch.cat([rows, last.unsqueeze(1)], 1)
    return torch.from_numpy(np.concatenate([rows.numpy(), last.unsqueeze(1).numpy()], 1))


def _lazy_copy(rows: torch.Tensor) -> torch.Tensor:
    """A copy that torch makes when either tensor is first written to; made at once for memory that torch did not allocate."""
    if torch.__version__ >= "2.13":
        with suppress(AttributeError, RuntimeError):
            return torch._lazy_clone(rows)
    return _copy(rows)


def _copy(rows: torch.Tensor) -> torch.Tensor:
    return rows.clone(memory_format=torch.contiguous_format)


# -- windows by key ------------------------------------------------------------------------------------------------------


def window_columns(leaves: Mapping[str, Rows], around: Around) -> list[BatchColumn]:
    assert around.windows is not None
    names = [name for rows in leaves.values() for name in _paths(rows)]
    nearest = sorted(around.windows.items(), key=lambda one: one[0].count("/"))  # a leaf's own window counts most
    windows = {name: offsets for key, offsets in nearest for name in _named(key, names, "of windows")}
    return [WindowColumn(leaves, name, *offsets, around.padding) for name, offsets in windows.items()]


def _named(key: str, names: Iterable[str], what: str) -> list[str]:
    """The names at and below a key. Raises UsageError for none; ``what`` is what the key is of."""
    found = at_and_below(names, key)
    if not found:
        raise UsageError(f"unknown key {what}: {key}", hint=f"there are {', '.join(names)}")
    return found


def _paths(rows: Rows) -> tuple[str, ...]:
    name = rows.leaf.name
    return (name, f"next/{name}") if rows.leaf.kind == "state" else (name,)


class WindowColumn(BatchColumn):
    """Rows ``first`` to ``last`` around each step, ``[B, length, *shape]``, and which of them belong to the episode.

    Outside of it there is ``pad``: its nearest row ("repeat") or zeros. Offsets of a state leaf, and of a leaf with a successor
    of its shape and dtype (not of flags and actions), count states: an episode has one more of them than steps.
    """

    def __init__(self, leaves: Mapping[str, Rows], key: str, first: int, last: int, pad: Any) -> None:
        self._shift = key not in leaves  # the successor of a state is the next state
        self._rows = leaves[key.removeprefix("next/") if self._shift else key]
        self._first, self._length, self._pad = first + self._shift, last - first + 1, pad
        self._is_state = self._rows.leaf.kind == "state"
        # Of frames no row is read that is not returned; short rows are read as windows, whatever lies beyond the episode.
        self._one_by_one = self._rows.leaf.row_bytes >= LARGE_ROW
        self._successors = None if self._is_state else _successors_of(leaves, self._rows)
        self.names, self.bytes = (key, f"mask/{key}"), self._length * self._rows.leaf.row_bytes

    def plan(self, at: At) -> None:
        self._windows(at)

    def _windows(self, at: At) -> Windows:
        def plan() -> Windows:
            first, low, high, count = at.position, at.low + self._shift, at.high, int(at.timeline.starts[-1])
            if self._is_state:
                first, low, high, count = at.state, low + at.episode, high + at.episode + 1, self._rows.count
            return plan_windows(count, first + self._first, self._length, low, high, self._pad)

        return at.kept(f"window {self._is_state} {self._shift} {self._first} {self._length}", plan)

    def read(self, at: At) -> tuple[torch.Tensor, ...]:
        windows = self._windows(at)
        rows = self._rows if self._is_state else by_position(self._rows, at.timeline)
        found = _read_one_by_one(rows, windows) if self._one_by_one else read_windows(rows, windows)
        mask = np.ones(at.size * self._length, bool)
        mask[windows.outside] = False
        if self._successors is not None:
            self._add_final_state(at, found, mask)
        return found, torch.from_numpy(mask).view(at.size, self._length)

    def _add_final_state(self, at: At, found: torch.Tensor, mask: np.ndarray) -> None:
        """The state after the last step of an episode is the successor of that step; with "repeat" those after it as well."""
        beyond = (at.high - at.position).numpy() - self._first  # the place of the final state in each window
        few = np.flatnonzero(beyond < self._length)
        if not len(few):
            return
        wanted = np.arange(self._length) >= beyond[few, None]
        final = wanted & (np.arange(self._length) == beyond[few, None])
        mask.reshape(-1, self._length)[few] |= final
        fill = wanted if self._pad == "repeat" else final
        which, place = fill.nonzero()
        assert self._successors is not None
        rows = at.timeline.rows(at.high[torch.from_numpy(few)] - 1)
        values = as_words(self._successors.take(rows[torch.from_numpy(which)]))
        as_words(found.flatten(0, 1))[torch.from_numpy(few[which] * self._length + place)] = values


def _read_one_by_one(rows: Rows, windows: Windows) -> torch.Tensor:
    """`read_windows` by single rows."""
    count, length = windows.count, windows.length
    index = (
        np.zeros((count, length), np.int64)
        if windows.start is None
        else windows.start.numpy()[:, None] + np.arange(length)
    )
    index.reshape(-1)[windows.copied] = windows.source
    found = rows.take(torch.from_numpy(index.reshape(-1)))
    if len(windows.blank):
        as_words(found).index_fill_(0, torch.from_numpy(windows.blank).to(found.device), 0)
    return found.view(count, length, *rows.leaf.shape)


def _successors_of(leaves: Mapping[str, Rows], rows: Rows) -> Rows | None:
    """The leaf of the successors, where it is the same quantity a step later, whatever it is called."""
    name, last = rows.leaf.name, rows.leaf.name.rpartition("/")[2]
    after = leaves.get(f"next/{name}")
    if after is None or last in (*FLAGS, "action"):  # nothing is done after the last action
        return None
    return after if (rows.leaf.shape, rows.leaf.dtype) == (after.leaf.shape, after.leaf.dtype) else None
