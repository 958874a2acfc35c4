"""The steps of a chunk through the chain of functions: read, call, check. In workers.

Functions get TensorDicts: batches, single steps, or whole episodes. The first functions of a chain that can be applied to
states (`functions.traits`) get each state once instead, not as observation and again as successor.
"""

from __future__ import annotations

import os
import random
import sysconfig
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from ..datasets.user_code.loading import by_content
from ..errors import FunctionError, RbdataError, ResultError
from ..storage.codecs import codec_of
from ..storage.nesting import nest
from .chunks import Chunk, split, step_range
from .function import BoundFunction
from .input_view import InputView
from .layout import observation_pairs
from .passthrough import SourceStates
from .result import (
    Columns,
    InputSummary,
    ResultCounts,
    check_batch,
    columns_of,
    complete,
    concatenate,
    dtype_name,
    leaves_of,
)
from .run_config import RunConfig

_HERE = str(Path(__file__).parent)
#: Where Python's own modules lie, and the names of folders of installed packages.
_PYTHON, _PACKAGES = sysconfig.get_path("stdlib") + os.sep, {"site-packages", "dist-packages"}


@dataclass
class ResultBatch:
    """The result of some steps: ``columns`` ``[rows, ...]``, empty where every episode was dropped.

    ``dones``: the done rows of each episode of the view, from episode ``first`` on. ``source``: the states of the input that
    the rows may still be; None where there are none. ``where`` describes the steps in messages.
    """

    where: str
    columns: Columns
    first: int
    dones: np.ndarray
    steps_in: int
    source: SourceStates | None = None


