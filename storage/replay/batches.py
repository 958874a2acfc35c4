"""Make TED batches from the steps drawn, with one read for each leaf.

A batch is made from windows of rows: with a frame stack of k, the k - 1 states before a step are read with it, its successor
is the next state (or the n-th after it), and both stacks are made of these k + 1 rows.

Small leaves such as rewards and flags take a few bytes per step: the cost of reading them is the number of calls. So several
batches are drawn ahead and their small leaves are read together (``prepare``); the large leaves are read batch by batch
(``complete``). Batches do not share memory with each other or with the storage, nor do the leaves of a batch.

`NStep`: n-step returns (Sutton, 1988), cut at the end of the episode, not of the batch: rewards are read from the dataset.

    episode of 4, n = 3         steps   0    1    2    3 (done)
                                reward  r0   r1   r2   r3
    from step 0                 r0 + g r1 + g^2 r2          next is that of step 2      3 steps
    from step 2                 r2 + g r3                   next is that of step 3      2 steps, done

``next/reward`` alone is summed. All other leaves under ``next`` (costs, infos) are those of the last step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from ...errors import SamplingError, UsageError
from ..amounts import MOST_RECORDS
from ..codecs import load_codec
from ..keywords import whole_number
from ..memory_map import in_numpy
from ..schema import FLAGS, LARGE_ROW
from ..window import Pad, Windows, as_words, nest, plan_windows, read_window, read_windows
from .draw import Draw, check_replaces_none, expand_to_records, flag_keys, mark_slices, slice_flags
from .storages.dataset_storage import DatasetStorage
from .storages.rows import DistinctRows, Readable, by_position
from .storages.storage import Storage, rows_as_index
from .storages.trees import set_nested_sizes
from .timeline import Edges, Timeline, entry_key, path_of


@dataclass(frozen=True)
class NStep:
    """Look ``steps`` ahead, discounting by ``gamma``."""

    steps: int
    gamma: float

    def __post_init__(self) -> None:
        steps = whole_number("n_step", self.steps, 1, MOST_RECORDS)
        if not 0 < self.gamma <= 1:
            raise UsageError(f"gamma must lie in (0, 1], and is {self.gamma!r}")
        self.__dict__.update(steps=steps, gamma=float(self.gamma))

    def check_rewards(self, leaves: Iterable[str]) -> None:
        """Raise UsageError for rewards beside ``next/reward`` (of each agent, say): the last step's would look like sums."""
        rewards = [name for name in leaves if name.startswith("next/") and name.endswith("/reward")]
        others = [name for name in rewards if name != "next/reward"]
        if self.steps > 1 and others:
            message = f"n_step sums next/reward alone, not {', '.join(others)}"
            raise UsageError(message, hint="leave these leaves out; under other names they are those of the last step")

    def ahead(self, position: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        """The number of steps to take: ``n``, or fewer before the episode's ``end``; int64 ``[B]``."""
        return (end - position).clamp(max=self.steps)

    def total(self, rewards: torch.Tensor) -> torch.Tensor:
        """The discounted sum of rewards ``[B, n, *shape]``, zero beyond the end: ``[B, *shape]``; float32 of whole numbers."""
        weights = self.gamma ** torch.arange(self.steps, dtype=torch.float64, device=rewards.device)
        summed = (rewards.double() * weights.view(1, -1, *[1] * (rewards.ndim - 2))).sum(1)
        return summed.to(rewards.dtype if rewards.is_floating_point() else torch.float32)

    def discount(self, taken: torch.Tensor) -> torch.Tensor:
        """The factor of the value of the next state: gamma^k, float32 ``[B]``."""
        return (self.gamma ** taken.double()).float()


@dataclass(frozen=True)
class KeyWindows:
    """Windows of leaves around each step drawn: the offsets of the first and the last row of each, by path.

    Outside the episode of the step there is ``padding``: its nearest row ("repeat") or zeros. Offsets of a state leaf, and of
    a leaf with a successor of its shape and dtype (not of flags and actions), count states: an episode has one more of them
    than steps.
    """

    offsets: Mapping[str, tuple[int, int]]
    padding: Pad

    @classmethod
    def of(cls, windows: Mapping[Any, Any], padding: Any) -> KeyWindows:
        """Windows from a user's arguments. Raises UsageError for invalid offsets."""
        if not isinstance(windows, Mapping) or not windows:
            raise UsageError(f"windows give a first and a last offset for each key, not {windows!r}", hint=_WINDOWS)
        offsets: dict[str, tuple[int, int]] = {}
        for key, given in windows.items():
            path = path_of(key)
            pair = tuple(given) if isinstance(given, (tuple, list)) else (given,)
            is_whole = [isinstance(one, (int, np.integer)) and not isinstance(one, bool) for one in pair]
            if len(pair) != 2 or not all(is_whole) or pair[0] > pair[1]:
                message = f"the window of {path} is {given!r}, not the offsets of its first and its last row"
                raise UsageError(message, hint=_WINDOWS)
            if max(-pair[0], pair[1], pair[1] - pair[0] + 1) > MOST_RECORDS:
                raise UsageError(f"the window of {path}, {given!r}, is longer than {MOST_RECORDS:,}")
            offsets[path] = (int(pair[0]), int(pair[1]))
        return cls(offsets, padding)


@dataclass(frozen=True)
class WindowSpec:
    """The rows to read around each step drawn: ``frame_stack`` states of observations (``stack_keys``: of these paths
    alone; before the episode ``padding``: its first one, or zeros), an ``n_step`` return, or only ``key_windows``. ``edges``
    tell where episodes end.
    """

    frame_stack: int | None = None
    stack_keys: tuple[str, ...] | None = None
    padding: Pad = "repeat"
    n_step: NStep | None = None
    key_windows: KeyWindows | None = None
    edges: Edges = field(default_factory=Edges)

    @property
    def has_windows(self) -> bool:
        return self.frame_stack is not None or self.n_step is not None or self.key_windows is not None


_WINDOWS = 'for example windows={"observation": (-1, 0), "action": (0, 15)}'

#: Small leaves of this many batches are read together, as long as they stay within ``AHEAD_BYTES``.
AHEAD = 16
AHEAD_BYTES = 1 << 20

#: Observations that are laid out as plain TED are stacked when their path begins with one of these.
STACKED = ("observation", "pixels")


@dataclass
class StateRows:
    """The rows of the pieces of a draw in state leaves.

    ``row`` (int64 ``[n]``) is the first state of each piece; ``windows`` are the states to read for frame stacks. A piece is a
    whole slice (``sliced``) or a single step.
    """

    row: torch.Tensor
    windows: Windows | None
    sliced: bool

    def split(self, sizes: list[int]) -> list[StateRows]:
        """The rows of several joined draws as one object per draw; ``sizes``: the number of pieces of each."""
        windows = [None] * len(sizes) if self.windows is None else self.windows.split(sizes)
        rows = self.row.split_with_sizes(sizes)
        return [StateRows(*parts, self.sliced) for parts in zip(rows, windows)]


@dataclass
class Places:
    """Where steps lie in time, int64 ``[steps]`` each: ``position``, and ``episode``, which goes from ``low`` up to ``high``.

    ``last``: the steps whose successors are returned, where n-step returns look ahead.
    """

    timeline: Timeline
    position: torch.Tensor
    episode: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    last: torch.Tensor | None = None

    @classmethod
    def of(cls, timeline: Timeline, position: torch.Tensor) -> Places:
        episode = timeline.episode_of(position)
        return cls(timeline, position, episode, *timeline.extent_of(episode))

    def split(self, sizes: list[int]) -> list[Places]:
        """The places of several joined draws as one object per draw; ``sizes``: the number of steps of each."""
        parts = (self.position, self.episode, self.low, self.high, self.last)
        columns = ([None] * len(sizes) if part is None else part.split_with_sizes(sizes) for part in parts)
        return [Places(self.timeline, *pieces) for pieces in zip(*columns)]


@dataclass
class Prepared:
    """A batch that has been drawn and whose small leaves have been read, in ``columns`` by path, each ``[steps, ...]``.

    ``index``: storage rows; ``places``: their places in time, if windows need them. ``state_rows`` is set if there are state
    leaves, ``achieved`` if goals are replaced (`pipeline.Relabeling`). ``windows``: the rows ``[B, k + 1, *shape]`` by path
    that the stacks of a state leaf were cut from, at a step and its successor. ``reader``: a write may require a new one.
    ``before``: the state of the order before the draw, if kept (`pipeline.OrderState`). ``ran_out``: whether the batch ends a
    pass. ``transforms``: their state before they changed the batch, if that was made ahead.
    """

    draw: Draw
    index: torch.Tensor
    columns: dict[str, torch.Tensor]
    places: Places | None = None
    state_rows: StateRows | None = None
    achieved: Any = None
    windows: dict[str, torch.Tensor] = field(default_factory=dict)
    reader: Any = None
    before: Any = None
    ran_out: bool = False
    transforms: dict[str, Any] | None = None


class RecordReader:
    """Reads whole records, as the storage returns them, where they cannot be read leaf by leaf; in place of a `BatchReader`."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def ahead(self, batch_size: int) -> int:
        return 1

    def prepare(self, draws: Sequence[Draw]) -> list[Prepared]:
        return [Prepared(draw, draw.rows(), {}) for draw in draws]

    def complete(self, prepared: Prepared) -> Any:
        return self.storage.get(self.storage.coordinates(prepared.index))

    def put_info(self, batch: TensorDictBase, prepared: Prepared) -> None:
        tail = tuple(batch.batch_size[1:])
        check_replaces_none(prepared.draw, lambda name: isinstance(batch.get(name, None), torch.Tensor))
        batch.set("index", expand_to_records(rows_as_index(self.storage, prepared.index), tail))
        for name, value in prepared.draw.info.items():
            batch.set(name, expand_to_records(value, tail))
        for key, value in slice_flags(prepared.draw, lambda key: batch.get(entry_key(key), None), tail).items():
            batch.set(entry_key(key), value)


class BatchReader:
    """Reads batches leaf by leaf, from a storage with fields; ``with_info``: puts ``index``, weights, slice flags into them."""

    def __init__(self, storage: Storage, spec: WindowSpec, *, with_info: bool = True) -> None:
        fields = storage.fields()
        if fields is None:
            kind = type(storage).__name__
            message = f"n_step, frame_stack and windows are read leaf by leaf, and a {kind} holds whole records"
            hint = "tensor storages have leaves (contiguous, of one batch size)"
            raise UsageError(message, hint=hint)
        self.storage, self.stack, self.n_step, self._with_info = storage, spec.frame_stack, spec.n_step, with_info
        self._edges, self._windowed, self._key_windows = spec.edges, spec.has_windows, spec.key_windows
        self._padding = spec.padding
        self._fields = fields
        self._tail = storage.batch_tail
        # Stacks and windows have a dimension before those of nested TensorDicts, which then have the size of the batch.
        self._nested_sizes = () if spec.frame_stack or spec.key_windows else storage.nested_sizes
        if self._key_windows is not None:
            self._check_windows(self._key_windows)
            fields = {}  # nothing else is read
        states = [rows for rows in fields.values() if rows.leaf.kind == "state"]
        self._stacked = self._stacked_names(fields, spec.stack_keys) if self.stack else []
        stacked = {*self._stacked, *("next/" + name for name in self._stacked)}
        self._states = states
        names = {rows.leaf.name for rows in states}
        self._stacked_states = names if spec.stack_keys is None else names.intersection(spec.stack_keys)
        if self.stack and not stacked and not self._stacked_states:
            raise UsageError(f"{storage!r} has no observation to stack", hint="name the keys with stack_keys")
        if self.n_step is not None and "next/reward" not in fields:
            raise UsageError(f"{storage!r} has no next/reward to sum up")
        if self.n_step is not None:
            self.n_step.check_rewards(fields)
        added = ("next/original_reward", "steps_to_next_obs", "gamma") if self.n_step is not None else ()
        replaced = [name for name in added if name in fields]
        if replaced:
            what = storage.dataset.id if isinstance(storage, DatasetStorage) else f"the {type(storage).__name__}"
            message = f"{what} has {', '.join(replaced)}, which n_step would replace"
            hint = "leave out n_step where rewards are of several steps already; else rename these leaves, or use keys="
            raise UsageError(message, hint=hint)
        # An ``index`` that a writer stored is not read: the drawn rows are known already.
        special = {*stacked, *(["next/reward", *added] if self.n_step else []), *(["index"] if with_info else [])}
        steps = [rows for name, rows in fields.items() if rows.leaf.kind == "step" and name not in special]
        self._small = [rows for rows in steps if rows.leaf.row_bytes < LARGE_ROW]
        self._large = [rows for rows in steps if rows.leaf.row_bytes >= LARGE_ROW]
        extra = sum(fields[name].leaf.row_bytes for name in self._stacked) * (2 * (self.stack or 0))
        self._stack_early = bool(self._stacked) and extra < 4 * LARGE_ROW
        late = self._large or states or (self._stacked and not self._stack_early) or self._key_windows
        #: Whether the reads of each single batch need the places of its steps.
        self._places_late = bool(late)
        self.small_bytes = sum(rows.leaf.row_bytes for rows in self._small) + 8 + (extra if self._stack_early else 0)

    def _check_windows(self, windows: KeyWindows) -> None:
        """Raise UsageError for missing keys, and for records that are trajectories."""
        successors = [f"next/{name}" for name, rows in self._fields.items() if rows.leaf.kind == "state"]
        unknown = [key for key in windows.offsets if key not in self._fields and key not in successors]
        if unknown:
            message = f"unknown keys of windows: {', '.join(unknown)}"
            raise UsageError(message, hint=f"there are {', '.join(self._fields)}")
        if self._tail:
            raise UsageError("windows are of steps: the records of this storage are trajectories")

    @staticmethod
    def _stacked_names(fields: dict[str, Readable], keys: Sequence[str] | None) -> list[str]:
        """Root paths of the observations to stack that have their own leaf for the successor."""
        steps = [name for name, rows in fields.items() if rows.leaf.kind == "step" and "next/" + name in fields]
        steps = [name for name in steps if fields[name].leaf.shape == fields["next/" + name].leaf.shape]
        if keys is None:
            return [name for name in steps if name.partition("/")[0] in STACKED]
        unknown = [key for key in keys if key not in fields]
        if unknown:
            raise UsageError(f"unknown keys to stack: {', '.join(unknown)}", hint=f"there are {', '.join(fields)}")
        if any(key in FLAGS for key in keys):
            raise UsageError("flags cannot be stacked")
        without = [key for key in keys if fields[key].leaf.kind == "step" and key not in steps]
        if without:
            message = f"{without[0]} cannot be stacked: it has no next/{without[0]} of the same shape"
            raise UsageError(message, hint="stacks are of observations, which have a successor")
        return [name for name in steps if name in keys]

    def ahead(self, batch_size: int) -> int:
        """How many batches of this size are worth preparing together."""
        return max(1, min(AHEAD, AHEAD_BYTES // (batch_size * self.small_bytes)))

    # -- the small leaves of several batches -------------------------------------------------------------------------

    def prepare(self, draws: Sequence[Draw]) -> list[Prepared]:
        """Read the small leaves of several draws of one sampler at once."""
        together = self.prepare_joined(draws)
        return [together] if len(draws) == 1 else _split(draws, together)

    def prepare_joined(self, draws: Sequence[Draw]) -> Prepared:
        """As `prepare`, with the draws as one batch."""
        together = draws[0] if len(draws) == 1 else Draw.join(draws)
        drawn = together.indices()
        timeline = together.timeline
        index = drawn if timeline is None else timeline.rows(drawn)
        columns: dict[str, torch.Tensor] = {}
        places, shifted = None, index
        if self._windowed:
            if timeline is None:
                timeline = self.storage.timeline(self._edges)
                drawn = timeline.positions(drawn)
            places = Places.of(timeline, drawn)
            if self.n_step is not None:
                places.last = self._look_ahead(self.n_step, places, columns)
                shifted = timeline.rows(places.last)
        for rows in self._small:
            columns[rows.leaf.name] = self._step_rows(rows, together, index, shifted)
        if self._key_windows is not None:  # which need not name the flags that slices have
            flags = [name for name in map(path_of, flag_keys(together)) if name in self._fields]
            columns.update({name: self._fields[name].take(index).clone() for name in flags})
        if places is not None and self._stack_early:
            self._read_stacks(places, columns)
        if self._with_info:
            check_replaces_none(together, self._fields.__contains__)
            for key, value in together.info.items():
                name, value = path_of(key), expand_to_records(value, self._tail)
                window = columns.get(name) if shifted is not index else None
                columns[name] = value if window is None or window.dtype != torch.bool else _either(name, value, window)
            mark_slices(together, columns, self._tail)
        state_rows = self._state_rows(together, index, places) if self._states else None
        return Prepared(together, index, columns, places if self._places_late else None, state_rows)

    def _state_rows(self, draw: Draw, index: torch.Tensor, places: Places | None) -> StateRows:
        """The state row of step i in episode e is i + e, and an episode has one more of them."""
        sliced = draw.length > 1 and draw.lengths is None and self.n_step is None
        timeline = draw.timeline or self.storage.timeline(self._edges)
        if places is None or not self.stack:
            position = draw.start if sliced else timeline.positions(index)
            return StateRows(position + timeline.episode_of(position), None, sliced)
        at = Places.of(timeline, draw.start) if sliced else places
        row, low, high = (numbers + at.episode for numbers in (at.position, at.low, at.high + 1))
        extent = self.stack + (draw.length if sliced else self.n_step.steps if self.n_step else 1)
        first = row - (self.stack - 1)
        return StateRows(row, plan_windows(self._states[0].count, first, extent, low, high, self._padding), sliced)

    def _look_ahead(self, n_step: NStep, places: Places, columns: dict[str, torch.Tensor]) -> torch.Tensor:
        """Set the n-step reward and related leaves in ``columns``; returns the positions of the last steps looked at."""
        taken = n_step.ahead(places.position, places.high)
        rows = by_position(self._fields["next/reward"], places.timeline)
        rewards = read_window(rows, places.position, n_step.steps, places.low, places.high)
        columns["next/reward"] = n_step.total(rewards)
        columns["next/original_reward"] = rewards[:, 0].clone()
        columns["steps_to_next_obs"], columns["gamma"] = taken, n_step.discount(taken)
        return places.position + taken - 1

    def _step_rows(self, rows: Readable, draw: Draw, index: torch.Tensor, shifted: torch.Tensor) -> torch.Tensor:
        """The rows of a step leaf, ``[steps, *shape]``."""
        if shifted is not index and (rows.leaf.name.startswith("next/") or getattr(rows, "follows_action", False)):
            return rows.take(shifted)
        if draw.length > 1 and draw.lengths is None and draw.timeline is not None and draw.timeline.identity:
            return rows.windows(draw.start, draw.length).flatten(0, 1)
        return rows.take(index)

    # -- the large leaves of one batch -------------------------------------------------------------------------------

    def complete(self, prepared: Prepared) -> TensorDict:
        """Read the large leaves, and make the batch: flat TED ``[steps]`` with ``index``."""
        batch = nest(self.columns(prepared), (len(prepared.index), *self._tail), self.storage.device)
        set_nested_sizes(batch, self._nested_sizes, (len(prepared.index),))
        return batch

    def columns(self, prepared: Prepared) -> dict[str, torch.Tensor]:
        """All leaves of the batch by path, ``[steps, ...]``; the large ones are read now."""
        draw, index, places, columns = prepared.draw, prepared.index, prepared.places, dict(prepared.columns)
        if self._large:
            ahead = None if places is None else places.last
            shifted = index if places is None or ahead is None else places.timeline.rows(ahead)
            for rows in self._large:
                columns[rows.leaf.name] = self._step_rows(rows, draw, index, shifted)
        for rows in self._states:
            name = rows.leaf.name
            # A row of fixed size costs one copy per use; other rows are decoded.
            decoded = draw.overlapping and not load_codec(rows.leaf.codec).fixed_rows
            read = DistinctRows(rows) if decoded else rows
            columns[name], columns["next/" + name] = self._read_states(read, prepared)
        if places is not None and self._stacked and not self._stack_early:
            self._read_stacks(places, columns)
        if places is not None and self._key_windows is not None:
            self._read_key_windows(self._key_windows, places, columns)
        if self._with_info:
            columns["index"] = expand_to_records(index, self._tail)
        device = self.storage.device
        if device is not None and device.type != "cpu":  # the sampler's information is on the CPU
            columns = {name: column.to(device) for name, column in columns.items()}
        return columns

    def put_info(self, batch: TensorDictBase, prepared: Prepared) -> None:
        """Put the sampler's information into a batch, except entries that were set when it was read."""
        if self.storage.ndim > 1:
            index = rows_as_index(self.storage, prepared.index)
            batch.set("index", expand_to_records(index, tuple(batch.batch_size[1:])))

    def _read_states(self, rows: Readable, prepared: Prepared) -> tuple[torch.Tensor, torch.Tensor]:
        """A state leaf at the steps drawn, and its successors."""
        draw, places, state_rows = prepared.draw, prepared.places, prepared.state_rows
        assert state_rows is not None
        ahead = None if places is None or places.last is None else places.last - places.position
        if self.stack and rows.leaf.name in self._stacked_states:
            if state_rows.sliced:
                return self._slices_of_stacks(rows, state_rows)
            if ahead is not None:
                return self._stacks_apart(rows, state_rows, ahead)
            assert state_rows.windows is not None
            cut = prepared.windows[rows.leaf.name] = read_windows(rows, state_rows.windows)
            return _lazy_copy(cut)[:, :-1], cut[:, 1:]
        if ahead is not None:
            # Interleave rows and successors: if rows are decoded, one call decodes both.
            here, after = rows.take(torch.cat([state_rows.row, state_rows.row + ahead + 1])).chunk(2)
            return here, after
        if not state_rows.sliced:
            pair = rows.windows(state_rows.row, 2)
            return pair[:, 0], pair[:, 1]
        if load_codec(rows.leaf.codec).fixed_rows:
            here, after = (rows.windows(first, draw.length) for first in (state_rows.row, state_rows.row + 1))
            return here.flatten(0, 1), after.flatten(0, 1)
        # Decoding costs more than copying: each row is decoded once, then both views of the rows are flattened, which copies
        # (except for a single slice, hence the first case); by NumPy, for the reason given in `row_index.lookup`.
        read, shape = rows.windows(state_rows.row, draw.length + 1).numpy(), (len(prepared.index), *rows.leaf.shape)
        return torch.from_numpy(read[:, :-1].copy().reshape(shape)), torch.from_numpy(read[:, 1:].reshape(shape))

    def _stacks_apart(
        self, rows: Readable, state_rows: StateRows, ahead: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stacks of a state leaf and of its successors, which lie ``ahead``, ``[B, k, *shape]`` each, from k + n rows."""
        assert self.stack and state_rows.windows is not None
        read = read_windows(rows, state_rows.windows)
        after = (ahead + 1)[:, None] + torch.arange(self.stack, device="cpu")
        return read[:, : self.stack], read[torch.arange(len(read), device="cpu")[:, None], after]

    def _slices_of_stacks(self, rows: Readable, state_rows: StateRows) -> tuple[torch.Tensor, torch.Tensor]:
        """Stacks at every step of slices; each row is read once, ``L + k`` rows for a slice of L."""
        assert self.stack and state_rows.windows is not None
        read = read_windows(rows, state_rows.windows)
        stacks = read.unfold(1, self.stack, 1).movedim(-1, 2)  # [n, L + 1, k, *shape]
        return _copy(stacks[:, :-1]).flatten(0, 1), _copy(stacks[:, 1:]).flatten(0, 1)

    def _read_stacks(self, places: Places, columns: dict[str, torch.Tensor]) -> None:
        """Stacks of observations laid out as plain TED, with separate leaves for root and successor.

        The stack of a successor is the stack of its step without the oldest observation, followed by the successor:

            stack of 3 at step 4        o2 o3 o4
            after it                       o3 o4 n4
        """
        assert self.stack
        k, position, last, low, high = self.stack, places.position, places.last, places.low, places.high
        for name in self._stacked:
            rows = by_position(self._fields[name], places.timeline)
            after = by_position(self._fields["next/" + name], places.timeline)
            stack = read_window(rows, position - (k - 1), k, low, high, self._padding)
            columns[name] = stack
            before = stack[:, 1:]
            if last is not None:
                before = read_window(rows, last - (k - 2), k - 1, low, high, self._padding) if k > 1 else stack[:, :0]
            columns["next/" + name] = _append(before, after.take(position if last is None else last))

    def _read_key_windows(self, windows: KeyWindows, places: Places, columns: dict[str, torch.Tensor]) -> None:
        """The windows of each key ``[B, length, *shape]``, and which rows belong to the episode (``mask/KEY``, bool)."""
        timeline, episode = places.timeline, places.episode
        for key, (first, last) in windows.offsets.items():
            rows, successors, low, high, at = self._fields.get(key), None, places.low, places.high, places.position
            if rows is None:  # the successor of a state is the next state
                rows = self._fields[key.removeprefix("next/")]
                low, first, last = low + 1, first + 1, last + 1
            if rows.leaf.kind == "state":
                low, high, at = low + episode, high + episode + 1, at + episode
            elif self._is_state(rows):
                successors = by_position(self._fields[f"next/{key}"], timeline)
            rows = rows if rows.leaf.kind == "state" else by_position(rows, timeline)
            wanted = at[:, None] + torch.arange(first, last + 1, device="cpu")
            high = high if successors is None else high + 1
            within = torch.minimum(torch.maximum(wanted, low[:, None]), high[:, None] - 1)
            mask = wanted == within
            columns[key] = self._gather(rows, successors, within, high)
            if windows.padding == "zero":
                as_words(columns[key].flatten(0, 1))[~mask.flatten()] = 0
            columns[f"mask/{key}"] = mask

    def _is_state(self, rows: Readable) -> bool:
        """Whether the successors of a leaf are the same quantity a step later, whatever the leaf is called."""
        name, last = rows.leaf.name, rows.leaf.name.rpartition("/")[2]
        after = self._fields.get(f"next/{name}")
        if after is None or last in (*FLAGS, "action"):  # nothing is done after the last action
            return False
        return (rows.leaf.shape, rows.leaf.dtype) == (after.leaf.shape, after.leaf.dtype)

    @staticmethod
    def _gather(rows: Any, successors: Any, within: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """Rows by position, each read once; with ``successors``, the last state is the successor of the last step."""
        flat = within.reshape(-1)
        if successors is None:
            found = rows.take(flat)
        else:
            is_final = (within == high[:, None] - 1).reshape(-1)
            found = rows.take(flat - is_final.long())
            as_words(found)[is_final] = as_words(successors.take(flat[is_final] - 1))
        return found.view(*within.shape, *rows.leaf.shape)


def _either(name: str, drawn: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
    """A sampler's flag of the steps drawn (one a step, or as ``window``), or that of their windows. Raises SamplingError."""
    if drawn.numel() == len(drawn):
        drawn = drawn.reshape(len(drawn), *[1] * (window.ndim - 1))
    elif drawn.shape != window.shape:
        message = f"the sampler's info {name} has shape {list(drawn.shape)}, and the stored flag {list(window.shape)}"
        raise SamplingError(message, hint="give one flag for each step, [N] or [N, 1]")
    return drawn.bool() | window


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


def _split(draws: Sequence[Draw], together: Prepared) -> list[Prepared]:
    """The batches that were read together, one by one."""
    sizes = [draw.steps for draw in draws]
    # `split` would go through Python in torch: this is done for every leaf of small batches.
    pieces = zip(*(column.split_with_sizes(sizes) for column in (together.index, *together.columns.values())))
    places: Sequence[Places | None] = [None] * len(draws) if together.places is None else together.places.split(sizes)
    state_rows: Sequence[StateRows | None] = [None] * len(draws)
    if together.state_rows is not None:
        starts = [len(draw.start) for draw in draws]
        state_rows = together.state_rows.split(starts if together.state_rows.sliced else sizes)
    return [
        Prepared(draw, index, dict(zip(together.columns, columns)), place, states)
        for draw, (index, *columns), place, states in zip(draws, pieces, places, state_rows)
    ]
