"""The steps of a chunk through the chain of functions: read, call, check. In workers.

Functions get TensorDicts: batches, single steps, or whole episodes. The first functions of a chain that can be applied to
states (`functions.traits`) get each state once instead, not as observation and again as successor.

A chain gives the same result as one run per function: the result of each function is checked and completed as if it were
stored, and the next function gets the data as they would be read. With whole episodes, it gets the episodes of that result.

Changes that a user's function makes to the calling process are undone: results do not depend on earlier calls in the same
process, and a Python caller finds its process unchanged.

The input is read as functions get it (`InputView`): the episodes of `chunks` with the options of `request.ReadOptions`.
Frame stacks and n-step returns are computed as by a sampler (`storage.replay`): they are read from the whole dataset and end
at the edges of its episodes, not of slices.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from ..datasets.user_code_old.loading import by_content
from ..datasets.user_code_old.opened_files import OpenedFiles
from ..datasets.user_code_old.process_state import as_caller, flushes_denormals, own_turn
from ..datasets.user_code_old.source_files import is_installed_path
from ..errors import FunctionError, RbdataError, ResultError
from ..storage.codecs import codec_of
from ..storage.dataset import Dataset
from ..storage.memory_map import release_pages
from ..storage.window import nest
from .chunks import Chunk, split, step_range, view_episodes
from .function import EPISODE, STEP, BoundFunction, load_chain
from .layout import observation_pairs
from .own_generators import OwnGenerators
from .records import FIRST, LAST
from .request import ReadOptions, RunConfig
from .result import (
    CollectedSteps,
    Columns,
    ResultCounts,
    SourceRows,
    SourceStates,
    as_stored,
    bookkeeping_of,
    check_batch,
    columns_of,
    complete,
    concatenate,
    copied,
    count_nans,
    dtype_name,
    keeps_bookkeeping,
    leaves_of,
)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Batch size of an input, and its leaves: path, dtype, shape.
_GivenShapes = tuple[torch.Size, list[tuple[str, torch.dtype, torch.Size]]]


class unchanged_process:
    """Restore the default dtype, the default device, the gradient mode, the current directory and whether denormals are flushed
    after calls of functions.

    ``opened`` collects the files that the functions open.
    A process that a function forked exits here: it must not repeat the work of its parent. (A class, because it is faster
    than a generator.)
    """

    __slots__ = ("_before", "_opened", "_pid")

    def __init__(self, opened: OpenedFiles) -> None:
        self._opened = opened

    def __enter__(self) -> None:
        self._pid, self._before = os.getpid(), _settings()
        self._opened.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            os._exit(1)
        self._opened.__exit__()
        dtype, device, gradients, folder, flushes = self._before
        if _settings() == self._before:
            return
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)
        torch.set_flush_denormal(flushes)
        if _default_device() is not device:
            torch.set_default_device(None if device is None else device.device)
        if folder is not None:
            with suppress(OSError):
                os.chdir(folder)


def _settings() -> tuple[torch.dtype, Any, bool, str | None, bool]:
    try:
        folder = os.getcwd()  # noqa: PTH109  (Path.cwd takes five times as long)
    except OSError:  # it was removed
        folder = None
    return torch.get_default_dtype(), _default_device(), torch.is_grad_enabled(), folder, flushes_denormals()


def _default_device() -> Any:
    """The object that `torch.set_default_device` stored, None without a call; torch's own query takes ten times as long."""
    return getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)


