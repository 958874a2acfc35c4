"""Sample units: the records to read for each drawn record, itself or a window around it.

A sampler draws *anchors*; a unit expands each into the records of the batch, in the order of time of the storage
(`timeline`). `Sequence(length=3, burn_in=2, bootstrap=1)` at the anchor a:

    record             a-2  a-1   a   a+1  a+2  a+3
    learning_mask       F    F    T    T    T    F        burn-in before, context for targets after
    validity_mask       F    T    T    T    T    T        a-2 lies before the episode: its first record stands there

Units only choose rows, so they work with every storage, with priorities, frame stacks and n-step returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as ListLike
from typing import Any, Literal

import numpy as np
import torch
from tensordict import TensorDictBase

from ....errors import ArgumentTypeError, SamplingError, UsageError
from ...keywords import whole_number
from ..draw import Draw
from ..samplers.sampler import rows_of
from ..storages.storage import Storage, require_records, rows_as_index
from ..timeline import DONE, Edges, Timeline, as_key
from ..writers import reduce

Boundary = Literal["pad", "stop", "include_reset"]
Index = torch.Tensor | tuple[torch.Tensor, ...]


class SampleUnit(ABC):
    """Base of all units. A derived class defines `expand`, which must depend only on its arguments."""

    @abstractmethod
    def expand(self, index: Index, info: dict[str, Any], storage: Storage) -> tuple[Index, dict[str, Any]]:
        """The records to read for the drawn anchors, and their info.

        ``index`` holds storage rows: int64 ``[B]``, or a tuple of one such tensor for each dimension of the storage.
        ``info`` is the sampler's information about the anchors (importance weights, ``[B]``). Returns ``index`` and ``info`` of
        the N records to read; tensors ``[N, ...]`` of the info are put into the batches of a `TensorDictReplayBuffer`,
        everything else is only in the info.
        """

    def _anchor_priorities(
        self, data: TensorDictBase, priority: torch.Tensor, storage: Storage, reduction: str
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The anchors of a batch and their priorities, if priorities of its records belong to anchors; otherwise None."""
        return None


class Transition(SampleUnit):
    """The anchors themselves, as without a unit."""

    def expand(self, index: Index, info: dict[str, Any], storage: Storage) -> tuple[Index, dict[str, Any]]:
        return index, info


