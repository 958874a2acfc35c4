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

import random
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from ..errors import FunctionError, RbdataError, SchemaError, reason
from ..storage.codecs.codec import Rows
from ..storage.dataset import Dataset
from ..storage.memory_map import release_pages
from ..storage.window import nest
from .chunks import Chunk, split, step_range, view_episodes
from .function import EPISODE, STEP, Function, Job, check_unedited, load_functions
from .layout import observation_pairs
from .request import ReadOptions
from .result import (
    Columns,
    Tally,
    as_stored,
    bookkeeping_of,
    check_batch,
    check_same,
    columns_of,
    complete,
    copied,
    count_nans,
    dtype_name,
    identical,
    leaves_of,
    runs_of,
    shapes_of,
)


class Stored(NamedTuple):
    """State rows of the input, ``values`` ``[n, ...]``; the first is number ``first`` of ``rows``. None: not decoded."""

    rows: Rows
    first: int
    values: torch.Tensor | None


@dataclass
class Source:
    """What the steps of a batch are in the input.

    ``steps``: their step leaves, as they are mapped. ``states``: state leaves, of which each step begins with row ``place``
    (int64 ``[steps]``) and ends with the row after it.
    """

    steps: Columns
    place: torch.Tensor
    states: dict[str, Stored]

    def unchanged(self, columns: Columns, paths: Iterable[str]) -> set[str]:
        """Those of the paths whose rows in a result of the same steps have the bits that they have in the input."""
        return {path for path in paths if self._is_unchanged(path, columns.get(path))}

    def _is_unchanged(self, path: str, rows: torch.Tensor | None) -> bool:
        name = path.removeprefix("next/")
        stored = self.states.get(name)
        if stored is None or stored.values is None:
            before = self.steps.get(path)
            return stored is not None or (rows is not None and before is not None and identical(rows, before))
        if rows is None or (rows.dtype, rows.shape[1:]) != (stored.values.dtype, stored.values.shape[1:]):
            return False
        done, shift = 0, int(path != name)
        for first, last in runs_of(self.place):  # without a copy of the rows
            count = last - first
            if not identical(rows[done : done + count], stored.values[first + shift : last + shift]):
                return False
            done += count
        return True


class InputView:
    """A dataset as functions get it."""

    def __init__(self, dataset: Dataset, num_frames: int | None, options: ReadOptions) -> None:
        self.dataset, self.options = dataset, options
        self.episodes = view_episodes(self.dataset.episodes, num_frames, options.slice_len)
        self._added_ends = self.episodes.starts[1:][self.episodes.added] - 1

    def read(self, steps: torch.Tensor) -> TensorDict:
        """Steps (int64 ``[n]``, in any order) as TED, batch ``[n]``; no two tensors share memory."""
        from ..storage.replay.around import Around
        from ..storage.replay.batches import read_steps
        from ..storage.replay.storages.dataset_storage import DatasetStorage

        options = self.options
        if options.reads_neighbours:
            gamma = 0.99 if options.n_step is None else options.gamma
            around = Around(frame_stack=options.frame_stack, n_step=options.n_step, gamma=gamma)
            td = read_steps(DatasetStorage(self.dataset), steps, around)
        else:
            td = self.dataset[steps]
        for path, rows in self._added(steps, lambda path: td.get(tuple(path.split("/")))).items():
            td.set(tuple(path.split("/")), rows)
        return td

    def source(self, start: int, stop: int, undecoded: Collection[str] = ()) -> Source:
        """Steps ``start..stop-1`` as they are stored. State leaves in ``undecoded`` are not read, and none are where steps
        depend on others."""
        leaves = self.dataset.rows.items()
        steps = {name: rows.block(start, stop) for name, rows in leaves if rows.leaf.kind == "step"}
        steps |= self._added(torch.arange(start, stop, device="cpu"), steps.__getitem__)
        states = {name: rows for name, rows in leaves if rows.leaf.kind == "state"}
        if not states or self.options.reads_neighbours:
            return Source(steps, torch.arange(stop - start, device="cpu"), {})
        numbers = self.dataset.state_numbers(start, stop)
        first, end = int(numbers[0]), int(numbers[-1]) + 2
        read = {
            name: Stored(rows, first, None if name in undecoded else rows.block(first, end))
            for name, rows in states.items()
        }
        return Source(steps, numbers - first, read)

    def release(self) -> None:
        """Release the pages of the files that were read, which count as memory of this process."""
        for read in getattr(self.dataset, "members", (self.dataset,)):  # of a view
            for rows in read.rows.values():
                for part in vars(rows).values():
                    if isinstance(part, np.ndarray):
                        release_pages(part)

    def _added(self, steps: torch.Tensor, get: Callable[[str], torch.Tensor]) -> Columns:
        """The flags of steps of which some are truncated: an episode of the view ends there, and goes on in the dataset."""
        ends = self._added_ends
        low, high = np.searchsorted(ends, [int(steps.min()), int(steps.max()) + 1])
        if low == high:
            return {}
        is_end = torch.isin(steps, torch.from_numpy(ends[low:high])).view(-1, 1) & ~get("next/terminated")
        return {path: get(path) | is_end for path in ("next/truncated", "next/done")}