@contextmanager
def unchanged_program() -> Iterator[None]:
    """After many calls, restore settings that matter only to the caller: torch's threads, NumPy's error handling, warning
    filters, signal handlers, standard streams. ``os._exit`` raises: the process would exit without a message, with any code.
    """
    pid, leave = os.getpid(), os._exit

    def refuse(status: int) -> NoReturn:
        if os.getpid() == pid and threading.current_thread() is threading.main_thread():
            raise SystemExit(f"os._exit({status})")
        leave(status)

    threads, errors, filters = torch.get_num_threads(), np.geterr(), warnings.filters[:]
    streams = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
    handlers: dict[Any, Any] = {one: signal.getsignal(one) for one in _SIGNALS}
    os._exit = refuse
    try:
        yield
    finally:
        os._exit = leave
        torch.set_num_threads(threads)
        np.seterr(**errors)
        if warnings.filters != filters:
            warnings.filters[:] = filters  # type: ignore[index]
        for name, stream in streams.items():
            setattr(sys, name, stream)
        if threading.current_thread() is threading.main_thread():
            for one, handler in handlers.items():
                if handler is not None and signal.getsignal(one) is not handler:
                    signal.signal(one, handler)


#: Pages of files stay in memory up to this total size in bytes.
KEPT_BYTES = 128 << 20


class InputView:
    """A dataset as functions get it. The tensors that it returns are copies, which functions may modify."""

    def __init__(self, dataset: Dataset, num_frames: int | None, options: ReadOptions) -> None:
        self.dataset, self.options = dataset, options
        self.episodes = view_episodes(self.dataset.episodes, num_frames, options.slice_len)
        self._added_ends = self.episodes.starts[1:][self.episodes.added] - 1

    def read(self, start: int, stop: int) -> TensorDict:
        """Steps ``start..stop-1`` as TED, batch ``[stop - start]``; no two tensors share memory."""
        steps = torch.arange(start, stop, device="cpu")
        td = self._read_with_neighbours(steps) if self.options.reads_neighbours else self.dataset[start:stop]
        return self._truncate_added_ends(td, steps)

    def read_step_leaves(self, start: int, stop: int) -> TensorDict:
        """`read` without state leaves; only if steps are read without their neighbours."""
        leaves = {name: rows for name, rows in self.dataset.rows.items() if rows.leaf.kind == "step"}
        td = nest({name: rows.block(start, stop).clone() for name, rows in leaves.items()}, (stop - start,))
        return self._truncate_added_ends(td, torch.arange(start, stop, device="cpu"))

    def read_states(self, start: int, stop: int, undecoded: Collection[str]) -> SourceStates:
        """The states of the same steps, one row each: the successor of a step is the row after the one it begins with.

        The rows of leaves in ``undecoded`` are not read.
        """
        numbers = self.dataset.state_numbers(start, stop)
        first, end = int(numbers[0]), int(numbers[-1]) + 2
        leaves = {
            name: SourceRows(rows, first, None if name in undecoded else rows.block(first, end))
            for name, rows in self.dataset.rows.items()
            if rows.leaf.kind == "state"
        }
        return SourceStates(numbers - first, leaves)

    def read_scattered(self, steps: torch.Tensor) -> TensorDict:
        """Steps in any order, as ``read`` returns them."""
        td = self._read_with_neighbours(steps) if self.options.reads_neighbours else self.dataset[steps]
        return self._truncate_added_ends(td, steps)

    def release(self) -> None:
        """Release the pages of the files that were read, which count as memory of this process.

        Pages of small datasets stay in memory: the next pass reads them again.
        """
        read = getattr(self.dataset, "members", (self.dataset,))  # of a view
        parts = [part for one in read for rows in one.rows.values() for part in vars(rows).values()]
        mapped = [part for part in parts if isinstance(part, np.ndarray)]
        if sum(part.nbytes for part in mapped) > KEPT_BYTES:
            for part in mapped:
                release_pages(part)

    def _read_with_neighbours(self, steps: torch.Tensor) -> TensorDict:
        from ..storage.replay.batches import BatchReader, NStep, WindowSpec
        from ..storage.replay.draw import Draw
        from ..storage.replay.storages.dataset_storage import DatasetStorage

        options = self.options
        n_step = None if options.n_step is None else NStep(options.n_step, options.gamma)
        storage = DatasetStorage(self.dataset)
        reader = BatchReader(storage, WindowSpec(options.frame_stack, n_step=n_step), with_info=False)
        (prepared,) = reader.prepare([Draw(steps)])
        return reader.complete(prepared).clone()  # stacks are overlapping views of the same memory

    def _truncate_added_ends(self, td: TensorDict, steps: torch.Tensor) -> TensorDict:
        """The steps, truncated where an episode of the view ends and the episode of the dataset continues."""
        ends = self._added_ends
        low, high = np.searchsorted(ends, [int(steps.min()), int(steps.max()) + 1])
        if low < high:
            is_end = torch.isin(steps, torch.from_numpy(ends[low:high]))
            mask = is_end.view(-1, 1) & ~td.get(("next", "terminated"))
            for name in ("truncated", "done"):
                td.set(("next", name), td.get(("next", name)) | mask)
        return td