class Applier:
    """A view of the input and the functions of a chain, opened in one process."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.view = InputView(config.path, config.content, config.num_frames, config.read_options)
        self.chain = [BoundFunction(fn, found) for fn, found in zip(config.chain.functions, config.statistics)]
        self.generator = torch.Generator()

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
        """The results of all functions for the batches of a chunk. ``counts`` are added to.

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
        """The results of the first ``count`` functions for a chunk, by batches or episodes, and a description of each."""
        config, episodes = self.config, self.view.episodes
        # The next function ignores observations as well: they need not be read.
        read = self.view.read_step_leaves if count < config.ignores_observations else self.view.read
        for span in split(chunk, episodes, config.batch, config.whole_episodes):
            td = read(span.start, span.stop)
            for low, high in self._episodes(span) if config.whole_episodes else [(span.start, span.stop)]:
                self.seed(low)
                where = self._describe(low, high)
                piece = td[low - span.start : high - span.start] if config.whole_episodes else td
                out = self._call_chain(piece, where, self.chain[:count], None if config.whole_episodes else high - low)
                if out is not None:
                    yield out, where

    def apply_to_steps(self, steps: torch.Tensor) -> Columns:
        """The results of all functions for steps in any order; not for whole episodes."""
        self.seed(int(steps[0]))
        td = self.view.read_scattered(steps)
        where = f"{len(steps)} steps between {int(steps[0]):,} and {int(steps[-1]):,} of {self.view.dataset.id}"
        return self._columns(td, where, torch.zeros(0, dtype=torch.int64), ResultCounts(), self.chain)

    def seed(self, step: int) -> None:
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
        as_stored = {name: leaf for name, leaf in source.leaves.items() if states.get(name) is leaf.rows}
        return td, replace(source, leaves=as_stored) if as_stored else None

    def _map_states(self, fn: BoundFunction, name: str, rows: torch.Tensor, where: str) -> torch.Tensor:
        with self.guard(fn.name, where):
            mapped = fn.map_states(name, rows)
        if not isinstance(mapped, torch.Tensor) or mapped.shape[:1] != rows.shape[:1]:
            raise ResultError(f"{fn.name} did not return one row of {name} for each state, for {where}")
        return mapped

    # -- calling -------------------------------------------------------------------------------------------------------

    def _apply_to_batch(
        self, td: TensorDict, span: Chunk, mapped: int, counts: ResultCounts, source: SourceStates | None
    ) -> ResultBatch:
        starts = self.view.episodes.starts
        where = self._describe(span.start, span.stop)
        last_rows = starts[1:][span.first : span.last] - 1
        ends = torch.from_numpy(last_rows[last_rows < span.stop] - span.start)
        columns = self._columns(td, where, ends, counts, self.chain[mapped:])
        done = columns["next/done"].view(-1).numpy()
        edges = np.clip(starts[span.first : span.last + 1], span.start, span.stop) - span.start
        dones = np.diff(np.concatenate([[0], np.cumsum(done)])[edges])
        return ResultBatch(where, columns, span.first, dones, len(td), source)

    def _columns(
        self, td: TensorDict, where: str, ends: torch.Tensor, counts: ResultCounts, chain: Sequence[BoundFunction]
    ) -> Columns:
        before = InputSummary.of(td)
        name = self._last_name(chain)
        if self.config.chain.per == "sample":
            columns = self._apply_to_samples(td, where, chain)
        else:
            out = self._call_chain(td, where, chain, before.steps)
            assert out is not None
            columns = columns_of(out, name, where)
        return complete(columns, before, name, where, ends, counts)

    def _apply_to_samples(self, td: TensorDict, where: str, chain: Sequence[BoundFunction]) -> Columns:
        """The functions called with one step at a time; the results stacked."""
        columns: dict[str, list[torch.Tensor]] = {}
        name = self._last_name(chain)
        for row, sample in enumerate(td.unbind(0)):
            for fn in chain:
                sample = self._call(fn, sample, f"step {row} of {where}")
                if not isinstance(sample, TensorDictBase) or sample.batch_size:
                    is_batch = isinstance(sample, TensorDictBase)
                    what = f"batch size {list(sample.batch_size)}" if is_batch else repr(type(sample))
                    message = f"{fn.name} returned {what} instead of one step, for step {row} of {where}"
                    raise ResultError(message, hint="with --per sample a function gets one step and returns one")
            leaves = leaves_of(sample)
            if row == 0:
                columns = {path: [] for path in columns_of(sample.unsqueeze(0), name, where)}
            if leaves.keys() != columns.keys():
                odd = sorted(leaves.keys() ^ columns.keys())[0]
                message = f"{name} returned other keys than before ({odd!r}), for step {row} of {where}"
                raise ResultError(message, hint="every result must have the keys of the first one")
            for path, value in leaves.items():
                columns[path].append(value)
        try:
            stacked = nest({path: torch.stack(values) for path, values in columns.items()}, (len(td),))
        except (RuntimeError, TypeError) as error:
            message = f"{name} returned steps of different shapes or dtypes, for {where}: {error}"
            hint = "every result must have the dtypes and shapes of the first one"
            raise ResultError(message, hint=hint) from error
        return columns_of(stacked, name, where)

    def _apply_to_episodes(
        self, td: TensorDict, span: Chunk, mapped: int, counts: ResultCounts, source: SourceStates | None
    ) -> ResultBatch:
        pieces: list[Columns] = []
        wheres: list[str] = []
        places: list[torch.Tensor] = []
        dones = np.zeros(span.last - span.first, np.int64)
        chain = self.chain[mapped:]
        name = self._last_name(chain)
        for number, (low, high) in enumerate(self._episodes(span)):
            self.seed(low)
            where = self._describe(low, high)
            rows = slice(low - span.start, high - span.start)
            before = InputSummary.of(td[rows])
            out = self._call_chain(td[rows], where, chain, None)
            if out is None:
                continue
            last_row = torch.tensor([out.batch_size[0] - 1])
            columns = complete(columns_of(out, name, where), before, name, where, last_row, counts)
            if source is not None:
                places.append(source.place[rows])
                source = source if out.batch_size[0] == high - low else None
            dones[number] = int(columns["next/done"].sum())
            pieces.append(columns)
            wheres.append(where)
        columns = concatenate(pieces, name, wheres) if pieces else {}
        if source is not None and places:
            source = replace(source, place=torch.cat(places))
        return ResultBatch(self._describe(span.start, span.stop), columns, span.first, dones, len(td), source)

    def _call_chain(
        self, td: TensorDictBase, where: str, chain: Sequence[BoundFunction], steps: int | None
    ) -> TensorDictBase | None:
        """The result of several functions, of ``steps`` steps (None: any number); None where one drops the episode."""
        out: Any = td
        for fn in chain:
            out = self._call(fn, out, where)
            if out is None and steps is None:
                return None
            out = check_batch(out, fn.name, where, steps)
        return out

    def _call(self, fn: BoundFunction, td: Any, where: str) -> Any:
        # Before the function changes it; for single steps that would take as long as many functions.
        shapes = _describe_input(td) if self.config.chain.per != "sample" else ""
        with self.guard(fn.name, where, shapes):
            return fn(td, self.generator)

    @contextmanager
    def guard(self, name: str, where: str, shapes: str = "") -> Iterator[None]:
        """Around calls of functions: what they raise becomes a FunctionError that can be pickled.

        ``shapes`` describes the input in the message.
        """
        try:
            yield
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except RbdataError as error:  # raised on purpose, with a message for the user
            error.args = (f"{name}: {error.message} ({where})", *error.args[1:])
            raise error.with_traceback(None) from None
        except BaseException as error:
            raise _function_error(error, name, where, shapes) from None

    # ------------------------------------------------------------------------------------------------------------------

    def _episodes(self, span: Chunk) -> list[tuple[int, int]]:
        """First step and end of each episode."""
        return list(pairwise(self.view.episodes.starts[span.first : span.last + 1].tolist()))

    def _describe(self, start: int, stop: int) -> str:
        starts = self.view.episodes.starts
        first = int(np.searchsorted(starts, start, "right")) - 1
        last = int(np.searchsorted(starts, stop, "left")) - 1
        which = f"episode {first:,}" if first >= last else f"episodes {first:,}..{last:,}"
        return f"{step_range(start, stop)} ({which}) of {self.view.dataset.id}"

    def _last_name(self, chain: Sequence[BoundFunction]) -> str:
        return (chain or self.chain)[-1].name


