"""The steps of a chunk through the chain of functions: read, call, check. In workers.

Functions get TensorDicts: batches, single steps, or whole episodes. The first functions of a chain that can be applied to
states (`functions.traits`) get each state once instead, not as observation and again as successor.

A chain gives the same result as one run per function: the result of each function is checked and completed as if it were
stored, and the next function gets the data as they would be read. With whole episodes, it gets the episodes of that result.

The input is read as functions get it (`InputView`): the episodes of `chunks` with the options of `request.ReadOptions`.
Frame stacks and n-step returns are computed as by a sampler (`storage.replay`): they are read from the whole dataset and end
at the edges of its episodes, not of slices.
"""

from __future__ import annotations

import hashlib
import random
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from ..errors import FunctionError, RbdataError, SchemaError, is_interrupt, reason
from ..storage.codecs import codec_of
from ..storage.dataset import Dataset
from ..storage.memory_map import release_pages
from ..storage.window import nest
from .chunks import FIRST, LAST, Chunk, split, step_range, view_episodes
from .function import EPISODE, STEP, Function, check_unedited, load_functions
from .layout import observation_pairs
from .request import ReadOptions, RunConfig
from .result import (
    Columns,
    ResultCounts,
    SourceRows,
    SourceStates,
    as_bytes,
    as_stored,
    bookkeeping_of,
    check_batch,
    check_same,
    columns_of,
    complete,
    copied,
    count_nans,
    dtype_name,
    leaves_of,
    shapes_of,
)

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

    def read_scattered(self, steps: torch.Tensor) -> TensorDict:
        """Steps in any order, as ``read`` returns them."""
        td = self._read_with_neighbours(steps) if self.options.reads_neighbours else self.dataset[steps]
        return self._truncate_added_ends(td, steps)

    def read_stored(self, start: int, stop: int, undecoded: Collection[str]) -> tuple[TensorDict, SourceStates | None]:
        """The step leaves of ``start..stop-1``, and the states of these steps as they are stored, once each.

        The rows of leaves in ``undecoded`` are not read. Only if steps are read without their neighbours.
        """
        steps = {name: rows for name, rows in self.dataset.rows.items() if rows.leaf.kind == "step"}
        td = nest({name: rows.block(start, stop).clone() for name, rows in steps.items()}, (stop - start,))
        td = self._truncate_added_ends(td, torch.arange(start, stop, device="cpu"))
        states = {name: rows for name, rows in self.dataset.rows.items() if rows.leaf.kind == "state"}
        if not states:
            return td, None
        numbers = self.dataset.state_numbers(start, stop)
        first, end = int(numbers[0]), int(numbers[-1]) + 2
        leaves = {
            name: SourceRows(rows, first, None if name in undecoded else rows.block(first, end))
            for name, rows in states.items()
        }
        return td, SourceStates(numbers - first, leaves)

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
        from ..storage.replay.loading import read_steps

        options = self.options
        return read_steps(self.dataset, steps, options.frame_stack, options.n_step, options.gamma)

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


@dataclass
class ResultBatch:
    """The result of some steps: ``columns`` ``[rows, ...]``, empty where every episode was dropped.

    ``dones``: the done rows of each episode of the view, from episode ``first`` on; ``lost_edges``: FIRST and LAST of each.
    ``source``: the states of the input that the rows may equal; None if there are none. ``where`` describes the steps in
    messages.
    """

    where: str
    columns: Columns
    first: int
    dones: np.ndarray
    steps_in: int
    source: SourceStates | None
    lost_edges: np.ndarray | None = None

    def digest(self) -> bytes:
        """Of all values and their types."""
        made = hashlib.blake2b()
        for path, rows in self.columns.items():
            made.update(f"{path} {rows.dtype} {list(rows.shape)}".encode())
            made.update(as_bytes(rows).data)
        return made.digest()