_HERE = str(Path(__file__).parent)


@dataclass
class ResultBatch:
    """The result of some steps: ``columns`` ``[rows, ...]``, empty where every episode was dropped.

    ``dones``: the done rows of each episode of the view, from episode ``first`` on; ``lost_edges``: see `records`.
    ``source``: the states of the input that the rows may equal; None if there are none. ``where`` describes the steps in
    messages.
    """

    where: str
    columns: Columns
    first: int
    dones: np.ndarray
    steps_in: int
    source: SourceStates | None = None
    lost_edges: np.ndarray | None = None


class InputSteps(NamedTuple):
    """The steps of one input: their numbers ``steps``, int64 ``[n]``, of a whole episode its first step.

    ``ends``: the rows where an episode ends; None for a whole episode. ``where`` describes the steps in messages, ``counts``
    counts over the results.
    """

    steps: torch.Tensor | int
    ends: torch.Tensor | None
    where: str
    counts: ResultCounts


class EpisodePiece(NamedTuple):
    """Some or all steps of a function's result for an episode of the view, ``td`` ``[n]``.

    ``is_first``, ``is_last``: the piece has the beginning, the end of the episode, as far as functions kept them.
    """

    td: TensorDictBase
    is_first: bool
    is_last: bool

    def episodes(self) -> list[EpisodePiece]:
        """The piece cut into its episodes."""
        ends = (self.td.get(("next", "done")).view(-1).nonzero().squeeze(1) + 1).tolist()
        if len(ends) == 1:
            return [self]
        count = len(self.td)
        return [
            EpisodePiece(self.td[low:high], self.is_first and not low, self.is_last and high == count)
            for low, high in pairwise([0, *ends])
        ]