def _function_error(error: BaseException, name: str, where: str, shapes: str) -> FunctionError:
    """A FunctionError with the user's part of the traceback, which names the last line of it that is in the user's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.rpartition("/")[0] == _HERE and trace.tb_next:
        trace = trace.tb_next
    detail = "".join(traceback.format_exception(type(error), error.with_traceback(trace), trace))
    description = " ".join(f"{type(error).__name__}: {error}".split())
    hint = None
    if isinstance(error, MemoryError):
        hint = "a smaller --batch-size or fewer --procs need less memory"
    frames = [frame for frame in traceback.extract_tb(trace) if not _is_library(frame.filename)]
    at = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    given = f"; its input: {shapes}" if shapes else ""
    return FunctionError(f"{name} raised {description}{at}, for {where}{given}", hint=hint, detail=detail)


def _is_library(path: str) -> bool:
    """Whether a file is one of Python's or of an installed package: not what the user wrote."""
    return path.startswith((_PYTHON, "<frozen")) or not _PACKAGES.isdisjoint(Path(path).parts)


def _describe_input(td: Any) -> str:
    """``100 steps of action float32 [6], observation float32 [17], ...``; empty for anything but a TensorDict."""
    if not isinstance(td, TensorDictBase):
        return ""
    count = "one step" if not td.batch_size else f"{td.batch_size[0]:,} step{'s' * (td.batch_size[0] != 1)}"
    leaves = sorted(leaves_of(td).items(), key=lambda item: (item[0].startswith("next/"), item[0]))
    shapes = (f"{path} {dtype_name(rows.dtype)} {list(rows.shape[td.ndim :])}" for path, rows in leaves)
    return f"{count} of {', '.join(shapes)}"


@contextmanager
def isolated(applier: Applier) -> Iterator[None]:
    """Around the work of a chunk: one thread, no gradients.

    The state of the random generators, which the applier seeds, is restored: with one process it is that of the caller.
    """
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad(), by_content():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        applier.view.release()