@dataclass
class ResultBatch:
    """The result of some steps, empty where every episode was dropped.

    ``columns`` ``[rows, ...]``; ``cut``, ``midway`` bool ``[rows]``: the recording ends after this step; an episode begins
    there whose beginning is missing. ``source``: the steps of the input that the rows are made of, if there are as many.
    ``where`` describes them in messages.
    """

    where: str
    columns: Columns
    cut: torch.Tensor
    midway: torch.Tensor
    source: Source | None


class InputSteps(NamedTuple):
    """The steps of one input: their numbers ``steps``, int64 ``[n]``, of a whole episode its first step.

    ``ends``: the rows where an episode ends; None for a whole episode. ``where`` describes the steps in messages, ``tally``
    counts over the results.
    """

    steps: torch.Tensor | int
    ends: torch.Tensor | None
    where: str
    tally: Tally


class Piece(NamedTuple):
    """What a function gets of a batch or an episode ``[n]``; whether it has the beginning and the end of that, as far as
    functions kept them."""

    td: TensorDictBase
    is_first: bool = True
    is_last: bool = True


class Applier:
    """A view of the input and the functions of a chain, opened in one process."""

    def __init__(self, job: Job) -> None:
        request = job.request
        self.job, self.dataset = job, job.open()
        self.view = InputView(self.dataset, request.num_frames, request.read_options)
        self.chain = load_functions(request.functions, request.args, job.code)
        self.names, self.whole = job.chain.names, job.chain.per == "episode"
        check_unedited(request.functions, job.code, job.records)
        for fn, statistics in zip(self.chain, job.statistics):
            fn.resolve(job.code)
            fn.statistics = statistics
        self.generator = torch.Generator()

    @cached_property
    def _mapped(self) -> int:
        """How many functions at the beginning of the chain are applied to states, judged by the first row or episode."""
        per, neighbours = self.job.chain.per, self.view.options.reads_neighbours
        if neighbours or per == "sample" or not self.dataset.schema.states:
            return 0
        stop = int(self.view.episodes.starts[1]) if self.whole else 1
        td: Any = self.view.read(torch.arange(stop, device="cpu"))
        for number, fn in enumerate(self.chain):
            with self.guard(fn.name, self._describe(0, stop)):
                if fn.traits is None or not fn.traits.applies_to_states(td, **fn.args):
                    return number
                td = fn(td, self.generator)
        return len(self.chain)

    def split(self, chunk: Chunk) -> list[Chunk]:
        """The batches of a chunk: what is read at a time."""
        return split(chunk, self.view.episodes, self.job.batch, self.whole)

    def apply(self, span: Chunk, tally: Tally, undecoded: Collection[str] = ()) -> ResultBatch:
        """The result of all functions for a batch, or for some episodes; they do not get the state leaves ``undecoded``."""
        mapped = 0 if undecoded else self._mapped
        whole, chain = self.whole, self.chain[mapped:]
        source: Source | None
        td, source = self._read(span, mapped, undecoded)
        nans = count_nans(leaves_of(td))  # before a function changes it
        cut, midway = self._edges(span)
        pieces: list[tuple[Columns, torch.Tensor, torch.Tensor]] = []
        places: list[torch.Tensor] = []
        for given, at in self._inputs_of(td, span, tally):
            first = int(at.steps) - span.start if whole else 0
            last, kept = first + len(given) - 1, len(pieces)
            rewards = given.get(("next", "reward")).double() if whole else None
            for columns, piece in self._results(given, at, chain):
                if not whole:
                    pieces.append((columns, cut, midway))
                    continue
                if pieces:
                    check_same(columns, shapes_of(pieces[0][0]), self.names[-1], at.where)
                edges = torch.zeros(2, len(columns["next/done"]), dtype=torch.bool, device="cpu")
                edges[0, -1] = cut[last] & piece.is_last
                edges[1, 0] = midway[first] & piece.is_first
                pieces.append((copied(columns) if chain and chain[-1].is_own else columns, *edges))
            made = pieces[kept:]
            if rewards is not None:
                _compare_returns(rewards, [columns for columns, _, _ in made], tally)
            if source is not None and made:
                is_whole = sum(len(cuts) for _, cuts, _ in made) == len(given)
                places.append(source.place[first : last + 1])
                source = source if is_whole else None
        where = self._describe(span.start, span.stop)
        if not pieces:
            return ResultBatch(where, {}, cut[:0], midway[:0], None)
        columns, cut, midway = pieces[0]
        if len(pieces) > 1:
            columns = {path: torch.cat([columns[path] for columns, _, _ in pieces]) for path in columns}
            cut, midway = torch.cat([cut for _, cut, _ in pieces]), torch.cat([midway for _, _, midway in pieces])
        tally.add_nans(columns, nans)
        ended = columns["next/truncated"] & ~columns["next/terminated"]
        if source is not None:
            source.place = torch.cat(places)
        return ResultBatch(where, columns, cut & ended.view(-1), midway, source)

    def apply_first(self, count: int, chunk: Chunk) -> Iterator[tuple[TensorDictBase, str]]:
        """The inputs of function ``count`` for a chunk, by batches or episodes, with a description of each."""
        # The next function ignores observations as well: they need not be read.
        ignored = [leaf.name for leaf in self.dataset.schema.states] if count < self.job.ignoring else []
        for span in self.split(chunk):
            td, _ = self._read(span, 0, ignored)
            for piece, at in self._inputs_of(td, span, Tally()):
                for given in self._through(piece, at, self.chain[:count]):
                    yield given.td, at.where

    def apply_to_steps(self, steps: torch.Tensor) -> Columns:
        """The results of all functions for steps in any order; not for whole episodes."""
        self._seed(int(steps[0]))
        where = f"{len(steps)} steps between {int(steps[0]):,} and {int(steps[-1]):,} of {self.dataset.id}"
        at = InputSteps(steps, torch.zeros(0, dtype=torch.int64, device="cpu"), where, Tally())
        ((columns, _),) = self._results(self.view.read(steps), at, self.chain)
        return columns

    def _seed(self, step: int) -> None:
        """Seed all random generators for the batch or the episode that begins with ``step``."""
        seed = int(np.random.SeedSequence([self.job.request.seed, step]).generate_state(1, np.uint64)[0])
        self.generator.manual_seed(seed >> 1)
        torch.default_generator.manual_seed(seed >> 1)  # torch.manual_seed takes a hundred times as long
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed >> 1)
        np.random.seed(seed % (1 << 32))
        random.seed(seed)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read(self, span: Chunk, mapped: int, undecoded: Collection[str]) -> tuple[TensorDict, Source]:
        """Steps to which the first ``mapped`` functions have been applied, and what they are in the input, of states those that
        are still as stored."""
        source = self.view.source(span.start, span.stop, undecoded)
        if self.view.options.reads_neighbours:
            return self.view.read(torch.arange(span.start, span.stop, device="cpu")), source
        td = nest({name: rows.clone() for name, rows in source.steps.items()}, (span.rows,))
        states = {name: stored.values for name, stored in source.states.items() if stored.values is not None}
        pairs = observation_pairs(source.steps) if mapped else []
        for fn in self.chain[:mapped]:
            with self.guard(fn.name, self._describe(span.start, span.stop)):
                states = {name: fn.map_states(name, rows) for name, rows in states.items()}
                for name in pairs:
                    for key in (tuple(name.split("/")), ("next", *name.split("/"))):
                        td.set(key, fn.map_states(name, td.get(key)))
        for name, rows in states.items():
            key = tuple(name.split("/"))
            td.set(key, rows.index_select(0, source.place))
            td.set(("next", *key), rows.index_select(0, source.place + 1))
        source.states = {name: one for name, one in source.states.items() if states.get(name) is one.values}
        return td, source

    def _inputs_of(self, td: TensorDict, span: Chunk, tally: Tally) -> Iterator[tuple[TensorDict, InputSteps]]:
        """What the first function gets, the whole batch or each episode; the random generators are seeded for it."""
        starts = self.view.episodes.starts[span.first : span.last + 1]
        if not self.whole:
            self._seed(span.start)
            ends = torch.from_numpy(starts[1:][starts[1:] <= span.stop] - 1 - span.start)
            steps = torch.arange(span.start, span.stop, device="cpu")
            yield td, InputSteps(steps, ends, self._describe(span.start, span.stop), tally)
            return
        for low, high in pairwise(starts.tolist()):
            self._seed(low)
            yield td[low - span.start : high - span.start], InputSteps(low, None, self._describe(low, high), tally)

    def _edges(self, span: Chunk) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the recording ends in an episode, and where an episode begins whose beginning is missing: bool ``[steps]``."""
        episodes, marks = self.view.episodes, torch.zeros(2, span.rows, dtype=torch.bool, device="cpu")
        numbers = np.arange(span.first, span.last)
        ends, begins = episodes.starts[numbers + 1] - 1, episodes.starts[numbers]
        marks[0, ends[episodes.cut[numbers] & (ends < span.stop)] - span.start] = True
        marks[1, begins[episodes.midway[numbers] & (begins >= span.start)] - span.start] = True
        return marks[0], marks[1]

    # -- calling -------------------------------------------------------------------------------------------------------

    def _results(
        self, td: TensorDictBase, at: InputSteps, chain: Sequence[Function]
    ) -> Iterator[tuple[Columns, Piece]]:
        """The results of a chain for a batch or an episode: one, several or none. Use each before requesting the next one."""
        if not chain:  # all functions have been applied to states
            yield self._completed(self.names[-1], td, bookkeeping_of(td), at), Piece(td)
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
        if at.ends is not None and self.job.chain.per == "sample":
            return complete(self._call_for_samples(fn, td, at), before, fn.name, at.where, at.ends, at.tally)
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
        return complete(columns, before, name, at.where, ends, at.tally)

    def _call_for_samples(self, fn: Function, td: TensorDictBase, at: InputSteps) -> Columns:
        steps = torch.as_tensor(at.steps)
        first: Columns = {}
        kinds: dict[str, Any] = {}
        # A row per step with the elements of all tensors of a dtype: copying each tensor takes twice as long.
        alike: list[list[str]] = []
        results: list[list[torch.Tensor]] = []
        for row, sample in enumerate(td.unbind(0)):
            try:
                out = fn(sample, self.generator, **(self._numbers(fn, steps[row]) if fn.takes else {}))
            except BaseException as error:
                raise _described(error, fn.name, f"step {row} of {at.where}", None) from None
            if not isinstance(out, TensorDictBase) or out.batch_size:
                what = f"batch size {list(out.batch_size)}" if isinstance(out, TensorDictBase) else repr(type(out))
                message = f"{fn.name} returned {what} instead of one step, for step {row} of {at.where}"
                raise SchemaError(message, hint="with --per sample a function gets one step and returns one")
            leaves = leaves_of(out)
            found = {path: (getattr(value, "dtype", None), value.shape) for path, value in leaves.items()}
            if found != kinds:  # of the first step, or of one that is refused
                columns = columns_of(out.unsqueeze(0), fn.name, f"step {row} of {at.where}")
                check_same(columns, shapes_of(first or columns), fn.name, f"step {row} of {at.where}")
                first, kinds = columns, found
                dtypes = {dtype: None for dtype, _ in kinds.values()}
                alike = [[path for path in kinds if kinds[path][0] == dtype] for dtype in dtypes]
            results.append([torch.cat([_flat(leaves[path]) for path in paths]) for paths in alike])
        made: Columns = {}
        for paths, rows in zip(alike, zip(*results)):
            parts = torch.stack(rows).detach().split([kinds[path][1].numel() for path in paths], 1)
            made |= {path: part.reshape(-1, *kinds[path][1]) for path, part in zip(paths, parts)}
        return {path: made[path] for path in kinds}

    def _numbers(self, fn: Function, steps: torch.Tensor | int) -> dict[str, Any]:
        """The step and episode numbers that a function takes as arguments: tensors for a batch, otherwise Python numbers."""
        if not fn.takes:
            return {}
        steps = torch.as_tensor(steps)
        numbers = {STEP: steps.clone(), EPISODE: self.dataset.episode_of(steps)}  # not the episodes of slices
        return {name: numbers[name] if steps.ndim else int(numbers[name]) for name in fn.takes}

    @contextmanager
    def guard(self, name: str, where: str, given: tuple[torch.Size, list[Any]] | None = None) -> Iterator[None]:
        """Turn exceptions of functions called in this block into a FunctionError that can be pickled.

        The message describes ``given``: the batch size of the input, and its leaves with their dtypes and shapes.
        """
        try:
            yield
        except BaseException as error:
            raise _described(error, name, where, given) from None

    def _describe(self, start: int, stop: int) -> str:
        starts = self.view.episodes.starts
        first = int(np.searchsorted(starts, start, "right")) - 1
        last = int(np.searchsorted(starts, stop, "left")) - 1
        which = f"episode {first:,}" if first >= last else f"episodes {first:,}..{last:,}"
        return f"{step_range(start, stop)} ({which}) of {self.dataset.id}"


def _flat(value: torch.Tensor) -> torch.Tensor:
    return value if value.ndim == 1 else value.reshape(-1)


def _compare_returns(before: torch.Tensor, made: Sequence[Columns], tally: Tally) -> None:
    """Count what became of an episode: nothing, or one with another return. Sums of the same rewards differ by rounding."""
    if not made:
        tally.dropped += 1
        return
    change = sum(float(columns["next/reward"].double().sum()) for columns in made) - float(before.sum())
    ends = sum(int(columns["next/done"].sum()) for columns in made)
    tally.returns |= ends > 1 or abs(change) > 1e-6 * max(1e-3, float(before.abs().sum()))


# -- errors of functions ---------------------------------------------------------------------------------------------------

_HERE = str(Path(__file__).parent)


def _described(
    error: BaseException, name: str, where: str, given: tuple[torch.Size, list[Any]] | None
) -> BaseException:
    """The exception to be raised for one that a function raised: with the user's part of the traceback, which names the last
    line in the user's code."""
    if isinstance(error, KeyboardInterrupt):
        return error
    if isinstance(error, RbdataError) and type(error).__module__ == RbdataError.__module__:
        # Raised on purpose, with a message for the user. (A user's class may not be picklable.)
        error.args = (f"{name}: {error.message} ({where})", *error.args[1:])
        return error.with_traceback(None)
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