class Applier:
    """A view of the input and the functions of a chain, opened in one process.

    ``opened``: the files that the functions opened in this process, for this run.
    """

    def __init__(self, config: RunConfig, opened: OpenedFiles) -> None:
        self.config, self.opened = config, opened
        self.view = InputView(config.open(), config.num_frames, config.read_options)
        self.chain = load_chain(config.chain.functions, config.statistics, opened)
        self.generator = torch.Generator()
        self.own_generators = OwnGenerators(one for fn in self.chain for one in fn.generators())

    @cached_property
    def state_functions(self) -> int:
        """How many functions at the beginning of the chain are applied to states, judged by the first row or episode."""
        config = self.config
        if config.read_options.reads_neighbours or config.chain.per == "sample" or not self.view.dataset.schema.states:
            return 0
        stop = int(self.view.episodes.starts[1]) if config.whole_episodes else 1
        td: Any = self.view.read(0, stop)
        for number, fn in enumerate(self.chain):
            with self.guard(fn.name, self._describe(0, stop)):
                if not fn.applies_to_states(td):
                    return number
                td = fn(td, self.generator)
        return len(self.chain)

    def apply(
        self, chunk: Chunk, counts: ResultCounts, *, map_states: bool = True, undecoded: Collection[str] = ()
    ) -> Iterator[ResultBatch]:
        """The results of all functions for the batches of a chunk. Their counts are added to ``counts``.

        Without ``map_states`` no function is applied to states. Functions do not get the state leaves ``undecoded``.
        """
        config, episodes = self.config, self.view.episodes
        mapped = self.state_functions if map_states and not undecoded else 0
        apply = self._apply_to_episodes if config.whole_episodes else self._apply_to_batch
        for span in split(chunk, episodes, config.batch, config.whole_episodes):
            td, source = self._read(span, mapped, undecoded)
            self.seed(span.start)
            yield apply(td, span, mapped, counts, source)

    def apply_first(self, count: int, chunk: Chunk) -> Iterator[tuple[TensorDictBase, str]]:
        """The inputs of function ``count`` for a chunk, by batches or episodes, with a description of each."""
        config, episodes, chain = self.config, self.view.episodes, self.chain[:count]
        # The next function ignores observations as well: they need not be read.
        read = self.view.read_step_leaves if count < config.ignores_observations else self.view.read
        for span in split(chunk, episodes, config.batch, config.whole_episodes):
            td, counts = read(span.start, span.stop), ResultCounts()
            if not config.whole_episodes:
                self.seed(span.start)
                at = self._at(span, counts)
                for fn in chain:
                    td = self._stored_result(fn, td, at)
                yield td, at.where
                continue
            for low, high in self._episodes(span):
                at = InputSteps(low, None, self._describe(low, high), counts)
                episode = EpisodePiece(td[low - span.start : high - span.start], True, True)
                self.seed(low)
                for piece in self._pieces(episode, at, chain):
                    yield piece.td, at.where

    def apply_to_steps(self, steps: torch.Tensor) -> Columns:
        """The results of all functions for steps in any order; not for whole episodes."""
        self.seed(int(steps[0]))
        td = self.view.read_scattered(steps)
        where = f"{len(steps)} steps between {int(steps[0]):,} and {int(steps[-1]):,} of {self.view.dataset.id}"
        no_ends = torch.zeros(0, dtype=torch.int64, device="cpu")
        return self._columns(td, InputSteps(steps, no_ends, where, ResultCounts()), self.chain)

    def seed(self, step: int) -> None:
        """Seed all random generators for the batch or the episode that begins with ``step``."""
        seed = int(np.random.SeedSequence([self.config.seed, step]).generate_state(1, np.uint64)[0])
        self.own_generators.seed(seed)  # first: a global one may be among them
        self.generator.manual_seed(seed >> 1)
        torch.default_generator.manual_seed(seed >> 1)  # torch.manual_seed takes a hundred times as long
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed >> 1)
        np.random.seed(seed % (1 << 32))
        random.seed(seed)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read(self, span: Chunk, mapped: int, undecoded: Collection[str]) -> tuple[TensorDict, SourceStates | None]:
        """Steps to which the first ``mapped`` functions have been applied, and the states that are still as stored."""
        start, stop = span.start, span.stop
        if self.config.read_options.reads_neighbours or not self.view.dataset.schema.states:
            return self.view.read(start, stop), None
        where = self._describe(start, stop)
        td, source = self.view.read_step_leaves(start, stop), self.view.read_states(start, stop, undecoded)
        states = {name: leaf.rows for name, leaf in source.leaves.items() if leaf.rows is not None}
        if mapped:  # fixed rows are views of the mapped file
            views = [name for name in states if codec_of(self.view.dataset.schema[name]).fixed_rows]
            states.update({name: states[name].clone() for name in views})
        pairs = observation_pairs(leaves_of(td))
        for fn in self.chain[:mapped]:
            for name in states:
                states[name] = self._map_states(fn, name, states[name], where)
            for name in pairs:
                for path in (name, "next/" + name):
                    key = tuple(path.split("/"))
                    td.set(key, self._map_states(fn, name, td.get(key), where))
        for name, rows in states.items():
            key = tuple(name.split("/"))
            td.set(key, rows.index_select(0, source.place))
            td.set(("next", *key), rows.index_select(0, source.place + 1))
        unchanged = {name: leaf for name, leaf in source.leaves.items() if states.get(name) is leaf.rows}
        return td, replace(source, leaves=unchanged) if unchanged else None

    def _map_states(self, fn: BoundFunction, name: str, rows: torch.Tensor, where: str) -> torch.Tensor:
        with self.guard(fn.name, where):
            return fn.map_states(name, rows)

    # -- calling -------------------------------------------------------------------------------------------------------

    def _apply_to_batch(
        self, td: TensorDict, span: Chunk, mapped: int, counts: ResultCounts, source: SourceStates | None
    ) -> ResultBatch:
        at = self._at(span, counts)
        columns = self._columns(td, at, self.chain[mapped:])
        done = columns["next/done"].view(-1).numpy()
        edges = np.clip(self.view.episodes.starts[span.first : span.last + 1], span.start, span.stop) - span.start
        dones = np.diff(np.concatenate([[0], np.cumsum(done)])[edges])
        return ResultBatch(at.where, columns, span.first, dones, len(td), source)

    def _at(self, span: Chunk, counts: ResultCounts) -> InputSteps:
        last_rows = self.view.episodes.starts[1:][span.first : span.last] - 1
        ends = torch.from_numpy(last_rows[last_rows < span.stop] - span.start)
        steps = torch.arange(span.start, span.stop, device="cpu")
        return InputSteps(steps, ends, self._describe(span.start, span.stop), counts)

    def _columns(self, td: TensorDict, at: InputSteps, chain: Sequence[BoundFunction]) -> Columns:
        """The result of several functions for a batch."""
        nans = count_nans(leaves_of(td))  # before a function changes it
        for fn in chain[:-1]:
            td = self._stored_result(fn, td, at)
        columns = self._last_result(td, at, chain)
        at.counts.nans += count_nans(columns) - nans
        return columns

    def _apply_to_episodes(
        self, td: TensorDict, span: Chunk, mapped: int, counts: ResultCounts, source: SourceStates | None
    ) -> ResultBatch:
        chain = self.chain[mapped:]
        name, copy = (chain or self.chain)[-1].name, bool(chain) and chain[-1].runs_users_code
        pieces: list[Columns] = []
        wheres: list[str] = []
        episodes = self._episodes(span)
        places: list[torch.Tensor] = []
        dones = np.zeros(span.last - span.first, np.int64)
        lost_edges = np.zeros(span.last - span.first, np.int64)
        has_nans = any(count_nans(leaves_of(td)).values())
        for number, (low, high) in enumerate(episodes):
            self.seed(low)
            at = InputSteps(low, None, self._describe(low, high), counts)
            rows = slice(low - span.start, high - span.start)
            episode = EpisodePiece(td[rows], True, True)
            nans = count_nans(leaves_of(episode.td)) if has_nans else Counter()
            kept, edges = 0, 0
            for piece in self._pieces(episode, at, chain[:-1]):
                columns = self._last_result(piece.td, at, chain)
                if columns is None:
                    continue
                if has_nans:
                    counts.nans += count_nans(columns)
                kept += len(columns["next/done"])
                dones[number] += int(columns["next/done"].sum())
                edges |= FIRST * piece.is_first | LAST * piece.is_last
                is_only = len(episodes) == 1 and piece.is_first and piece.is_last
                pieces.append(copied(columns) if copy and not is_only else columns)
                wheres.append(at.where)
            if not kept:
                continue
            counts.nans -= nans
            lost_edges[number] = FIRST + LAST - edges
            if source is not None:
                places.append(source.place[rows])
                source = source if kept == high - low else None
        if source is not None and places:
            source = replace(source, place=torch.cat(places))
        where, whole = self._describe(span.start, span.stop), concatenate(pieces, name, wheres) if pieces else {}
        if not has_nans:  # nothing to subtract: all episodes are counted at once
            counts.nans += count_nans(whole)
        return ResultBatch(where, whole, span.first, dones, len(td), source, lost_edges)

    def _pieces(self, episode: EpisodePiece, at: InputSteps, chain: Sequence[BoundFunction]) -> Iterator[EpisodePiece]:
        """The input of the function after ``chain`` for an episode: one episode, several or none.

        Use each piece before requesting the next one, because functions may reuse the memory of results.
        """
        if not chain:
            yield episode
            return
        td = self._stored_result(chain[0], episode.td, at)
        if td is not None:
            for piece in EpisodePiece(td, episode.is_first, episode.is_last).episodes():
                yield from self._pieces(piece, at, chain[1:])

    def _stored_result(self, fn: BoundFunction, td: TensorDictBase, at: InputSteps) -> Any:
        """The result of a function as it would be read if it had been stored; None if it drops the episode."""
        if not fn.runs_users_code:
            out = self._call(fn, td, at)
            if out is None or keeps_bookkeeping(td, out):
                return out
            return as_stored(self._completed(fn, out, bookkeeping_of(td), at), copy=False)
        columns = self._result(fn, td, at)
        return None if columns is None else as_stored(columns, copy=True)

    def _last_result(self, td: TensorDictBase, at: InputSteps, chain: Sequence[BoundFunction]) -> Any:
        """The result of the last function; the input itself if all functions have been applied to states."""
        if chain:
            return self._result(chain[-1], td, at)
        return self._completed(self.chain[-1], td, bookkeeping_of(td), at)

    def _result(self, fn: BoundFunction, td: TensorDictBase, at: InputSteps) -> Columns | None:
        """The result of one function, checked and completed; None if it drops the episode."""
        before = bookkeeping_of(td)
        if at.ends is not None and self.config.chain.per == "sample":
            return complete(self._call_for_samples(fn, td, at), before, fn.name, at.where, at.ends, at.counts)
        out = self._call(fn, td, at)
        return None if at.ends is None and out is None else self._completed(fn, out, before, at)

    def _completed(self, fn: BoundFunction, out: Any, before: Columns, at: InputSteps) -> Columns:
        given, ends = before["next/done"], at.ends
        checked = check_batch(out, fn.name, at.where, None if ends is None else len(given))
        columns = columns_of(checked, fn.name, at.where)
        if ends is None:
            ends = torch.tensor([len(next(iter(columns.values()), given)) - 1], device="cpu")
        return complete(columns, before, fn.name, at.where, ends, at.counts)

    def _call_for_samples(self, fn: BoundFunction, td: TensorDictBase, at: InputSteps) -> Columns:
        collected, steps = CollectedSteps(fn.name), torch.as_tensor(at.steps)
        with unchanged_process(self.opened):
            for row, sample in enumerate(td.unbind(0)):
                where, numbers = f"step {row} of {at.where}", self._numbers(fn, steps[row]) if fn.takes else {}
                with self.guard(fn.name, where):
                    out = fn(sample, self.generator, **numbers)
                if not isinstance(out, TensorDictBase) or out.batch_size:
                    what = f"batch size {list(out.batch_size)}" if isinstance(out, TensorDictBase) else repr(type(out))
                    message = f"{fn.name} returned {what} instead of one step, for {where}"
                    raise ResultError(message, hint="with --per sample a function gets one step and returns one")
                collected.add(out, where)
        return collected.columns

    def _call(self, fn: BoundFunction, td: TensorDictBase, at: InputSteps) -> Any:
        leaves = [(path, rows.dtype, rows.shape) for path, rows in leaves_of(td).items()]  # before it changes them
        numbers = self._numbers(fn, at.steps) if fn.takes else {}
        with (
            unchanged_process(self.opened) if fn.runs_users_code else nullcontext(),
            self.guard(fn.name, at.where, (td.batch_size, leaves)),
        ):
            return fn(td, self.generator, **numbers)

    def _numbers(self, fn: BoundFunction, steps: torch.Tensor | int) -> dict[str, Any]:
        """The step and episode numbers that a function takes as arguments: tensors for a batch, otherwise Python numbers."""
        steps = torch.as_tensor(steps)
        numbers = {STEP: steps.clone(), EPISODE: self.view.dataset.episode_of(steps)}  # not the episodes of slices
        return {name: numbers[name] if steps.ndim else int(numbers[name]) for name in fn.takes}

    @contextmanager
    def guard(self, name: str, where: str, given: _GivenShapes | None = None) -> Iterator[None]:
        """Turn exceptions of functions called in this block into a FunctionError that can be pickled.

        The message describes ``given``.
        """
        try:
            yield
        except RbdataError as error:
            if type(error).__module__ != RbdataError.__module__:  # a user's class, which may not be picklable
                raise _function_error(error, name, where, given) from None
            # Raised on purpose, with a message for the user.
            error.args = (f"{name}: {error.message} ({where})", *error.args[1:])
            raise error.with_traceback(None) from None
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and _can_be_interrupted():
                raise
            raise _function_error(error, name, where, given) from None

    # ------------------------------------------------------------------------------------------------------------------

    def _episodes(self, span: Chunk) -> list[tuple[int, int]]:
        return list(pairwise(self.view.episodes.starts[span.first : span.last + 1].tolist()))

    def _describe(self, start: int, stop: int) -> str:
        starts = self.view.episodes.starts
        first = int(np.searchsorted(starts, start, "right")) - 1
        last = int(np.searchsorted(starts, stop, "left")) - 1
        which = f"episode {first:,}" if first >= last else f"episodes {first:,}..{last:,}"
        return f"{step_range(start, stop)} ({which}) of {self.view.dataset.id}"


