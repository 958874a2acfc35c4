"""How a batch comes about: drawn, read, finished.

    draw       the sampler's next steps, of several batches at once        `Batches.draw`, under the buffer's lock
    read       small leaves of these batches together, large ones alone    `BatchReader`, by `columns`
    finish     collation, transforms, pinned memory, device, form          `Batches.finish`, without the lock

A batch is a function of the seed, its number and the contents (`order`), so what is drawn and read ahead is a cache: it is
used as long as the contents, the priorities and the sampler's attributes are those it was made of. That is done only where
``sample`` and ``get`` are the built-in ones; a class of your own that defines them is called once a batch, in order.

With ``prefetch`` n batches are drawn when one is taken, and read and finished in threads (`prefetch`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, repeat
from typing import Any, NamedTuple

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_tensor_collection
from tensordict.utils import expand_as_right

from ...errors import UsageError
from ..window import nest, nest_dictionary
from .around import Around
from .chain import Transforms
from .columns import At, BatchColumn, step_columns
from .draw import Draw, flags_of, mask_error, over_tail
from .order import Order, OrderPlace, Turn, drawing_for
from .output import Output
from .samplers.sampler import Sampler, checked, draws_ahead
from .storages.storage import Storage, reads_by_get
from .storages.trees import tree_copied
from .timeline import entry_at, entry_key, path_of

#: Small leaves of this many batches are read together, as long as they stay within ``AHEAD_BYTES``.
AHEAD = 16
AHEAD_BYTES = 1 << 20
#: Columns that take fewer bytes for a step are small.
SMALL = 4096


@dataclass(frozen=True)
class Options:
    """What batches are made of and how they are finished: see `ReplayBuffer`.

    ``with_info`` puts the sampler's information into the batch; ``goals`` relabels it (`goals.Relabeling`); ``output`` is the
    form in which it is handed over (None: as it is).
    """

    around: Around = Around()  # noqa: RUF009
    with_info: bool = False
    collate: Callable[[Any], Any] | None = None
    prefetch: int = 0
    device: torch.device | None = None
    pin_memory: bool = False
    goals: Any = None
    output: Output | None = None


class Drawn(NamedTuple):
    """A batch that was drawn: ``part`` of a draw, of ``size`` steps, which lie ``at``; ``place``: in the order, after it.

    ``columns``: its small leaves by path; None where records are read whole. ``made``: these in the form of ``output``, if they
    were given it together with those of other batches.
    """

    place: OrderPlace
    draw: Draw
    part: int
    size: int
    at: At | None = None
    columns: dict[str, torch.Tensor] | None = None
    made: dict[str, Any] | None = None

    def alone(self) -> Draw:
        """Return the draw of this batch."""
        return self.draw if len(self.draw.sizes) == 1 else self.draw.one(self.part)


class Batches:
    """The batches of one sampler over one storage, in order."""

    def __init__(
        self, storage: Storage, sampler: Sampler, order: Order, transforms: Transforms, options: Options
    ) -> None:
        self.storage, self.sampler, self.order, self.transforms = storage, sampler, order, transforms
        self.options = options
        self._ahead: deque[Drawn] = deque()
        self._made_of: Any = None  # the size, the number and the versions that the next of `_ahead` was drawn with
        self._count = 1  # batches to draw at once; grows while they are used
        self._reader: BatchReader | None = None
        self._queue: Any = None
        if options.prefetch:
            from .prefetch import Prefetcher

            self._queue = Prefetcher(options.prefetch)

    def next(self, size: int, ahead: bool) -> tuple[Callable[[], Any], Drawn]:
        """Draw and read the next batch of this size, under the buffer's lock; returns what finishes it without the lock.

        ``ahead``: further batches may be prefetched.
        """
        if self._queue is not None:
            if ahead and draws_ahead(self.sampler) and not reads_by_get(self.storage):
                return self._queue.next(self, size)
            self._queue.forget()
        drawn = self.draw(size, self.order.place)
        rows = self.read(drawn)
        self.order.place = drawn.place
        return partial(self.finish, drawn, rows), drawn

    # -- draw --------------------------------------------------------------------------------------------------------

    def draw(self, size: int, place: OrderPlace) -> Drawn:
        """Return the batch that follows a place in the order."""
        made_of = size, place.number, self.storage.version, self.sampler.version
        if not self._ahead or self._made_of != made_of:
            self._draw_ahead(size, place, made_of)
        drawn = self._ahead.popleft()
        self._made_of = size, drawn.place.number, *made_of[2:]
        return drawn

    def _draw_ahead(self, size: int, place: OrderPlace, made_of: Any) -> None:
        """Draw some batches, and read their small leaves: twice as many as before, if those were used."""
        self._ahead.clear()
        reader, count = self.reader(), 1
        if draws_ahead(self.sampler):
            if reader is not None and self._made_of is not None and self._made_of[2:] == made_of[2:]:
                count = min(2 * self._count, reader.ahead(size))
            turn = self.order.turn(count, place)
            draw = self.sampler.draw(self.storage, size, turn)
        else:
            draw, turn = self._by_user(size, place)
        self._count = count
        begun: Iterable[Any] = [()] if reader is None else reader.begin(draw, turn)
        for part, one in enumerate(begun):
            self._ahead.append(Drawn(draw.places[part], draw, part, draw.sizes[part], *one))

    def _by_user(self, size: int, place: OrderPlace) -> tuple[Draw, Turn]:
        """One batch by a ``sample`` of the user's: the order counts it, and gives it a generator."""
        sampler, order, delivered = self.sampler, self.order, self.order.place
        order.place = place
        try:
            turn = order.turn()
            sampler._rng = turn.generator()
            rows, info = checked(sampler.sample(self.storage, size), sampler, self.storage)
            after = turn.places[0] if order.place == place else order.place  # a built-in one was called
            after = after._replace(ended=bool(sampler.ran_out))
        finally:
            order.place = delivered
        return Draw(rows, [len(rows)], [after], info), turn

    def reader(self) -> BatchReader | None:
        """Return the reader by leaves, made again when the storage has other leaves; None where whole records are read."""
        storage, options = self.storage, self.options
        leaves = storage.leaves()
        by_leaf = leaves is not None and not reads_by_get(storage) and (options.collate is None or storage.immutable)
        if not by_leaf and not options.around.names:
            return None
        if self._reader is None or self._reader.leaves is not leaves:
            by_user = options.goals is not None and options.goals.by_user
            changed = self.transforms.chain or options.collate is not None or by_user
            output = None if changed else options.output  # what is changed has its form made afterwards
            self._reader = BatchReader(storage, options.around, options.with_info, options.goals, output)
        return self._reader

    def at(self, rows: torch.Tensor, *, formed: bool = True) -> Any:
        """Return the batch of these rows, int64 ``[n]``, without a draw."""
        draw, reader = Draw(rows, [len(rows)], [self.order.place]), self.reader()
        begun = () if reader is None else reader.begin(draw, None)[0]
        drawn = Drawn(self.order.place, draw, 0, len(rows), *begun)
        return self.finish(drawn, self.read(drawn, formed=formed), formed=formed)

    # -- read --------------------------------------------------------------------------------------------------------

    def read(self, drawn: Drawn, *, formed: bool = True) -> Any:
        """Copy the rows out of the storage, which must not be written meanwhile."""
        if drawn.columns is None:
            return self.storage.get(self.storage.coordinates(drawn.alone().rows))
        assert self._reader is not None
        if formed and drawn.made is not None and not self.transforms.chain:
            return self._reader.finish_made(drawn.at, drawn.made)
        return self._reader.finish(drawn.size, drawn.at, drawn.columns)

    # -- finish ------------------------------------------------------------------------------------------------------

    def finish(self, drawn: Drawn, batch: Any, *, ahead: bool = False, formed: bool = True) -> Any:
        """Make a batch of the rows that were read; ``ahead``: it waits for delivery, while user functions make others.

        ``formed``: in the form of ``output``.
        """
        options, chain = self.options, self.transforms.chain
        if options.output is not None and formed and drawn.made is not None and not chain:
            return options.output.placed(batch)
        if options.collate is not None:
            batch = options.collate(batch)
        if drawn.columns is None:
            batch = self._of_records(drawn, batch)
        if options.goals is not None:
            batch = options.goals.relabel(batch)
        if chain:
            batch = self._transformed(drawn, batch)
        # What user code made is copied if it is used after the next call of that code, which may use the memory again.
        if (chain or options.collate is not None) and (ahead or (options.output is not None and options.output.keeps)):
            batch = tree_copied(batch)
        if options.pin_memory or options.device is not None:
            from .devices import to_device

            batch = to_device(batch, options.device, options.pin_memory, ahead=ahead)
        return options.output(batch) if formed and options.output is not None else batch

    def _of_records(self, drawn: Drawn, batch: Any) -> Any:
        """A batch of whole records, with the sampler's information."""
        if self.options.collate is None and self.storage.is_list:
            batch = stack_records(batch)
        if isinstance(batch, LazyStackedTensorDict):
            batch = batch.copy()  # otherwise writes to it would reach the records
        if not self.options.with_info or not isinstance(batch, TensorDictBase):
            return batch
        draw = drawn.alone()
        if draw.slices is not None and draw.slices.padded and isinstance(batch.get("collector", None), torch.Tensor):
            raise mask_error()
        info = self.info(drawn, lambda key: entry_at(batch, key)) | {"index": self.storage.index_of(draw.rows)}
        batch = batch.copy() if batch.is_locked else batch
        for key, value in info.items():
            value = value if batch.device is None else value.to(batch.device)
            batch.set(key, expand_as_right(value, batch) if value.ndim < batch.ndim else value)
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

    def info(
        self, drawn: Drawn, column: Callable[[tuple[str, ...]], torch.Tensor | None] | None = None
    ) -> dict[Any, Any]:
        """Return the info on a batch: its index, the sampler's values, the flags of slices."""
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

    def wait_for_reads(self) -> None:
        """Before a write: let the threads finish their reads."""
        if self._queue is not None:
            self._queue.wait_for_reads()

    def close(self) -> None:
        """Drop what was made ahead, and stop the threads."""
        self._ahead.clear()
        if self._queue is not None:
            self._queue.close()


