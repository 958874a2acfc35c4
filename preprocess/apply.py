"""The steps of a chunk through the chain of functions: read, call, check. In workers.

Functions get TensorDicts: batches, single steps, or whole episodes. The first functions of a chain that can be applied to
states (`functions.traits`) get each state once instead, not as observation and again as successor.

The result of each function is checked and completed as if it were stored, and the next function gets it as it would be read:
with whole episodes, all that the one before it made of an episode.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
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
from ..storage.dataset import open_folder
from ..storage.episodes import CUT
from ..storage.memory_map import release_pages
from ..storage.window import nest
from .chunks import Chunk, split, step_range
from .function import EPISODE, GENERATOR, STEP, Function, Job, chain_of, load_functions
from .layout import observation_pairs
from .result import (
    Columns,
    as_stored,
    bookkeeping_of,
    check_batch,
    check_same,
    columns_of,
    complete,
    copied,
    dtype_name,
    identical,
    leaves_of,
    runs_of,
    shapes_of,
)


class StoredStates(NamedTuple):
    """State rows of the input, ``values`` ``[n, ...]``; the first is number ``first`` of ``rows``. None: not decoded."""

    rows: Rows
    first: int
    values: torch.Tensor | None


@dataclass
class InputRows:
    """What the steps of a batch are in the input.

    ``steps``: their step leaves, as they are mapped. ``states``: state leaves, of which each step begins with row ``place``
    (int64 ``[steps]``) and ends with the row after it.
    """

    steps: Columns
    place: torch.Tensor
    states: dict[str, StoredStates]

    def at(self, numbers: torch.Tensor) -> InputRows:
        """Return some of the steps, in order."""
        if len(numbers) == len(self.place):
            return self
        return InputRows({name: rows[numbers] for name, rows in self.steps.items()}, self.place[numbers], self.states)

    def unchanged(self, columns: Columns, paths: Iterable[str]) -> set[str]:
        """Return those of the paths whose rows in a result of the same steps have the bits that they have in the input."""
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


class ResultBatch(NamedTuple):
    """The result of some steps, empty where every episode was dropped.

    ``columns`` ``[rows, ...]``; ``cut``, ``midway`` bool ``[rows]``: the recording ends after this step; the episode that ends
    here began before the data do. ``source``: the steps of the input that the rows are made of, if there are as many. ``where``
    describes them in messages.
    """

    where: str
    columns: Columns
    cut: torch.Tensor
    midway: torch.Tensor
    source: InputRows | None


class Call(NamedTuple):
    """A batch or an episode on its way through the chain.

    ``steps``: the numbers of its steps, int64 ``[n]``; of a whole episode its first step. ``ends``: the rows where an episode
    ends; None for a whole episode. ``where`` describes it in messages.
    """

    steps: torch.Tensor | int
    ends: torch.Tensor | None
    where: str


class Applier:
    """The input and the functions of a chain, opened in one process. ``tally`` counts ``dropped`` episodes, and those that
    functions left open at their last step (``ended``); ``nans`` NaN values by leaf that has none in the input."""

    def __init__(self, job: Job) -> None:
        request = job.request
        self.dataset, self.origin = request.dataset or open_folder(job.path, content=job.content), request.origin
        self.functions = load_functions(request.functions, request.args, job.code)
        self.chain = chain_of(self.functions, request)
        self.whole, self.batch, self.seed = self.chain.per == "episode", job.batch, request.seed
        self.starts = self.dataset.episode_starts.numpy()
        for number, fn in enumerate(self.functions):
            fn.statistics = job.statistics.get(str(number))
        self.windows = request.windows
        self.generator, self.tally, self.nans = torch.Generator(), Counter[str](), Counter[str]()

    def read(self, steps: torch.Tensor) -> TensorDict:
        """Return steps (int64 ``[n]``, in any order) as TED, batch ``[n]``; no two tensors share memory."""
        if not self.windows:
            return self.dataset[steps]
        from ..storage.replay.around import Around
        from ..storage.replay.batches import read_steps
        from ..storage.replay.storages.dataset_storage import DatasetStorage

        return read_steps(DatasetStorage(self.dataset), steps, Around(**self.windows))

    @cached_property
    def _mapped(self) -> int:
        """How many functions at the beginning of the chain are applied to states, judged by the first row or episode."""
        if self.windows or self.chain.per == "sample" or not self.dataset.schema.states:
            return 0
        stop = int(self.starts[1]) if self.whole else 1
        td: Any = self.read(torch.arange(stop, device="cpu"))
        for number, fn in enumerate(self.functions):
            with self.guard(fn.name, self._describe(0, stop)):
                if fn.traits is None or not fn.traits.applies_to_states(td, **fn.args):
                    return number
                td = fn(td)
        return len(self.functions)

    def split(self, chunk: Chunk) -> list[Chunk]:
        """Return the batches of a chunk: what is read at a time."""
        return split(chunk, self.starts, self.batch, self.whole)

    def apply(self, span: Chunk, undecoded: Collection[str] = ()) -> ResultBatch:
        """The result of all functions for a batch, or for some episodes; they do not get the state leaves ``undecoded``."""
        mapped = 0 if undecoded else self._mapped
        td, source = self._read(span, mapped, undecoded)
        marks, where = self._edges(span), self._describe(span.start, span.stop)
        results: list[tuple[Columns, torch.Tensor]] = []
        kept: list[torch.Tensor] | None = []  # the numbers of the steps that are there still
        for given, call in self._calls(td, span):
            low = int(call.steps) - span.start if self.whole else 0
            high = low + len(given)
            columns = self._result_of_all(given, call, self.functions[mapped:])
            if columns is None:
                self.tally["dropped"] += 1
                continue
            if results:
                check_same(columns, shapes_of(results[0][0]), self.chain.names[-1], call.where)
            done = columns["next/done"].view(-1)
            edges = marks
            if self.whole:  # it may have become several: the first began as it did, and the last ends so
                edges = torch.zeros(2, len(done), dtype=torch.bool, device="cpu")
                edges[0, -1], edges[1, int(done.nonzero()[0])] = marks[:, high - 1]
            results.append((columns, edges))
            if len(done) != len(given):
                kept = None
            elif kept is not None:
                kept.append(torch.arange(low, high, device="cpu"))
        if not results:
            return ResultBatch(where, {}, marks[0, :0], marks[1, :0], None)
        columns, marks = results[0]
        if len(results) > 1:
            columns = {path: torch.cat([columns[path] for columns, _ in results]) for path in columns}
            marks = torch.cat([edges for _, edges in results], 1)
        self._count_nans(columns, source)
        ended = columns["next/truncated"] & ~columns["next/terminated"]
        origin = None if kept is None else source.at(torch.cat(kept))
        return ResultBatch(where, columns, marks[0] & ended.view(-1), marks[1], origin)

    def _count_nans(self, columns: Columns, source: InputRows) -> None:
        for path, rows in columns.items():
            if rows.is_floating_point() and (count := int(rows.isnan().sum())):
                state = source.states.get(path.removeprefix("next/"))
                before = source.steps.get(path) if state is None else state.values
                if before is None or not (before.is_floating_point() and bool(before.isnan().any())):
                    self.nans[path] += count

    def inputs_of(self, number: int, chunk: Chunk) -> Iterator[tuple[TensorDictBase, str]]:
        """Yield what function ``number`` gets of a chunk, by batches or episodes, with a description of each."""
        # Where it ignores observations, as those before it do, they need not be read.
        ignored = [leaf.name for leaf in self.dataset.schema.states] if number < self.chain.ignoring else []
        for span in self.split(chunk):
            td, _ = self._read(span, 0, ignored)
            for given, call in self._calls(td, span):
                out = self._through(given, call, self.functions[:number])
                if out is not None:
                    yield out, call.where

    def apply_to_steps(self, steps: torch.Tensor) -> Columns:
        """Return the results of all functions for steps in any order; not for whole episodes."""
        self._seed(int(steps[0]))
        where = f"{len(steps)} steps between {int(steps[0]):,} and {int(steps[-1]):,} of {self.dataset.id}"
        call = Call(steps, torch.zeros(0, dtype=torch.int64, device="cpu"), where)
        columns = self._result_of_all(self.read(steps), call, self.functions)
        assert columns is not None
        return columns

    def release(self) -> None:
        """Release the pages of the files that were read, which count as memory of this process."""
        for read in getattr(self.dataset, "members", (self.dataset,)):  # of a view
            for rows in read.rows.values():
                for part in vars(rows).values():
                    if isinstance(part, np.ndarray):
                        release_pages(part)

    def _seed(self, step: int) -> None:
        """Seed all random generators for the batch or the episode that begins with ``step``."""
        seed = int(np.random.SeedSequence([self.seed, step]).generate_state(1, np.uint64)[0])
        self.generator.manual_seed(seed >> 1)
        torch.default_generator.manual_seed(seed >> 1)  # torch.manual_seed takes a hundred times as long
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed >> 1)
        np.random.seed(seed % (1 << 32))
        random.seed(seed)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _source(self, start: int, stop: int, undecoded: Collection[str]) -> InputRows:
        """Steps ``start..stop-1`` as they are stored. State leaves in ``undecoded`` are not decoded."""
        leaves = self.dataset.rows.items()
        steps = {name: rows.block(start, stop) for name, rows in leaves if rows.leaf.kind == "step"}
        states = {name: rows for name, rows in leaves if rows.leaf.kind == "state"}
        if not states or self.windows:
            return InputRows(steps, torch.arange(stop - start, device="cpu"), {})
        numbers = self.dataset.state_numbers(start, stop)
        first, end = int(numbers[0]), int(numbers[-1]) + 2
        read = {
            name: StoredStates(rows, first, None if name in undecoded else rows.block(first, end))
            for name, rows in states.items()
        }
        return InputRows(steps, numbers - first, read)

    def _read(self, span: Chunk, mapped: int, undecoded: Collection[str]) -> tuple[TensorDict, InputRows]:
        """Steps to which the first ``mapped`` functions have been applied, and what they are in the input."""
        source = self._source(span.start, span.stop, undecoded)
        if self.windows:
            return self.read(torch.arange(span.start, span.stop, device="cpu")), source
        td = nest({name: rows.clone() for name, rows in source.steps.items()}, (span.rows,))
        states = {name: stored.values for name, stored in source.states.items() if stored.values is not None}
        pairs = observation_pairs(source.steps) if mapped else []
        for fn in self.functions[:mapped]:
            with self.guard(fn.name, self._describe(span.start, span.stop)):
                states = {name: fn.map_states(name, rows) for name, rows in states.items()}
                for name in pairs:
                    for key in (tuple(name.split("/")), ("next", *name.split("/"))):
                        td.set(key, fn.map_states(name, td.get(key)))
        for name, rows in states.items():
            key = tuple(name.split("/"))
            td.set(key, rows.index_select(0, source.place))
            td.set(("next", *key), rows.index_select(0, source.place + 1))
        return td, source

    def _calls(self, td: TensorDict, span: Chunk) -> Iterator[tuple[TensorDict, Call]]:
        """What the first function gets, the whole batch or each episode; the random generators are seeded for it."""
        starts = self.starts[span.first : span.last + 1]
        if not self.whole:
            self._seed(span.start)
            ends = torch.from_numpy(starts[1:][starts[1:] <= span.stop] - 1 - span.start)
            steps = torch.arange(span.start, span.stop, device="cpu")
            yield td, Call(steps, ends, self._describe(span.start, span.stop))
            return
        for low, high in pairwise(starts.tolist()):
            self._seed(low)
            yield td[low - span.start : high - span.start], Call(low, None, self._describe(low, high))

    def _edges(self, span: Chunk) -> torch.Tensor:
        """At the last steps of episodes, whether the recording ends there, and whether they began before it: bool
        ``[2, steps]``."""
        table, marks = self.dataset.episodes, torch.zeros(2, span.rows, dtype=torch.bool, device="cpu")
        numbers = np.arange(span.first, span.last)
        ends = self.starts[numbers + 1] - 1
        numbers, ends = numbers[ends < span.stop], ends[ends < span.stop] - span.start
        marks[0, ends] = torch.from_numpy(table.outcomes[numbers] == CUT)
        marks[1, ends] = torch.from_numpy(table.midway[numbers].astype(bool))
        return marks

    # -- calling -------------------------------------------------------------------------------------------------------

    def _result_of_all(self, td: TensorDictBase, call: Call, functions: Sequence[Function]) -> Columns | None:
        """The result of functions for a batch or an episode; None if one drops the episode. That of a batch may be memory that
        the function uses again."""
        if not functions:  # all have been applied to states
            return self._completed(self.chain.names[-1], td, bookkeeping_of(td), call)
        out = self._through(td, call, functions[:-1])
        columns = None if out is None else self._result(functions[-1], out, call)
        return copied(columns) if columns is not None and self.whole and functions[-1].is_own else columns

    def _through(self, td: TensorDictBase, call: Call, functions: Sequence[Function]) -> TensorDictBase | None:
        """What the function after these gets of a batch or an episode; None if one drops it."""
        for fn in functions:
            columns = self._result(fn, td, call)
            if columns is None:
                return None
            td = as_stored(copied(columns) if fn.is_own else columns)
        return td

    def _result(self, fn: Function, td: TensorDictBase, call: Call) -> Columns | None:
        """The result of one function, checked and completed; None if it drops the episode."""
        before = bookkeeping_of(td)
        if call.ends is not None and self.chain.per == "sample":
            return complete(self._of_samples(fn, td, call), before, fn.name, call.where, call.ends, self.tally)
        with self.guard(fn.name, call.where, td):
            out = fn(td, **self._taken(fn, call.steps))
        return None if self.whole and out is None else self._completed(fn.name, out, before, call)

    def _completed(self, name: str, out: Any, before: Columns, call: Call) -> Columns:
        ends = call.ends
        checked = check_batch(out, name, call.where, None if ends is None else len(before["next/done"]))
        columns = columns_of(checked, name, call.where)
        if ends is None:
            ends = torch.tensor([len(checked) - 1], device="cpu")
        return complete(columns, before, name, call.where, ends, self.tally)

    def _of_samples(self, fn: Function, td: TensorDictBase, call: Call) -> Columns:
        """The result of a function that gets one step at a time."""
        steps = torch.as_tensor(call.steps)
        forms: dict[str, Any] = {}
        rows: list[list[torch.Tensor]] = []
        for row, sample in enumerate(td.unbind(0)):
            where = f"step {row} of {call.where}"
            with self.guard(fn.name, where):
                out = fn(sample, **self._taken(fn, steps[row]))
            if not isinstance(out, TensorDictBase) or out.batch_size:
                what = f"batch size {list(out.batch_size)}" if isinstance(out, TensorDictBase) else repr(type(out))
                message = f"{fn.name} returned {what} instead of one step, for {where}"
                raise SchemaError(message, hint="with --per sample a function gets one step and returns one")
            leaves = leaves_of(out)
            found = {path: (dtype_name(value.dtype), tuple(value.shape)) for path, value in leaves.items()}
            if found != forms:  # the first step, or one that is refused
                check_same(columns_of(out.unsqueeze(0), fn.name, where), forms or found, fn.name, where)
                forms = found
            rows.append([leaves[path].clone() for path in forms])
        return {path: torch.stack(column).detach() for path, column in zip(forms, zip(*rows))}

    def _taken(self, fn: Function, steps: torch.Tensor | int) -> dict[str, Any]:
        """The generator and the numbers that a function takes as arguments: tensors for a batch, otherwise Python numbers."""
        if not fn.takes:
            return {}
        steps = torch.as_tensor(steps)
        taken: dict[str, Any] = {GENERATOR: self.generator}
        if fn.takes != {GENERATOR}:
            first, episode = steps.clone(), self.dataset.episode_of(steps)
            if self.origin is not None:
                episode, later = torch.from_numpy(self.origin)[:, episode]
                first += later
            numbers = {STEP: first, EPISODE: episode}
            taken |= {name: value if steps.ndim else int(value) for name, value in numbers.items()}
        return {name: taken[name] for name in fn.takes}

    @contextmanager
    def guard(self, name: str, where: str, given: TensorDictBase | None = None) -> Iterator[None]:
        """Turn exceptions of functions called in this block into a FunctionError that can be pickled, which describes what they
        were ``given``."""
        try:
            yield
        except BaseException as error:
            raise _described(error, name, where, given) from None

    def _describe(self, start: int, stop: int) -> str:
        first = int(np.searchsorted(self.starts, start, "right")) - 1
        last = int(np.searchsorted(self.starts, stop, "left")) - 1
        which = f"episode {first:,}" if first >= last else f"episodes {first:,}..{last:,}"
        return f"{step_range(start, stop)} ({which}) of {self.dataset.id}"


# -- errors of functions ---------------------------------------------------------------------------------------------------

_HERE = str(Path(__file__).parent)


def _described(error: BaseException, name: str, where: str, given: TensorDictBase | None) -> BaseException:
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
    shapes = "" if given is None else f"; its input: {_describe_input(given)}"
    hint = "a smaller --batch-size or fewer --procs need less memory" if isinstance(error, MemoryError) else None
    return FunctionError(f"{name} raised {description}{at}, for {where}{shapes}", hint=hint, detail=detail)


def _describe_input(td: TensorDictBase) -> str:
    """``100 steps of action float32 [6], observation float32 [17], ...``."""
    size = td.batch_size
    count = "one step" if not size else f"{size[0]:,} step{'s' * (size[0] != 1)}"
    ordered = sorted(leaves_of(td).items(), key=lambda leaf: (leaf[0].startswith("next/"), leaf[0]))
    shapes = (f"{path} {dtype_name(rows.dtype)} {list(rows.shape[len(size) :])}" for path, rows in ordered)
    return f"{count} of {', '.join(shapes)}"
