"""How a batch comes about: drawn, read, finished.

    draw       the sampler's next steps, of several batches at once        `Batches._draw`, under the buffer's lock
    read       small leaves of these batches together, large ones alone    `columns.Reader`
    finish     collation, transforms, pinned memory, device                `Batches.finish`, without the lock

A batch is a function of the seed, its number and the contents (`order`), so what is drawn and read ahead is a cache: it is
used as long as the contents, the priorities and the sampler's attributes are those it was made of. That is done only where
``sample`` and ``get`` are the built-in ones; a class of your own that defines them is called once a batch, in order.

With ``prefetch`` n batches are drawn when one is taken, and read and finished in threads (`prefetch`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase, is_tensor_collection
from tensordict.utils import expand_as_right

from .around import Around
from .chain import Transforms
from .columns import At
from .draw import Draw, flags_of, mask_error
from .order import Order, Place, drawing_for
from .reading import Reader
from .samplers.sampler import Sampler, checked, draws_ahead
from .storages.storage import Storage, reads_by_get
from .storages.trees import tree_copied
from .timeline import entry_at, entry_key, path_of


@dataclass(frozen=True)
class Options:
    """What batches are made of and how they are finished: see `ReplayBuffer`.

    ``with_info`` puts the sampler's information into the batch; ``goals`` relabels it (`goals.Relabeling`).
    """

    around: Around = Around()  # noqa: RUF009
    with_info: bool = False
    collate: Callable[[Any], Any] | None = None
    prefetch: int = 0
    device: torch.device | None = None
    pin_memory: bool = False
    goals: Any = None


class Drawn:
    """A batch that was drawn: ``part`` of a draw, whose steps lie ``at``; its small leaves are in ``columns``, by path."""

    __slots__ = ("at", "columns", "draw", "part", "place")

    def __init__(
        self, draw: Draw, part: int, at: At | None = None, columns: dict[str, torch.Tensor] | None = None
    ) -> None:
        self.draw, self.part, self.place, self.at, self.columns = draw, part, draw.places[part], at, columns

    def alone(self) -> Draw:
        """The draw of this batch."""
        return self.draw if len(self.draw.sizes) == 1 else self.draw.one(self.part)


class Batches:
    """The batches of one sampler over one storage, in order."""

    def __init__(
        self, storage: Storage, sampler: Sampler, order: Order, transforms: Transforms, options: Options
    ) -> None:
        self.storage, self.sampler, self.order, self.transforms, self.options = (
            storage,
            sampler,
            order,
            transforms,
            options,
        )
        self._ahead: deque[Drawn] = deque()
        self._made_of: Any = None  # the size and the versions that `_ahead` was drawn with
        self._count = 1  # batches to draw at once; grows while they are used
        self._reader: Reader | None = None
        self._queue: Any = None
        if options.prefetch:
            from .prefetch import Prefetcher

            self._queue = Prefetcher(options.prefetch)

    def next(self, size: int, ahead: bool) -> tuple[Callable[[], Any], Drawn]:
        """Draw and read the next batch of this size, under the buffer's lock; returns what finishes it without the lock.

        ``ahead``: further batches may be prefetched.
        """
        if ahead and self._queue is not None and draws_ahead(self.sampler) and not self.reads_by_user:
            return self._queue.next(self, size)
        self.forget_queue()
        drawn = self.draw(size, self.order.place)
        rows = self.read(drawn)
        self.order.place = drawn.place
        return partial(self.finish, drawn, rows), drawn

    # -- draw --------------------------------------------------------------------------------------------------------

    def draw(self, size: int, place: Place) -> Drawn:
        """The batch that follows a place in the order."""
        if not draws_ahead(self.sampler):
            return self._draw_by_user(size, place)
        made_of = size, place.number, self.storage.version, self.sampler.version
        if not self._ahead or self._made_of != made_of:
            self._ahead.clear()
            self._draw(size, place, made_of)
        drawn = self._ahead.popleft()
        self._made_of = size, drawn.place.number, *self._made_of[2:]
        return drawn

    def _draw(self, size: int, place: Place, made_of: Any) -> None:
        """Draw some batches, and read their small leaves."""
        used = self._made_of is not None and made_of[2:] == self._made_of[2:]
        self._count = 2 * self._count if used else 1
        reader = self.reader()
        if reader is not None:
            self._count = min(self._count, reader.ahead(size))
            turn = self.order.at(place).turn(self._count)
            draw = self.sampler.draw(self.storage, size, turn)
            begun = reader.begin(draw, turn)
            self._ahead.extend(Drawn(draw, part, *one) for part, one in enumerate(begun))
        else:
            draw = self.sampler.draw(self.storage, size, self.order.at(place).turn())
            self._ahead.append(Drawn(draw, 0))
        self._made_of = made_of

    def _draw_by_user(self, size: int, place: Place) -> Drawn:
        """One batch by a ``sample`` of the user's: the order counts it, and gives it a generator."""
        sampler, storage, order, delivered = self.sampler, self.storage, self.order, self.order.place
        order.place = place
        try:
            turn = order.turn()
            sampler._rng = turn.generator()
            rows, info = checked(sampler.sample(storage, size), sampler, storage)
            after = turn.places[0] if order.place == place else order.place  # a built-in one was called
            after = after._replace(ended=bool(sampler.ran_out))
        finally:
            order.place = delivered
        draw = Draw(rows, [len(rows)], [after], info)
        reader = self.reader()
        return Drawn(draw, 0) if reader is None else Drawn(draw, 0, *reader.begin(draw, turn)[0])

    def reader(self) -> Reader | None:
        """The reader by leaves, made again when the storage has other leaves; None where whole records are read."""
        storage, options = self.storage, self.options
        leaves = storage.leaves()
        by_leaf = leaves is not None and not reads_by_get(storage) and (options.collate is None or storage.immutable)
        if not by_leaf and not options.around.names:
            return None
        if self._reader is None or self._reader.leaves is not leaves:
            self._reader = Reader(storage, options.around, with_info=options.with_info, goals=options.goals)
        return self._reader

    def at(self, rows: torch.Tensor) -> Any:
        """The batch of these rows, int64 ``[n]``, without a draw."""
        drawn = Drawn(Draw(rows, [len(rows)], [self.order.place]), 0)
        reader = self.reader()
        if reader is not None:
            drawn.at, drawn.columns = reader.begin(drawn.draw, None)[0]
        return self.finish(drawn, self.read(drawn))

    @property
    def reads_by_user(self) -> bool:
        """Whether records are read by a ``get`` of the user's."""
        return reads_by_get(self.storage)

    # -- read --------------------------------------------------------------------------------------------------------

    def read(self, drawn: Drawn) -> Any:
        """Copy the rows out of the storage, which must not be written meanwhile."""
        if drawn.at is not None and drawn.columns is not None:
            assert self._reader is not None
            return self._reader.finish(drawn.at, drawn.columns)
        return self.storage.get(self.storage.coordinates(drawn.alone().rows))

    # -- finish ------------------------------------------------------------------------------------------------------

    def finish(self, drawn: Drawn, batch: Any, *, ahead: bool = False) -> Any:
        """Make a batch of the rows that were read; ``ahead``: it waits for delivery, while user functions make others."""
        options = self.options
        if options.collate is not None:
            batch = options.collate(batch)
        elif self.storage.is_list:
            batch = stack_records(batch)
        if isinstance(batch, LazyStackedTensorDict):
            batch = batch.copy()  # otherwise writes to it would reach the records
        if drawn.columns is None and options.with_info and isinstance(batch, TensorDictBase):
            batch = self._with_info(drawn, batch)
        if options.goals is not None:
            batch = options.goals.relabel(batch)
        if len(self.transforms):
            batch = self._transformed(drawn, batch)
        if ahead and (len(self.transforms) or options.collate is not None):
            batch = tree_copied(batch)
        if options.pin_memory or options.device is not None:
            from .devices import to_device

            batch = to_device(batch, options.device, options.pin_memory, ahead=ahead)
        return batch

    def _transformed(self, drawn: Drawn, batch: Any) -> Any:
        """The result of the transforms, with the sampler's information as it was."""
        held: dict[Any, Any] = {}
        if self.options.with_info and isinstance(batch, TensorDictBase):
            keys = ["index", *map(entry_key, drawn.draw.info)]
            held = {key: value.clone() for key in keys if (value := batch.get(key, None)) is not None}
        size = getattr(batch, "batch_size", None)
        with drawing_for(self.order, drawn.place.number - self.order.stride):
            batch = self.transforms(batch)
        if isinstance(batch, TensorDictBase) and batch.batch_size == size:
            batch = batch.copy() if batch.is_locked and held else batch
            for key, value in held.items():
                batch.set(key, value)
        return batch

    def _with_info(self, drawn: Drawn, batch: TensorDictBase) -> TensorDictBase:
        """A batch of whole records with the sampler's information."""
        draw = drawn.alone()
        if draw.slices is not None and draw.slices.padded and isinstance(batch.get("collector", None), torch.Tensor):
            raise mask_error()
        info = self.info(drawn, lambda key: entry_at(batch, key))
        info["index"] = self.storage.index_of(drawn.alone().rows)
        batch = batch.copy() if batch.is_locked else batch
        for key, value in info.items():
            value = value if batch.device is None else value.to(batch.device)
            batch.set(key, expand_as_right(value, batch) if value.ndim < batch.ndim else value)
        return batch

    def info(
        self, drawn: Drawn, column: Callable[[tuple[str, ...]], torch.Tensor | None] | None = None
    ) -> dict[Any, Any]:
        """The info on a batch: its index, the sampler's values, the flags of slices."""
        draw, columns = drawn.alone(), drawn.columns or {}
        info: dict[Any, Any] = {"index": self.storage.coordinates(draw.rows.clone())}
        info |= {entry_key(key): value.clone() for key, value in draw.info.items()}
        if draw.slices is not None:

            def stored(key: tuple[str, ...]) -> torch.Tensor | None:
                found = columns.get(path_of(key)) if column is None else column(key)
                return self.storage.leaf_at(key, draw.rows) if found is None else found.clone()

            info |= {
                entry_key(key): flag for key, flag in flags_of(draw.slices, stored, self.storage.batch_tail).items()
            }
        return info

    # -- ahead -------------------------------------------------------------------------------------------------------

    def forget_queue(self) -> None:
        """Drop what was prefetched: it is drawn again where it is needed."""
        if self._queue is not None:
            self._queue.forget()

    @property
    def queued(self) -> int:
        """The number of batches that wait to be delivered."""
        return 0 if self._queue is None else len(self._queue)

    def wait_for_reads(self) -> None:
        """Before a write: let the threads finish their reads."""
        if self._queue is not None:
            self._queue.wait_for_reads()

    def close(self) -> None:
        """Drop what was made ahead, and stop the threads."""
        self._ahead.clear()
        if self._queue is not None:
            self._queue.close()


def stack_records(records: Any) -> Any:
    """The default collation: a list of TensorDicts, tensors, numbers, or trees of these as one batch."""
    if not isinstance(records, list) or not records:
        return records
    first = records[0]
    if isinstance(first, torch.Tensor) or is_tensor_collection(first):
        try:
            return torch.stack(records)
        except (RuntimeError, TypeError):
            if is_tensor_collection(first):  # records of unlike shapes
                return LazyStackedTensorDict.maybe_dense_stack(records)
            raise
    if isinstance(first, (int, float, bool)):
        return torch.tensor(records, device="cpu")
    if isinstance(first, dict):
        return {key: stack_records([record[key] for record in records]) for key in first}
    if isinstance(first, (tuple, list)):
        return type(first)(stack_records(list(parts)) for parts in zip(*records))
    return records
