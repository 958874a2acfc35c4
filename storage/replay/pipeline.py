"""How a batch is made: drawn, read, finished; in order, and ahead of time with ``prefetch``.

    draw       which steps                                               `BatchOrder.take`, under the buffer's lock
    read       small leaves of several batches, then the large ones      a reader of `batches`, see `Pipeline.read`
    finish     collation, transforms, pinned memory, device              `Pipeline._make`, without the lock

Without prefetching all steps run in `sample`; with it, reading and finishing run in threads (`prefetch`). User functions
(``get`` of a storage, collate_fn, reward_fn, transforms) may return views of memory that they reuse for the next batch: they
are called for one batch at a time, and batches that wait for delivery are copies.

`BatchOrder` is the order of batches, and the caller's position in it. Batches may be drawn ahead of time, to read the small
leaves of several together or to prefetch. The states of the generator and the sampler before every draw are kept, so that all
draws that the caller has not received can be taken back: a seed gives the same batches with and without reading ahead, a write
is visible in the next batch, and a checkpoint stores the state of the order instead of the queue.

    drawn         b0  b1  b2 | b3  b4  b5
    delivered     b0  b1  b2 |                   the state of the order is that before b3
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any, Protocol

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from ...errors import SamplingError, UsageError
from ..row_index import NoRecordError
from .batches import BatchReader, Prepared, RecordReader, WindowSpec
from .devices import record_stream, to_device
from .draw import Draw, check_replaces_none, expand_to_records, flag_keys, mark_slices, slice_flags
from .overrides import is_overridden, reads_by_get
from .prefetch import BatchJob, Pace, Prefetcher
from .samplers.sampler import Sampler, draw_batch, fills_up, is_known, own_state, position_of
from .storages.list_storage import ListStorage
from .storages.storage import Storage
from .storages.trees import copy_of, stack_records
from .timeline import entry_key, path_of
from .transforms import Transforms, copied_state

Prepare = Callable[[Sequence[Draw]], list[Prepared]]


@dataclass
class OrderState:
    """The state of the generator and the position of the sampler before a draw, and the batches drawn before it."""

    generator: torch.Tensor
    sampler: Any
    batches: int = 0
    #: The whole state of a user's sampler, see `own_state`.
    own: Any = None


def check_count(batches: Any) -> int:
    """The batches drawn before a saved state. Raises UsageError unless it is a whole number >= 0."""
    if type(batches) is not int or not 0 <= batches < 1 << 62:
        raise UsageError(f"{batches!r} is not a number of batches")
    return batches


class Relabeling(Protocol):
    """Replaces goals and rewards of records in a batch, see `goals`."""

    @property
    def is_own_code(self) -> bool:
        """Whether a user function computes rewards."""

    def choose(self, draw: Draw, storage: Storage, generator: torch.Generator) -> None:
        """Set ``draw.goals``, the rows that goals are taken from, with the generator that drew the batch."""

    def read(self, storage: Storage, rows: torch.Tensor) -> Any:
        """The achieved goals at these rows, for `apply`."""

    def apply(self, batch: Any, achieved: Any) -> Any:
        """The batch with its new goals and rewards."""


@dataclass(frozen=True)
class BatchSpec(WindowSpec):
    """The specification of batches: the rows to read around each step, and how they are processed.

    ``info_in_batch`` puts the sampler's information into the batch; ``prefetch`` batches are made ahead, by request or
    (``prefetch_is_default``) without; ``relabeling`` replaces goals. ``in_ensemble``: functions of the user make batches in
    the caller's thread alone, because the members of an ensemble may share them, or what they write to.
    """

    info_in_batch: bool = False
    collate: Callable[[Any], Any] | None = None
    prefetch: int = 0
    prefetch_is_default: bool = False
    device: torch.device | None = None
    pin_memory: bool = False
    relabeling: Relabeling | None = None
    in_ensemble: bool = False

    @property
    def reads_windows(self) -> bool:
        """Whether other records around each drawn record are read."""
        return any(one is not None for one in (self.frame_stack, self.n_step, self.key_windows))


class BatchOrder:
    """Draws in order from one sampler with one generator; the look-ahead grows while batches of one size are taken."""

    def __init__(
        self, sampler: Sampler, storage: Storage, generator: torch.Generator, spec: BatchSpec, *, watched: bool
    ) -> None:
        self.sampler, self.storage, self.generator, self.spec = sampler, storage, generator, spec
        #: Whether other code may set the generator: batches then follow from its new state, and draws made ahead are dropped.
        self._watched, self._left_at = watched, None if not watched else generator.get_state()
        self._drawn: deque[Prepared] = deque()
        self._drawn_from: Any = None  # see `_source`
        self.batches = 0  # drawn so far
        self.version = 0  # version of the storage when the last batch taken was drawn
        self._ahead = 1
        #: Whether draws can be taken back: keeping states costs time, and is needed only for draws made ahead.
        self._keeps_states = sampler.ahead or spec.prefetch > 0

    def take(self, batch_size: int, prepare: Prepare, limit: int) -> Prepared:
        """The next batch of this size; up to ``limit`` are prepared together."""
        if self._drawn and (self._drawn_from != self._source(batch_size) or self._was_set()):
            self.rewind()
        if not self._drawn:
            # A method set on the sampler may return something else when called again.
            has_own_method = not {"draw", "sample"}.isdisjoint(self.sampler.__dict__)
            may_look_ahead = self.sampler.ahead and not has_own_method
            self._draw(batch_size, prepare, min(limit, self._ahead) if may_look_ahead else 1)
            self._ahead = min(2 * self._ahead, limit)
        return self._drawn.popleft()

    def _source(self, batch_size: int) -> Any:
        """The inputs of draws made ahead: the size, the storage's contents, and the sampler's arguments and own methods."""
        sampler = self.sampler
        return batch_size, self.storage.contents_version, sampler.changes, "sample" in sampler.__dict__

    def take_parts(self, size: int, count: int) -> list[list[Draw]]:
        """The draws of the next ``count`` batches of this size; where a pass ends within one, draws of the next pass follow."""
        self.rewind()
        before = self._current() if self._keeps_states else None
        parts: list[list[Draw]] = []
        try:
            for _ in range(count):
                parts.append([])
                missing = size
                while missing > 0:
                    parts[-1].append(draw_batch(self.sampler, self.storage, missing, self.generator))
                    self.batches += 1
                    missing -= parts[-1][-1].steps
                    if not fills_up(self.sampler, self.sampler.ran_out):
                        break
        except BaseException:
            if before is not None:
                self.go_to(before)
            raise
        if self._watched:
            self._left_at = self.generator.get_state()
        return parts

    def _draw(self, batch_size: int, prepare: Prepare, count: int) -> None:
        self.version, self._drawn_from = self.storage.version, self._source(batch_size)
        draws: list[Draw] = []
        states: list[OrderState | None] = []
        ends: list[bool] = []
        before = self.batches
        try:
            for _ in range(count):
                states.append(self._current() if self._keeps_states else None)
                draw = draw_batch(self.sampler, self.storage, batch_size, self.generator)
                self.batches += 1
                ends.append(self.sampler.ran_out)
                if self.spec.relabeling is not None:  # uses the generator, so it comes before the next draw
                    self.spec.relabeling.choose(draw, self.storage, self.generator)
                draws.append(draw)
            prepared = prepare(draws)
        except BaseException:
            if states[0] is not None:
                self.go_to(states[0])
            self._ahead, self.batches = 1, before
            raise
        for batch, state, end in zip(prepared, states, ends):
            batch.before, batch.ran_out = state, end
        self._drawn.extend(prepared)
        if self._watched:
            self._left_at = self.generator.get_state()

    def _current(self) -> OrderState:
        """The state after all draws."""
        return OrderState(self.generator.get_state(), position_of(self.sampler), self.batches, own_state(self.sampler))

    def _was_set(self) -> bool:
        """Whether other code has set the generator, or drawn from it."""
        return self._left_at is not None and not torch.equal(self.generator.get_state(), self._left_at)

    def state(self, oldest: OrderState | None = None) -> OrderState:
        """The state after the last batch taken, or the state ``oldest``, before the first undelivered batch."""
        before = oldest or (self._drawn[0].before if self._drawn else None)
        if before is None:
            return self._current()
        return replace(before, generator=self.generator.get_state()) if self._was_set() else before

    def go_to(self, state: OrderState) -> None:
        """Continue from a state; draws made ahead of time are discarded."""
        self._drawn.clear()
        self.generator.set_state(state.generator)
        if state.own is not None:
            self.sampler.load_state_dict(deepcopy(state.own))
        own = is_overridden(self.sampler, "set_position")  # which may keep it, and change it
        self.sampler.set_position(deepcopy(state.sampler) if own else state.sampler)
        self.batches = state.batches
        if self._watched:
            self._left_at = self.generator.get_state()

    def rewind(self, oldest: OrderState | None = None) -> None:
        """Take back the draws made ahead of time, and the draws from ``oldest`` on."""
        if self._drawn or oldest is not None:
            self.go_to(self.state(oldest))
        self._ahead = 1

    def can_draw(self, batch_size: int) -> bool:
        """Whether a batch of this size can be drawn."""
        if is_overridden(self.sampler, "can_sample") or not is_known(self.sampler):
            return bool(self.sampler.can_sample(self.storage, batch_size))
        before = self._current()
        try:
            draw_batch(self.sampler, self.storage, batch_size, self.generator)
            return True
        except SamplingError:
            return False
        finally:
            self.generator.set_state(before.generator)
            self.sampler.set_position(before.sampler)


#: Makes the info dictionary of a batch.
Info = Callable[[], dict[Any, Any]]
#: A batch, the function that makes its info, and whether the batch ends a pass.
Sample = tuple[Any, Info, bool]


class RowsChangedError(Exception):
    """Another process wrote rows while a batch was read ahead of time."""


class Pipeline:
    """Batches of one sampler over one storage.

    The caller of all methods holds ``lock``, the buffer's, and calls what `begin` returns without it; see `prefetch` for who
    waits for whom.
    """

    def __init__(
        self,
        storage: Storage,
        sampler: Sampler,
        generator: torch.Generator,
        transforms: Transforms,
        spec: BatchSpec,
        lock: threading.RLock,
        *,
        watched: bool,
    ) -> None:
        self.storage, self.spec, self.transforms = storage, spec, transforms
        self.order = BatchOrder(sampler, storage, generator, spec, watched=watched)
        sampler._rng = generator
        self.lock = lock
        self._queue: Prefetcher[Prepared] | None = None
        self._pace = Pace(spec.prefetch)
        self._known: tuple[Any, int, BatchReader | RecordReader] | None = None
        self._get: Any = None  # ``get`` of the storage's class at that time, unless a user defined it
        self._own_get = threading.RLock()

    def begin(self, size: int, ahead: bool) -> Callable[[], Sample]:
        """Draw a batch and copy its rows; returns a function that makes the batch. ``ahead``: the batch may be prefetched.

        Both raise RowsChangedError if another process has meanwhile written rows of a prefetched batch.
        """
        if ahead and self._prefetches:
            queue, job = self._next_job(size)
            return partial(self._deliver, queue, job, size)
        if self.queued:
            self.rewind()
        prepared, rows = self._take_and_read(size)
        return partial(self._make, prepared, rows)

    @property
    def _prefetches(self) -> bool:
        """Whether batches are made ahead; by default only where nothing that the program does in between changes them."""
        if self.spec.prefetch_is_default:
            return self.order.sampler.ahead and not self.runs_own_code
        return self.spec.prefetch > 0

    def _make(self, prepared: Prepared, rows: Any) -> Sample:
        return *self._finish(prepared, self._collate(prepared, rows)), prepared.ran_out

    @property
    def gives_columns(self) -> bool:
        """Whether batches consist only of rows that are read leaf by leaf, as `sample_columns` requires."""
        spec, storage = self.spec, self.storage
        own = (spec.collate, spec.relabeling, spec.device)
        if any(one is not None for one in own) or spec.pin_memory or spec.prefetch or len(self.transforms):
            return False
        plain = storage.ndim == 1 and not (storage.batch_tail or storage.nested_sizes) and not storage.is_shared
        on_cpu = storage.device is None or storage.device.type == "cpu"
        return plain and on_cpu and is_known(self.order.sampler) and isinstance(self._reader(), BatchReader)

    def sample_columns(self, size: int, count: int) -> tuple[dict[str, torch.Tensor], list[int]]:
        """The next ``count`` batches, concatenated in columns by path ``[steps, ...]``, and the number of steps of each.

        Requires `gives_columns`. Includes ``index`` and the sampler's info. The next pass fills up a batch that ends a pass.
        """
        reader = self._reader()
        assert isinstance(reader, BatchReader)
        parts = self.order.take_parts(size, count)
        prepared = self._stamped(reader.prepare_joined([draw for part in parts for draw in part]))
        columns = reader.columns(prepared)
        if not self.spec.info_in_batch:
            check_replaces_none(prepared.draw, columns.__contains__)
            columns |= {path_of(key): value for key, value in prepared.draw.info.items()}
            mark_slices(prepared.draw, columns)
        columns["index"] = prepared.index
        return columns, [sum(draw.steps for draw in part) for part in parts]

    @property
    def runs_own_code(self) -> bool:
        """Whether functions from outside of this package make the batches: they may reuse a batch's memory for the next."""
        return self._collates_by_own_code or self.transforms.are_own_code or reads_by_get(self.storage)

    @property
    def _collates_by_own_code(self) -> bool:
        relabeling = self.spec.relabeling
        return self.spec.collate is not None or (relabeling is not None and relabeling.is_own_code)

    def at(self, rows: torch.Tensor) -> Any:
        """The batch of these rows, int64 ``[n]``, without a draw. Raises NoRecordError for rows that do not exist."""
        count = len(self.storage)
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < count:
            raise NoRecordError(f"there are {count} records, and not all of {rows.tolist()!s:.60} are among them")
        draw, reader = Draw(rows.clone()), self._reader()

        def read() -> tuple[Prepared, Any]:
            prepared = self._stamped(reader.prepare([draw])[0])
            return prepared, self.read(prepared)

        prepared, records = self.storage.read_whole(read)
        return self._make(prepared, records)[0]

    # -- drawing -----------------------------------------------------------------------------------------------------

    def _take(self, size: int) -> Prepared:
        reader = self._reader()
        return self.order.take(size, lambda draws: [*map(self._stamped, reader.prepare(draws))], reader.ahead(size))

    def _stamped(self, prepared: Prepared) -> Prepared:
        """Add the stamps of the drawn rows, if the storage has stamps."""
        stamps = self.storage.generations
        if stamps is not None:
            generation = stamps.of(prepared.index // self.storage.width)
            prepared.draw = replace(prepared.draw, info={**prepared.draw.info, "index_generation": generation})
            if self.spec.info_in_batch:
                prepared.columns["index_generation"] = expand_to_records(generation, self.storage.batch_tail)
        return prepared

    def _take_and_read(self, size: int) -> tuple[Prepared, Any]:
        """The next batch and its rows; drawn and read again if another process writes the rows meanwhile."""
        before = self.order.state() if self.storage.is_shared else None
        attempts = count()

        def attempt() -> tuple[Prepared, Any]:
            if next(attempts) and before is not None:
                self.order.go_to(before)
            prepared = self._take(size)
            return prepared, self.read(prepared)

        return self.storage.read_whole(attempt)

    def _reader(self) -> BatchReader | RecordReader:
        """The reader, by leaves if possible, otherwise by whole records; replaced when the leaves of the storage change."""
        storage, spec = self.storage, self.spec
        if self._known is not None and type(storage).get is self._get and "get" not in storage.__dict__:
            same_rows = storage.immutable and self._known[1] == storage.version
            if same_rows or self._known[0] is storage.fields():
                return self._known[2]
        fields, own_get = storage.fields(), reads_by_get(storage)
        if own_get and spec.has_windows:
            message = f"frame_stack, n_step and windows read leaf by leaf, and {type(storage).__name__}.get is your own"
            raise UsageError(message, hint="leave them out, or do in a transform what get() does")
        # A collate_fn gets the records as the storage returns them.
        by_leaf = spec.has_windows or (fields is not None and (spec.collate is None or storage.immutable))
        reader: BatchReader | RecordReader = RecordReader(storage)
        if by_leaf and not own_get:
            reader = BatchReader(storage, spec, with_info=spec.info_in_batch)
        self._known, self._get = (fields, storage.version, reader), None if own_get else type(storage).get
        return reader

    # -- reading and finishing ---------------------------------------------------------------------------------------

    def read(self, prepared: Prepared) -> Any:
        """Copy the drawn rows out of the storage. Not to be called during a write."""
        if self.spec.relabeling is not None and prepared.draw.goals is not None:
            prepared.achieved = self.spec.relabeling.read(self.storage, prepared.draw.goals)
        prepared.reader = self._reader()
        return prepared.reader.complete(prepared)

    def _collate(self, prepared: Prepared, rows: Any) -> Any:
        batch, collate = rows, self.spec.collate
        if collate is not None:
            # A user function may change the records of a list, or return one of them.
            batch = collate(copy_of(batch) if isinstance(batch, list) else batch)
            if isinstance(batch, LazyStackedTensorDict):
                batch = batch.copy()  # otherwise writes to it would reach the records
        elif isinstance(self.storage, ListStorage):
            batch = stack_records(batch)
        if self.spec.info_in_batch and isinstance(batch, TensorDictBase):
            prepared.reader.put_info(batch, prepared)
        if self.spec.relabeling is not None and prepared.achieved is not None:
            batch = self.spec.relabeling.apply(batch, prepared.achieved)
        return batch

    def _finish(self, prepared: Prepared, batch: Any, *, copied: bool = False, ahead: bool = False) -> tuple[Any, Info]:
        columns: dict[str, torch.Tensor] = dict(prepared.columns)
        if not columns and isinstance(batch, TensorDictBase):
            for key in flag_keys(prepared.draw):
                with suppress(RuntimeError, ValueError):  # records of unlike shapes; a leaf above the key
                    if isinstance(value := batch.get(entry_key(key), None), torch.Tensor):
                        columns["/".join(key)] = value
        if len(self.transforms):
            if self.spec.info_in_batch:
                flags = {entry_key(key): columns.get("/".join(key)) for key in flag_keys(prepared.draw)}
                batch = self.transforms.apply_beside(batch, ("index", *prepared.draw.info), flags)
            else:
                batch = self.transforms(batch)
        if copied:
            batch = copy_of(batch)
        if self.spec.pin_memory or self.spec.device is not None:
            is_as_read = not len(self.transforms) and self.spec.collate is None and self.spec.relabeling is None
            windows = prepared.windows if is_as_read and isinstance(batch, TensorDictBase) else None
            prepared.windows = {}  # the info keeps `prepared`, and need not keep these
            batch = to_device(batch, self.spec.device, self.spec.pin_memory, windows, ahead=ahead)
        return batch, partial(_info, self.storage, prepared, columns)

    # -- ahead of time -----------------------------------------------------------------------------------------------

    def _next_job(self, size: int) -> tuple[Prefetcher[Prepared], BatchJob[Prepared]]:
        if self._queue is None:
            self._queue = Prefetcher(self.spec.prefetch)
        queue = self._queue
        if queue.is_entered:
            message = (
                "a transform (or collate_fn) samples from its own buffer, whose next batch would wait for this one"
            )
            raise UsageError(message, hint="make the buffer without prefetch, or sample from another one")
        if not len(queue):
            self._submit(queue, size)
        return queue, queue.pop()

    def _deliver(self, queue: Prefetcher[Prepared], job: BatchJob[Prepared], size: int) -> Sample:
        """The batch of a job: made in a thread meanwhile, or made now if that is quicker.

        Afterwards the queue is as full as before, so that draws are always equally far ahead.
        """
        try:
            batch, info = job.result()
        except RowsChangedError:
            with self.lock:
                if queue is self._queue and queue.popped is job:
                    self.rewind()
                    self.order.go_to(job.item.before)
            raise
        with self.lock:
            if queue is self._queue:
                with suppress(Exception):  # the caller of the next batch gets the error
                    self._fill(queue, size, queue.last if len(queue) else job.item)
        self._pace.note(job.in_thread, perf_counter())
        return record_stream(batch, self.spec.device), info, job.item.ran_out

    def _fill(self, queue: Prefetcher[Prepared], size: int, last: Prepared) -> None:
        """Draw up to the depth of the queue, but not beyond the end of a pass: later draws belong to the next iteration."""
        while len(queue) < queue.depth and (self.order.sampler.endless or not last.ran_out):
            last = self._submit(queue, size)

    def _submit(self, queue: Prefetcher[Prepared], size: int) -> Prepared:
        read = self.read
        with self._changes_noticed(self.storage.version):
            prepared = self._take(size)
        if self.storage.is_shared:
            read = partial(self._read_unchanged, self.order.version)
        if reads_by_get(self.storage):
            read = partial(self._read_alone, read)
        collate: Callable[[Any], Any] | None = partial(self._collate, prepared)
        finish = partial(self._finish_ahead, prepared, None, copied=self.runs_own_code)
        if self._collates_by_own_code:
            collate, finish = None, partial(self._finish_ahead, prepared, collate, copied=True)
        in_thread = self._pace.ahead and not (self.spec.in_ensemble and self.runs_own_code)
        queue.submit(prepared, partial(read, prepared), collate, finish, in_thread=in_thread)
        return prepared

    def _read_alone(self, read: Callable[[Prepared], Any], prepared: Prepared) -> Any:
        """A copy of the result of ``read``, which calls a user's ``get``; one batch at a time."""
        with self._own_get:
            return copy_of(read(prepared))

    def _finish_ahead(self, prepared: Prepared, collate: Any, batch: Any, *, copied: bool) -> tuple[Any, Info]:
        """`_finish`, after ``collate`` if the user's own function does that."""
        batch = batch if collate is None else collate(batch)
        with suppress(Exception):  # of a state that cannot be copied, which a checkpoint will say
            prepared.transforms = self.transforms.changed_by_use()
        return self._finish(prepared, batch, copied=copied, ahead=True)

    def transforms_state(self) -> dict[str, Any]:
        """The state of the transforms after the last delivered batch: those on their way may have changed it."""
        state = self.transforms.state_dict()
        if not self.queued:
            return state
        assert self._queue is not None
        before = self._queue.first.transforms  # looked at last: a thread may begin the batch meanwhile
        return state if before is None else {**state, **copied_state(before)}

    @property
    def queued(self) -> int:
        """The number of batches that wait to be delivered."""
        return 0 if self._queue is None else len(self._queue)

    def _oldest(self) -> OrderState | None:
        """The state before the first batch that waits to be delivered."""
        return self._queue.first.before if self._queue is not None and self.queued else None

    def _read_unchanged(self, version: int, prepared: Prepared) -> Any:
        """`read` for rows drawn at this version of the storage. Raises RowsChangedError if the version has changed."""
        with self._changes_noticed(version):
            rows = self.read(prepared)
        if version % 2 or self.storage.version != version:
            raise RowsChangedError
        return rows

    @contextmanager
    def _changes_noticed(self, version: int) -> Iterator[None]:
        """Raise RowsChangedError in place of errors if rows were written meanwhile."""
        try:
            yield
        except Exception as error:
            if self.storage.is_shared and (version % 2 or self.storage.version != version):
                raise RowsChangedError from error
            raise

    def state(self) -> OrderState:
        """The state of the order after the last delivered batch."""
        return self.order.state(self._oldest())

    def go_to(self, state: OrderState) -> None:
        """Continue from a state of the order."""
        self.rewind()
        self.order.go_to(state)

    def rewind(self) -> list[BatchJob[Prepared]]:
        """Take back all draws made ahead; returns the jobs that still run, see `wait_for`."""
        oldest = self._oldest()
        running = [] if self._queue is None else self._queue.withdraw()
        self.order.rewind(oldest)
        return running

    def prepare_write(self) -> None:
        """Complete the reads of all draws, so that the storage may be written."""
        if self._queue is not None:
            self._queue.complete_reads()

    def close(self) -> None:
        """Take back the draws made ahead, and stop the threads."""
        self.rewind()
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close()

    def after_fork(self, lock: threading.RLock) -> None:
        """In a child process, forget the parent's threads, including one that may have held the lock."""
        self.lock = lock
        queue, self._queue = self._queue, None
        if queue is not None and len(queue):
            self.order.go_to(queue.first.before)


def _info(storage: Storage, prepared: Prepared, columns: dict[str, torch.Tensor]) -> dict[Any, Any]:
    """The info dictionary of a batch."""
    draw = prepared.draw
    index = storage.coordinates(prepared.index.clone())
    info: dict[Any, Any] = {"index": index, **{key: value.clone() for key, value in draw.info.items()}, **draw.notes}

    def copied(key: tuple[str, ...]) -> torch.Tensor | None:
        column = columns.get("/".join(key))
        return None if column is None else column.clone()

    info.update({entry_key(key): value for key, value in slice_flags(draw, copied).items()})
    return info