def _can_be_interrupted() -> bool:
    """Whether Ctrl-C raises KeyboardInterrupt here; in workers it is ignored, so that only code can raise it."""
    here = threading.current_thread() is threading.main_thread()
    return here and signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None)


def _function_error(error: BaseException, name: str, where: str, given: _GivenShapes | None) -> FunctionError:
    """A FunctionError with the user's part of the traceback, which names the last line in the user's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.rpartition("/")[0] == _HERE and trace.tb_next:
        trace = trace.tb_next
    detail = "".join(traceback.format_exception(type(error), error.with_traceback(trace), trace))
    try:
        text = error.message if isinstance(error, RbdataError) else str(error)
    except Exception:
        text = "(its text cannot be made)"
    description = " ".join(f"{type(error).__name__}: {text}".split())
    hint = None
    if isinstance(error, MemoryError):
        hint = "a smaller --batch-size or fewer --procs need less memory"
    if isinstance(error, NameError) and not isinstance(error, UnboundLocalError):
        hint = (
            "it has the globals that its code names, but for those named in class bodies only: pass others as arguments"
        )
    files = [(frame, frame.filename) for frame in traceback.extract_tb(trace)]
    frames = [frame for frame, path in files if not is_installed_path(path) and path.rpartition("/")[0] != _HERE]
    at = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    shapes = f"; its input: {_describe_input(given)}" if given else ""
    return FunctionError(f"{name} raised {description}{at}, for {where}{shapes}", hint=hint, detail=detail)


def _describe_input(given: _GivenShapes) -> str:
    """``100 steps of action float32 [6], observation float32 [17], ...``."""
    size, leaves = given
    count = "one step" if not size else f"{size[0]:,} step{'s' * (size[0] != 1)}"
    ordered = sorted(leaves, key=lambda leaf: (leaf[0].startswith("next/"), leaf[0]))
    shapes = (f"{path} {dtype_name(dtype)} {list(shape[len(size) :])}" for path, dtype, shape in ordered)
    return f"{count} of {', '.join(shapes)}"


@contextmanager
def isolated(applier: Applier) -> Iterator[None]:
    """Run the work of a chunk with one thread of torch and without gradients, in one thread of the program at a time.

    Afterwards the state of the random generators, which the applier seeds, is restored, as are the settings that functions
    may have changed: with one process, that process is the caller's.
    """
    with own_turn():
        states = torch.get_rng_state(), np.random.get_state(), random.getstate()
        try:
            with unchanged_program(), as_caller(applier.config.caller), torch.no_grad(), by_content():
                torch.set_num_threads(1)
                yield
        finally:
            applier.own_generators.restore()
            torch.set_rng_state(states[0])
            np.random.set_state(states[1])
            random.setstate(states[2])
            applier.view.release()