class Sequence(SampleUnit):
    """A window of ``burn_in + length + bootstrap`` records around each anchor, ``dilation`` records apart.

    The anchor is the first of the ``length`` records to learn from. A batch of B anchors has B windows one after the
    other, flat. Leaves of each record:

    - ``learning_mask``: bool, whether it is one of the ``length``;
    - ``validity_mask``: bool, False for padding, which repeats the record at the edge of the episode;
    - ``sequence_id`` and ``step_in_sequence``: int64, its window in the batch, and its place in the window;
    - ``anchor_index``: int64, the row of the anchor (``[N, ndim]`` for storages of more dimensions). Priorities belong to
      anchors: `TensorDictReplayBuffer.update_tensordict_priority` gives each the largest of its valid records.

    ``episode_boundary`` is about windows that reach beyond the end of the anchor's episode: "pad" repeats its last record;
    "stop" moves the window back until it ends with the episode, but not beyond the episode's beginning, and pads the rest;
    "include_reset" continues with the next episode, and burn-in with the one before. Otherwise burn-in before the episode
    repeats its first record; it never moves a window. Windows never cross from the newest record of a storage to its oldest.

    ``done_key`` marks the ends of episodes; with None all stored records count as one episode. Over a dataset the usual key
    means its episode table. Raises UsageError for invalid lengths.
    """

    def __init__(
        self,
        length: int,
        episode_boundary: Boundary = "pad",
        done_key: str | ListLike[str] | None = DONE,
        burn_in: int = 0,
        bootstrap: int = 0,
        dilation: int = 1,
    ) -> None:
        self.length, self.dilation = whole_number("length", length, 1), whole_number("dilation", dilation, 1)
        self.burn_in, self.bootstrap = whole_number("burn_in", burn_in, 0), whole_number("bootstrap", bootstrap, 0)
        if episode_boundary not in ("pad", "stop", "include_reset"):
            raise UsageError(f"episode_boundary is {episode_boundary!r}, not 'pad', 'stop' or 'include_reset'")
        self.episode_boundary = episode_boundary
        self.done_key = None if done_key is None else as_key(done_key)
        self._edges = Edges(end_keys=() if self.done_key is None else (self.done_key,))

    @property
    def records(self) -> int:
        """Records of each window."""
        return self.burn_in + self.length + self.bootstrap

    def expand(self, index: Index, info: dict[str, Any], storage: Storage) -> tuple[Index, dict[str, Any]]:
        """See `SampleUnit.expand`. Raises UsageError if the storage does not state where episodes end."""
        anchor = torch.stack(index, -1) if isinstance(index, tuple) else index
        if not isinstance(anchor, torch.Tensor):
            anchor = torch.as_tensor(anchor, device="cpu")
        rows, expanded = self._windows(storage.flat(anchor), info, storage)
        on_device = {key: value.to(anchor.device) for key, value in expanded.items() if isinstance(value, torch.Tensor)}
        there = storage.coordinates(rows)
        if isinstance(there, tuple):
            return tuple(part.to(anchor.device) for part in there), expanded | on_device
        return there.to(anchor.device), expanded | on_device

    def _windows(
        self, anchors: torch.Tensor, info: dict[str, Any], storage: Storage
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """As `expand`, with flat rows (int64 ``[B]``, ``[N]``) in main memory."""
        if len(anchors) and not 0 <= int(anchors.min()) <= int(anchors.max()) < len(storage):
            raise SamplingError(f"an anchor is outside the {len(storage)} records there are")
        timeline = self._timeline(storage)
        position = timeline.positions(anchors)
        first, after = timeline.extent_of(timeline.episode_of(position))
        last = after - 1
        if self.episode_boundary == "stop":
            beyond = position + self.dilation * (self.length + self.bootstrap - 1) - last
            position = torch.maximum(position - beyond.clamp(min=0), first)
        step = torch.arange(self.records, device="cpu")
        wanted = position[:, None] + (step - self.burn_in) * self.dilation
        found = wanted.clamp(first[:, None], last[:, None])
        learning = (step >= self.burn_in) & (step < self.burn_in + self.length)
        expanded = {name: self._repeat(value) for name, value in info.items()}
        expanded |= {
            "sequence_id": self._repeat(torch.arange(len(anchors), device="cpu")),
            "step_in_sequence": step.repeat(len(anchors)),
            "learning_mask": learning.repeat(len(anchors)),
            "validity_mask": (wanted == found).reshape(-1),
            "anchor_index": self._repeat(rows_as_index(storage, anchors)),
        }
        return timeline.rows(found.reshape(-1)), expanded

    def _anchor_priorities(
        self, data: TensorDictBase, priority: torch.Tensor, storage: Storage, reduction: str
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The anchors in a batch of windows, ascending, and for each the largest priority of its valid records.

        Anchors are int64 ``[A]`` (``[A, ndim]`` for storages of more dimensions). None where the batch has no anchors.
        """
        anchor, count = data.get("anchor_index", None), data.numel()
        if anchor is None or not count or priority.numel() % count:
            return None
        rows = storage.flat(anchor.reshape(count, -1)[:, : storage.ndim])
        values = reduce(priority.detach().reshape(count, -1), reduction).cpu()
        valid = data.get("validity_mask", None)
        if valid is not None:
            valid = valid.reshape(count, -1)[:, 0].cpu()
            rows, values = rows[valid], values[valid]
        anchors, place = torch.unique(rows, return_inverse=True)
        largest = torch.zeros(len(anchors), dtype=values.dtype, device="cpu")
        largest = largest.scatter_reduce(0, place, values, "amax", include_self=False)
        return rows_as_index(storage, anchors), largest

    def _repeat(self, value: Any) -> Any:
        """Repeat a value of each anchor for all its records; other values stay unchanged."""
        values = torch.as_tensor(value, device="cpu") if not isinstance(value, str) else None
        if values is None or not values.ndim:
            return value
        # `repeat_interleave` would start threads for any size, see `row_index.lookup`.
        return values.unsqueeze(1).expand(-1, self.records, *values.shape[1:]).flatten(0, 1)

    def _timeline(self, storage: Storage) -> Timeline:
        if self.done_key is not None and self.episode_boundary != "include_reset":
            return storage.timeline(self._edges)
        require_records(storage)
        storage._require_order()
        starts = torch.arange(storage.width + 1, device="cpu") * storage.filled
        return Timeline(starts, storage.filled, storage.width, storage.oldest)

    def __repr__(self) -> str:
        names = ("length", "episode_boundary", "done_key", "burn_in", "bootstrap", "dilation")
        return f"Sequence({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def check_unit(unit: Any) -> SampleUnit | None:
    """The unit to apply, None if it would change nothing. Raises ArgumentTypeError for anything else."""
    if unit is not None and not isinstance(unit, SampleUnit):
        message = f"sample_unit must be a SampleUnit, not a {type(unit).__module__}.{type(unit).__qualname__}"
        raise ArgumentTypeError(message, hint="rbdata.Sequence and rbdata.Transition are units")
    return None if type(unit) is Transition else unit


def expand_draws(unit: SampleUnit, draws: ListLike[Draw], storage: Storage) -> list[Draw]:
    """Draws expanded by a unit. Raises UsageError for slices, SamplingError for rows that do not exist."""
    for draw in draws:
        if draw.marks is not None or draw.length > 1:
            message = f"a {type(unit).__name__} expands single records, and the sampler draws slices"
            raise UsageError(message, hint="leave out slices, or the sample_unit")
    if type(unit) is not Sequence:
        return [_expand(unit, draw, storage) for draw in draws]
    # Windows of small batches are a few dozen numbers: calls dominate the cost, so all draws are expanded in one call.
    together = draws[0] if len(draws) == 1 else Draw.join(draws)
    expanded = _to_draw(*unit._windows(together.rows(), together.info, storage))
    if len(draws) == 1:
        return [expanded]
    windows = torch.tensor([len(draw.start) for draw in draws], device="cpu")
    sizes = (windows * unit.records).tolist()
    expanded.info["sequence_id"] -= torch.from_numpy(np.repeat((windows.cumsum(0) - windows).numpy(), sizes))
    pieces = zip(*(value.split_with_sizes(sizes) for value in expanded.info.values()))
    return [
        Draw(start, info=dict(zip(expanded.info, piece)), notes=dict(expanded.notes), overlapping=True)
        for start, piece in zip(expanded.start.split_with_sizes(sizes), pieces)
    ]


def _expand(unit: SampleUnit, draw: Draw, storage: Storage) -> Draw:
    index, info = unit.expand(storage.coordinates(draw.rows()), dict(draw.info), storage)
    rows = rows_of(index, storage, f"the index that {type(unit).__name__}.expand returned")
    expanded = _to_draw(rows, info)
    expanded.info = {name: value.clone() for name, value in expanded.info.items()}  # a unit may reuse its memory
    return expanded


def _to_draw(rows: torch.Tensor, info: dict[str, Any]) -> Draw:
    """A draw of single rows; info that has no value for each row becomes notes."""
    draw = Draw(rows, overlapping=True)
    for name, value in info.items():
        is_each = isinstance(value, torch.Tensor) and value.shape[:1] == rows.shape
        if name != "index":
            (draw.info if is_each else draw.notes)[name] = value
    return draw