class InputSteps(NamedTuple):
    """The steps of one input: their numbers ``steps``, int64 ``[n]``, of a whole episode its first step.

    ``ends``: the rows where an episode ends; None for a whole episode. ``where`` describes the steps in messages, ``counts``
    counts over the results.
    """

    steps: torch.Tensor | int
    ends: torch.Tensor | None
    where: str
    counts: ResultCounts


class Piece(NamedTuple):
    """What a function gets of a batch or an episode ``[n]``; whether it has the beginning and the end of that, as far as
    functions kept them."""

    td: TensorDictBase
    is_first: bool = True
    is_last: bool = True


class Applier:
    """A view of the input and the functions of a chain, opened in one process."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.view = InputView(config.open(), config.num_frames, config.read_options)
        self.chain = load_functions(config.functions, config.args, config.code)
        check_unedited(config.functions, config.code, config.records)
        for fn, statistics in zip(self.chain, config.statistics):
            fn.resolve(config.code)
            fn.statistics = statistics
        self.name = self.chain[-1].name
        self.generator = torch.Generator()

    @property
    def runs_own_code(self) -> bool:
        return any(fn.is_own for fn in self.chain)

    @cached_property
    def _mapped(self) -> int:
        """How many functions at the beginning of the chain are applied to states, judged by the first row or episode."""
        config = self.config
        if config.read_options.reads_neighbours or config.chain.per == "sample" or not self.view.dataset.schema.states:
            return 0
        stop = int(self.view.episodes.starts[1]) if config.whole_episodes else 1
        td: Any = self.view.read(0, stop)
        for number, fn in enumerate(self.chain):
            with self.guard(fn.name, self._describe(0, stop)):
                if fn.traits is None or not fn.traits.applies_to_states(td, **fn.args):
                    return number
                td = fn(td, self.generator)
        return len(self.chain)

    def apply(self, chunk: Chunk, counts: ResultCounts, undecoded: Collection[str] = ()) -> Iterator[ResultBatch]:
        """The results of all functions for the batches of a chunk. Their counts are added to ``counts``.

        Functions do not get the state leaves ``undecoded``.
        """
        config, episodes = self.config, self.view.episodes
        mapped = 0 if undecoded else self._mapped
        apply = self._apply_to_episodes if config.whole_episodes else self._apply_to_batch
        for span in split(chunk, episodes, config.batch, config.whole_episodes):
            td, source = self._read(span, mapped, undecoded)
            yield apply(td, span, source, self.chain[mapped:], counts)

    def apply_first(self, count: int, chunk: Chunk) -> Iterator[tuple[TensorDictBase, str]]:
        """The inputs of function ``count`` for a chunk, by batches or episodes, with a description of each."""
        config = self.config
        # The next function ignores observations as well: they need not be read.
        ignored = [leaf.name for leaf in self.view.dataset.schema.states] if count < config.ignoring else []
        for span in split(chunk, self.view.episodes, config.batch, config.whole_episodes):
            td, _ = self._read(span, 0, ignored)
            for piece, at in self._inputs_of(td, span, ResultCounts()):
                for given in self._through(piece, at, self.chain[:count]):
                    yield given.td, at.where

    def apply_to_steps(self, steps: torch.Tensor) -> Columns:
        """The results of all functions for steps in any order; not for whole episodes."""
        self._seed(int(steps[0]))
        td = self.view.read_scattered(steps)
        where = f"{len(steps)} steps between {int(steps[0]):,} and {int(steps[-1]):,} of {self.view.dataset.id}"
        no_ends = torch.zeros(0, dtype=torch.int64, device="cpu")
        ((columns, _),) = self._results(td, InputSteps(steps, no_ends, where, ResultCounts()), self.chain)
        return columns

    def _seed(self, step: int) -> None:
        """Seed all random generators for the batch or the episode that begins with ``step``."""
        seed = int(np.random.SeedSequence([self.config.seed, step]).generate_state(1, np.uint64)[0])
        self.generator.manual_seed(seed >> 1)
        torch.default_generator.manual_seed(seed >> 1)  # torch.manual_seed takes a hundred times as long
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed >> 1)
        np.random.seed(seed % (1 << 32))
        random.seed(seed)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read(self, span: Chunk, mapped: int, undecoded: Collection[str]) -> tuple[TensorDict, SourceStates | None]:
        """Steps to which the first ``mapped`` functions have been applied, and the states that are still as stored."""
        if self.config.read_options.reads_neighbours:
            return self.view.read(span.start, span.stop), None
        where = self._describe(span.start, span.stop)
        td, source = self.view.read_stored(span.start, span.stop, undecoded)
        if source is None:
            return td, None
        states = {name: leaf.rows for name, leaf in source.leaves.items() if leaf.rows is not None}
        if mapped:  # fixed rows are views of the mapped file
            views = [name for name in states if codec_of(self.view.dataset.schema[name]).fixed_rows]
            states.update({name: states[name].clone() for name in views})
        pairs = observation_pairs(leaves_of(td))
        for fn in self.chain[:mapped]:
            with self.guard(fn.name, where):
                states = {name: fn.map_states(name, rows) for name, rows in states.items()}
                for name in pairs:
                    for key in (tuple(name.split("/")), ("next", *name.split("/"))):
                        td.set(key, fn.map_states(name, td.get(key)))
        for name, rows in states.items():
            key = tuple(name.split("/"))
            td.set(key, rows.index_select(0, source.place))
            td.set(("next", *key), rows.index_select(0, source.place + 1))
        unchanged = {name: leaf for name, leaf in source.leaves.items() if states.get(name) is leaf.rows}
        return td, replace(source, leaves=unchanged) if unchanged else None

    def _inputs_of(self, td: TensorDict, span: Chunk, counts: ResultCounts) -> Iterator[tuple[TensorDict, InputSteps]]:
        """What the first function gets, the whole batch or each episode; the random generators are seeded for it."""
        starts = self.view.episodes.starts[span.first : span.last + 1]
        if not self.config.whole_episodes:
            self._seed(span.start)
            ends = torch.from_numpy(starts[1:][starts[1:] <= span.stop] - 1 - span.start)
            steps = torch.arange(span.start, span.stop, device="cpu")
            yield td, InputSteps(steps, ends, self._describe(span.start, span.stop), counts)
            return
        for low, high in pairwise(starts.tolist()):
            self._seed(low)
            yield td[low - span.start : high - span.start], InputSteps(low, None, self._describe(low, high), counts)

    # -- calling -------------------------------------------------------------------------------------------------------

    def _apply_to_batch(
        self, td: TensorDict, span: Chunk, source: SourceStates | None, chain: Sequence[Function], counts: ResultCounts
    ) -> ResultBatch:
        nans = count_nans(leaves_of(td))  # before a function changes it
        ((td, at),) = self._inputs_of(td, span, counts)
        ((columns, _),) = self._results(td, at, chain)
        counts.add_nans(columns, nans)
        done = columns["next/done"].view(-1).numpy()
        edges = np.clip(self.view.episodes.starts[span.first : span.last + 1], span.start, span.stop) - span.start
        dones = np.diff(np.concatenate([[0], np.cumsum(done)])[edges])
        return ResultBatch(at.where, columns, span.first, dones, span.rows, source)

    def _apply_to_episodes(
        self, td: TensorDict, span: Chunk, source: SourceStates | None, chain: Sequence[Function], counts: ResultCounts
    ) -> ResultBatch:
        pieces: list[Columns] = []
        places: list[torch.Tensor] = []
        dones, lost_edges = np.zeros(span.last - span.first, np.int64), np.zeros(span.last - span.first, np.int64)
        nans = count_nans(leaves_of(td))
        for number, (episode, at) in enumerate(self._inputs_of(td, span, counts)):
            kept, edges, length = 0, 0, len(episode)
            for columns, piece in self._results(episode, at, chain):
                if pieces:
                    check_same(columns, shapes_of(pieces[0]), self.name, at.where)
                kept += len(columns["next/done"])
                dones[number] += int(columns["next/done"].sum())
                edges |= FIRST * piece.is_first | LAST * piece.is_last
                pieces.append(copied(columns) if chain and chain[-1].is_own else columns)
            if not kept:
                continue
            lost_edges[number] = FIRST + LAST - edges
            if source is not None:
                first = int(self.view.episodes.starts[span.first + number]) - span.start
                places.append(source.place[first : first + length])
                source = source if kept == length else None
        if source is not None and places:
            source = replace(source, place=torch.cat(places))
        whole = {path: torch.cat([piece[path] for piece in pieces]) for path in pieces[0]} if pieces else {}
        counts.add_nans(whole, nans)
        where = self._describe(span.start, span.stop)
        return ResultBatch(where, whole, span.first, dones, span.rows, source, lost_edges)

    def _results(
        self, td: TensorDictBase, at: InputSteps, chain: Sequence[Function]
    ) -> Iterator[tuple[Columns, Piece]]:
        """The results of a chain for a batch or an episode: one, several or none. Use each before requesting the next one."""
        if not chain:  # all functions have been applied to states
            yield self._completed(self.name, td, bookkeeping_of(td), at), Piece(td)
            return
        for piece in self._through(td, at, chain[:-1]):
            columns = self._result(chain[-1], piece.td, at)
            if columns is not None:
                yield columns, piece

    def _through(self, td: TensorDictBase, at: InputSteps, chain: Sequence[Function]) -> Iterator[Piece]:
        """What the function after ``chain`` gets of a batch, or of an episode: one episode, several or none."""
        if not chain:
            yield Piece(td)
            return
        for given in self._through(td, at, chain[:-1]):
            columns = self._result(chain[-1], given.td, at)
            if columns is None:
                continue
            out = as_stored(copied(columns) if chain[-1].is_own else columns)
            if at.ends is not None:
                yield Piece(out)
                continue
            edges = [0, *(columns["next/done"].view(-1).nonzero().squeeze(1) + 1).tolist()]
            for low, high in pairwise(edges):
                piece = out if len(edges) == 2 else out[low:high]
                yield Piece(piece, given.is_first and not low, given.is_last and high == len(out))

    def _result(self, fn: Function, td: TensorDictBase, at: InputSteps) -> Columns | None:
        """The result of one function, checked and completed; None if it drops the episode."""
        before = bookkeeping_of(td)
        if at.ends is not None and self.config.chain.per == "sample":
            return complete(self._call_for_samples(fn, td, at), before, fn.name, at.where, at.ends, at.counts)
        shapes = [(path, rows.dtype, rows.shape) for path, rows in leaves_of(td).items()]  # before it changes them
        with self.guard(fn.name, at.where, (td.batch_size, shapes)):
            out = fn(td, self.generator, **self._numbers(fn, at.steps))
        return None if at.ends is None and out is None else self._completed(fn.name, out, before, at)

    def _completed(self, name: str, out: Any, before: Columns, at: InputSteps) -> Columns:
        given, ends = before["next/done"], at.ends
        checked = check_batch(out, name, at.where, None if ends is None else len(given))
        columns = columns_of(checked, name, at.where)
        if ends is None:
            ends = torch.tensor([len(checked) - 1], device="cpu")
        return complete(columns, before, name, at.where, ends, at.counts)

    def _call_for_samples(self, fn: Function, td: TensorDictBase, at: InputSteps) -> Columns:
        steps = torch.as_tensor(at.steps)
        first: Columns = {}
        kinds: dict[str, Any] = {}
        # A row per step with the elements of all tensors of a dtype: copying each tensor separately takes twice as long.
        paths: dict[torch.dtype, list[str]] = {}
        rows: dict[torch.dtype, list[torch.Tensor]] = {}
        for row, sample in enumerate(td.unbind(0)):
            where = f"step {row} of {at.where}"
            with self.guard(fn.name, where):
                out = fn(sample, self.generator, **(self._numbers(fn, steps[row]) if fn.takes else {}))
            if not isinstance(out, TensorDictBase) or out.batch_size:
                what = f"batch size {list(out.batch_size)}" if isinstance(out, TensorDictBase) else repr(type(out))
                message = f"{fn.name} returned {what} instead of one step, for {where}"
                raise SchemaError(message, hint="with --per sample a function gets one step and returns one")
            leaves = leaves_of(out)
            found: dict[str, Any] = {
                path: (getattr(value, "dtype", None), value.shape) for path, value in leaves.items()
            }
            if found != kinds:  # of the first step, or of one that is refused
                columns = columns_of(out.unsqueeze(0), fn.name, where)
                check_same(columns, shapes_of(first or columns), fn.name, where)
                first, kinds = columns, found
                for path, (dtype, _) in kinds.items():
                    paths.setdefault(dtype, []).append(path)
            for dtype, names in paths.items():
                rows.setdefault(dtype, []).append(torch.cat([_flat(leaves[name]) for name in names]))
        made: Columns = {}
        for dtype, names in paths.items():
            shapes = [kinds[name][1] for name in names]
            parts = torch.stack(rows[dtype]).detach().split([shape.numel() for shape in shapes], 1)
            made |= {name: part.reshape(-1, *shape) for name, part, shape in zip(names, parts, shapes)}
        return {path: made[path] for path in kinds}

    def _numbers(self, fn: Function, steps: torch.Tensor | int) -> dict[str, Any]:
        """The step and episode numbers that a function takes as arguments: tensors for a batch, otherwise Python numbers."""
        if not fn.takes:
            return {}
        steps = torch.as_tensor(steps)
        numbers = {STEP: steps.clone(), EPISODE: self.view.dataset.episode_of(steps)}  # not the episodes of slices
        return {name: numbers[name] if steps.ndim else int(numbers[name]) for name in fn.takes}

    @contextmanager
    def guard(self, name: str, where: str, given: tuple[torch.Size, list[Any]] | None = None) -> Iterator[None]:
        """Turn exceptions of functions called in this block into a FunctionError that can be pickled.

        The message describes ``given``: the batch size of the input, and its leaves with their dtypes and shapes.
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
            if is_interrupt(error):
                raise
            raise _function_error(error, name, where, given) from None

    def _describe(self, start: int, stop: int) -> str:
        starts = self.view.episodes.starts
        first = int(np.searchsorted(starts, start, "right")) - 1
        last = int(np.searchsorted(starts, stop, "left")) - 1
        which = f"episode {first:,}" if first >= last else f"episodes {first:,}..{last:,}"
        return f"{step_range(start, stop)} ({which}) of {self.view.dataset.id}"