# -- reading leaf by leaf ------------------------------------------------------------------------------------------------


class BatchReader:
    """Reads batches leaf by leaf, from a storage with leaves; ``with_info``: with index, weights and the flags of slices.

    Raises UsageError for windows of storages that hold whole records, and as the columns of `windows`.
    """

    def __init__(
        self, storage: Storage, around: Around, with_info: bool, goals: Any = None, output: Output | None = None
    ) -> None:
        self.storage, self.around, self._with_info, self._goals = storage, around, with_info, goals
        self.leaves = storage.leaves()
        columns = self._columns(around) if goals is None else goals.columns(storage, around, self._columns(around))
        self._late = [column for column in columns if column.bytes >= SMALL]
        self._early = [column for column in columns if column.bytes < SMALL]
        self._names = {name for column in columns for name in column.names}
        self._small_bytes = sum(column.bytes for column in self._early) + 8
        self._tail, self._device, self._output = storage.batch_tail, storage.device, output
        self._rows_are_index = storage.ndim == 1 and not self._tail

    def _columns(self, around: Around) -> list[BatchColumn]:
        if self.leaves is None or (around.names and reads_by_get(self.storage)):
            kind = type(self.storage).__name__
            if reads_by_get(self.storage):
                message = f"frame_stack, n_step and windows read leaf by leaf, and {kind}.get is your own"
                raise UsageError(message, hint="leave them out, or do in a transform what get() does")
            message = f"n_step, frame_stack and windows are read leaf by leaf, and a {kind} holds whole records"
            raise UsageError(
                message,
                hint="tensor storages have leaves: TensorDicts, contiguous and of one batch size",
            )
        if around.names:
            from .windows import columns_around

            return columns_around(self.storage, self.leaves, around, with_info=self._with_info)
        return step_columns(self.storage, self.leaves, with_info=self._with_info)

    def ahead(self, batch_size: int) -> int:
        """Return how many batches of this size are worth reading together."""
        return max(1, min(AHEAD, AHEAD_BYTES // (batch_size * self._small_bytes)))

    def begin(self, draw: Draw, turn: Turn | None) -> list[tuple[Any, ...]]:
        """Of each batch of a draw: where its steps lie, if large leaves are left to be read, its small leaves, and these
        in the form of ``output``."""
        edges, storage = self.around.edges, self.storage
        at = At(lambda: storage.timeline(edges), draw.rows, draw.slices, self.around.n_step)
        if self._goals is not None and turn is not None:
            self._goals.choose(at, draw, turn)
        columns: dict[str, torch.Tensor] = {}
        for column in self._early:
            columns.update(zip(column.names, column.read(at)))
        for column in self._late:
            column.plan(at)
        if self._with_info:
            self._add_info(draw, columns)
        made = {} if self._output is None else self._output.columns(columns)
        if len(draw.sizes) == 1:
            return [(at, columns, made or None)]
        # `split` would go through Python in torch: this is done for every leaf of small batches.
        parts = zip(*(column.split_with_sizes(draw.sizes) for column in columns.values()))
        ats = at.split(draw.sizes, draw.counts) if self._late else repeat(None)
        begun = [(own, dict(zip(columns, part))) for own, part in zip(ats, parts)]
        if not made:
            return begun
        ends = list(accumulate(draw.sizes))
        pieces = [slice(end - size, end) for size, end in zip(draw.sizes, ends)]
        return [(*one, {path: leaf[piece] for path, leaf in made.items()}) for one, piece in zip(begun, pieces)]

    def _add_info(self, draw: Draw, columns: dict[str, torch.Tensor]) -> None:
        for key, value in draw.info.items():
            value = value.clone() if value.ndim else value.repeat(len(draw.rows))
            name, value = path_of(key), over_tail(value, self._tail)
            stored = columns.get(name)
            columns[name] = value if stored is None or self.around.n_step is None else _either(value, stored)
        if draw.slices is not None:
            if draw.slices.padded and "collector" in self._names:
                raise mask_error()
            columns.update(self.flags(draw, columns))
        index = draw.rows if self._rows_are_index else over_tail(self.storage.index_of(draw.rows), self._tail)
        columns["index"] = index.clone()

    def flags(self, draw: Draw, columns: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the flags of slices by path; those in ``columns`` are written to."""
        slices = draw.slices
        assert slices is not None

        def column(key: tuple[str, ...]) -> torch.Tensor | None:
            found = columns.get("/".join(key))
            return self.storage.leaf_at(key, draw.rows) if found is None else found

        return {"/".join(key): flag for key, flag in flags_of(slices, column, self._tail).items()}

    def finish(self, size: int, at: At | None, columns: dict[str, torch.Tensor]) -> TensorDict:
        """Return the batch of this size, with the large leaves, which are read now."""
        for column in self._late:
            assert at is not None
            columns.update(zip(column.names, column.read(at)))
        if self._device is not None and self._device.type != "cpu":  # the sampler's information is on the CPU
            columns = {name: column.to(self._device) for name, column in columns.items()}
        return nest(columns, (size, *self._tail), self._device)

    def finish_made(self, at: At | None, made: dict[str, Any]) -> dict[str, Any]:
        """Return the batch of these leaves in the form of ``output``, with the large ones, which are read now."""
        assert self._output is not None
        for column in self._late:
            assert at is not None
            made |= self._output.columns(dict(zip(column.names, column.read(at))))
        return nest_dictionary(made)


def _either(drawn: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    """A sampler's flag of the steps drawn, or that of the steps that n-step returns end with."""
    if stored.dtype != torch.bool:
        return drawn
    return drawn.reshape(len(drawn), *[1] * (stored.ndim - 1)).bool() | stored


def read_steps(storage: Storage, steps: torch.Tensor, around: Around) -> TensorDict:
    """These steps (int64 ``[n]``) as batches have them, for a preprocessing run."""
    reader = BatchReader(storage, around, False)
    at, columns, _ = reader.begin(Draw(steps, [len(steps)], [OrderPlace()]), None)[0]
    return reader.finish(len(steps), at, columns).clone()  # stacks are overlapping views of the same memory


def stack_records(records: Any) -> Any:
    """Return the default collation: a list of TensorDicts, tensors, numbers, or trees of these as one batch."""
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