def _flat(value: torch.Tensor) -> torch.Tensor:
    return value if value.ndim == 1 else value.reshape(-1)


_HERE = str(Path(__file__).parent)


def _function_error(
    error: BaseException, name: str, where: str, given: tuple[torch.Size, list[Any]] | None
) -> FunctionError:
    """A FunctionError with the user's part of the traceback, which names the last line in the user's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.rpartition("/")[0] == _HERE and trace.tb_next:
        trace = trace.tb_next
    detail = "".join(traceback.format_exception(type(error), error.with_traceback(trace), trace))
    description = " ".join(f"{type(error).__name__}: {reason(error)}".split())
    frames = [one for one in traceback.extract_tb(trace) if "site-packages" not in one.filename]
    at = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    shapes = f"; its input: {_describe_input(*given)}" if given else ""
    hint = "a smaller --batch-size or fewer --procs need less memory" if isinstance(error, MemoryError) else None
    return FunctionError(f"{name} raised {description}{at}, for {where}{shapes}", hint=hint, detail=detail)


def _describe_input(size: torch.Size, leaves: list[Any]) -> str:
    """``100 steps of action float32 [6], observation float32 [17], ...``."""
    count = "one step" if not size else f"{size[0]:,} step{'s' * (size[0] != 1)}"
    ordered = sorted(leaves, key=lambda leaf: (leaf[0].startswith("next/"), leaf[0]))
    shapes = (f"{path} {dtype_name(dtype)} {list(shape[len(size) :])}" for path, dtype, shape in ordered)
    return f"{count} of {', '.join(shapes)}"
