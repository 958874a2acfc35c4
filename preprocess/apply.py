"""Steps through the chain of functions: read, call, check. In the workers.

The first functions of a chain that can be applied to states (`functions.metadata`) are given each stored state once; the
others get TensorDicts, in batches, one step at a time, or by whole episodes.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from ..errors import FunctionError, RbdataError, ResultError
from .chunks import Chunk, batches, step_range
from .function import BoundFunction
from .input_view import View
from .layout import is_observation_pair
from .passthrough import Origin
from .result import Columns, Found, Kept, check_batch, columns_of, complete, joined, leaves_of
from .run_config import Setting

_HERE = str(Path(__file__).parent)


@dataclass
class Batch:
    """What became of some steps: ``columns`` ``[rows, ...]``.

    ``dones`` counts the done rows of each episode of the view, from its episode ``first`` on. ``origin`` says which rows of
    the input these may still be; None where there are none, or other steps.
    """

    where: str
    columns: Columns
    first: int
    dones: np.ndarray
    rows_in: int
    origin: Origin | None = None


class Applier:
    """A view and a chain of functions, opened in one process."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.view = View(setting.path, setting.num_frames, setting.windows)
        self.chain = [BoundFunction(fn, statistics) for fn, statistics in zip(setting.functions, setting.statistics)]
        self.generator = torch.Generator()
        #: Seconds spent in the functions.
        self.seconds = 0.0

    @cached_property
    def prefix(self) -> int:
        """How many functions can be applied to states: the first row, or episode, tells."""
        if self.setting.windows.reading or self.setting.per == "sample" or not self.view.dataset.schema.states:
            return 0
        stop = int(self.view.episodes.starts[1]) if self.setting.whole_episodes else 1
        row: Any = self.view.read(0, stop)
        for number, bound in enumerate(self.chain):
            with self.guard(bound.name, self._where(0, stop)):
                if not bound.applies_to_states(row):
                    return number
                row = bound(row, self.generator)
        return len(self.chain)

    def batches(
        self, chunk: Chunk, found: Found, *, plain: bool = False, unread: Collection[str] = ()
    ) -> Iterator[Batch]:
        """The batches of a chunk, one after the other, through all functions; ``plain``: without ``map_states``.

        State leaves in ``unread`` are left out of what the functions get, and of the columns.
        """
        setting, episodes = self.setting, self.view.episodes
        prefix = 0 if plain or unread else self.prefix
        for start, stop, first, last in batches(chunk, episodes, setting.batch, setting.whole_episodes):
            td, origin = self._read(start, stop, prefix, unread)
            if setting.whole_episodes:
                yield self._by_episode(td, first, last, prefix, found, origin)
            else:
                yield replace(self._by_step(td, start, stop, first, last, prefix, found), origin=origin)

    def through(self, chunk: Chunk, count: int) -> Iterator[tuple[TensorDictBase, str]]:
        """What the first ``count`` functions make of a chunk, batches or episodes one by one: for a first pass of the next."""
        setting, episodes = self.setting, self.view.episodes
        blind = count < setting.ignores_observations
        for start, stop, first, last in batches(chunk, episodes, setting.batch, setting.whole_episodes):
            td = self.view.read_steps(start, stop) if blind else self.view.read(start, stop)
            pieces = self._episodes(first, last) if setting.whole_episodes else [(start, stop, first)]
            for low, high, _ in pieces:
                where = self._where(low, high)
                piece = td[low - start : high - start] if setting.whole_episodes else td
                out = self._chain(piece, where, self.chain[:count], None if setting.whole_episodes else high - low)
                if out is not None:
                    yield out, where

    def scattered(self, steps: torch.Tensor) -> Columns:
        """The results for single steps, in any order; not for whole episodes."""
        td = self.view.scattered(steps)
        where = f"{len(steps)} steps between {int(steps[0]):,} and {int(steps[-1]):,} of {self.view.id}"
        return self._columns(td, where, torch.zeros(0, dtype=torch.int64), Found(), None)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read(self, start: int, stop: int, prefix: int, unread: Collection[str]) -> tuple[TensorDict, Origin | None]:
        """Steps with the first functions applied, and where they come from."""
        if self.setting.windows.reading or not self.view.dataset.schema.states:
            return self.view.read(start, stop), None
        where = self._where(start, stop)
        td, origin = self.view.read_steps(start, stop), self.view.states(start, stop, unread)
        states = {name: stored.rows for name, stored in origin.stored.items() if stored.rows is not None}
        if prefix:  # raw rows are those of the file, as it is mapped here
            raw = [name for name in states if self.view.dataset.schema[name].codec == "raw"]
            states.update({name: states[name].clone() for name in raw})
        names = set(leaves_of(td))
        for bound in self.chain[:prefix]:
            for name in states:
                states[name] = self._map(bound, name, states[name], where)
            for name in sorted(name for name in names if is_observation_pair(name, names)):
                for path in (name, "next/" + name):
                    key = tuple(path.split("/"))
                    td.set(key, self._map(bound, name, td.get(key), where))
        for name, rows in states.items():
            key = tuple(name.split("/"))
            td.set(key, rows.index_select(0, origin.place))
            td.set(("next", *key), rows.index_select(0, origin.place + 1))
        as_read = {name: old for name, old in origin.stored.items() if states.get(name) is old.rows}  # unread: None
        return td, replace(origin, stored=as_read) if as_read else None

    def _map(self, bound: BoundFunction, name: str, rows: torch.Tensor, where: str) -> torch.Tensor:
        with self.guard(bound.name, where):
            mapped = bound.map_states(name, rows)
        if not isinstance(mapped, torch.Tensor) or mapped.shape[:1] != rows.shape[:1]:
            raise ResultError(f"{bound.name} made {name} into something else than a row for each state, for {where}")
        return mapped

    # -- calling -------------------------------------------------------------------------------------------------------

    def _by_step(
        self, td: TensorDict, start: int, stop: int, first: int, last: int, prefix: int, found: Found
    ) -> Batch:
        starts = self.view.episodes.starts
        where = self._where(start, stop)
        last_rows = starts[1:][first:last] - 1
        ends = torch.from_numpy(last_rows[last_rows < stop] - start)
        columns = self._columns(td, where, ends, found, self.chain[prefix:])
        done = columns["next/done"].view(-1).numpy()
        edges = np.clip(starts[first : last + 1], start, stop) - start
        counts = np.diff(np.concatenate([[0], np.cumsum(done)])[edges])
        return Batch(where, columns, first, counts, stop - start)

    def _columns(
        self, td: TensorDict, where: str, ends: torch.Tensor, found: Found, chain: Sequence[BoundFunction] | None
    ) -> Columns:
        chain = self.chain if chain is None else chain
        kept = Kept.of(td)
        if self.setting.per == "sample":
            columns = self._samples(td, where, chain)
        else:
            out = self._chain(td, where, chain, kept.steps)
            assert out is not None
            columns = columns_of(out, self._last(chain), where)
        return complete(columns, kept, self._last(chain), where, ends, found)

    def _samples(self, td: TensorDict, where: str, chain: Sequence[BoundFunction]) -> Columns:
        """One step at a time, results put together."""
        columns: dict[str, list[torch.Tensor]] = {}
        name = self._last(chain)
        for row, one in enumerate(td.unbind(0)):
            for bound in chain:
                one = self._call(bound, one, f"step {row} of {where}")
                if not isinstance(one, TensorDictBase) or one.batch_size:
                    what = f"batch size {list(one.batch_size)}" if isinstance(one, TensorDictBase) else repr(type(one))
                    message = f"{bound.name} returned {what} instead of one step, for step {row} of {where}"
                    raise ResultError(message, hint="--per sample gives one step and wants one TensorDict back")
            leaves = leaves_of(one)
            if row == 0:
                columns = {path: [] for path in columns_of(one.unsqueeze(0), name, where)}
            if leaves.keys() != columns.keys():
                odd = sorted(leaves.keys() ^ columns.keys())[0]
                message = f"{name} returned other keys than before ({odd!r}), for step {row} of {where}"
                raise ResultError(message, hint="every result must be like the first one")
            for path, value in leaves.items():
                columns[path].append(value)
        try:
            stacked = {path: torch.stack(values) for path, values in columns.items()}
        except (RuntimeError, TypeError) as error:
            message = f"{name} returned steps of different shapes or types, for {where}: {error}"
            raise ResultError(message, hint="every result must be like the first one") from error
        nested = TensorDict({}, [len(td)])
        for path, value in stacked.items():
            nested.set(tuple(path.split("/")), value)
        return columns_of(nested, name, where)

    def _by_episode(
        self, td: TensorDict, first: int, last: int, prefix: int, found: Found, origin: Origin | None
    ) -> Batch:
        starts = self.view.episodes.starts
        begin = int(starts[first])
        pieces: list[Columns] = []
        wheres: list[str] = []
        places: list[torch.Tensor] = []
        counts = np.zeros(last - first, np.int64)
        chain = self.chain[prefix:]
        name = self._last(chain)
        for low, high, number in self._episodes(first, last):
            where = self._where(low, high)
            piece = td[low - begin : high - begin]
            kept = Kept.of(piece)
            out = self._chain(piece, where, chain, None)
            if out is None:
                continue
            columns = columns_of(out, name, where)
            end = torch.tensor([out.batch_size[0] - 1])
            columns = complete(columns, kept, name, where, end, found)
            if origin is not None:
                places.append(origin.place[low - begin : high - begin])
                origin = origin if out.batch_size[0] == high - low else None
            counts[number - first] = int(columns["next/done"].sum())
            pieces.append(columns)
            wheres.append(where)
        columns = joined(pieces, name, wheres) if pieces else {}
        if origin is not None and places:
            origin = replace(origin, place=torch.cat(places))
        return Batch(self._where(begin, int(starts[last])), columns, first, counts, int(starts[last]) - begin, origin)

    def _chain(
        self, td: TensorDictBase, where: str, chain: Sequence[BoundFunction], steps: int | None
    ) -> TensorDictBase | None:
        """Through several functions; None where one of them drops the episode."""
        out: Any = td
        for bound in chain:
            out = self._call(bound, out, where)
            if out is None and steps is None:
                return None
            out = check_batch(out, bound.name, where, steps)
        return out

    def _call(self, bound: BoundFunction, td: Any, where: str) -> Any:
        with self.guard(bound.name, where):
            return bound(td, self.generator)

    @contextmanager
    def guard(self, name: str, where: str) -> Iterator[None]:
        """Around the user's code: what it raises becomes a FunctionError that can be sent home."""
        began = time.perf_counter()
        try:
            yield
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except RbdataError as error:  # a function of ours, or the user's, that knows what is wrong
            raise type(error)(f"{name}: {error} ({where})", hint=error.hint) from None
        except BaseException as error:
            raise _explained(error, name, where) from None
        finally:
            self.seconds += time.perf_counter() - began

    # ------------------------------------------------------------------------------------------------------------------

    def _episodes(self, first: int, last: int) -> list[tuple[int, int, int]]:
        starts = self.view.episodes.starts
        return [(int(starts[n]), int(starts[n + 1]), n) for n in range(first, last)]

    def _where(self, start: int, stop: int) -> str:
        starts = self.view.episodes.starts
        first = int(np.searchsorted(starts, start, "right")) - 1
        last = int(np.searchsorted(starts, stop, "left")) - 1
        which = f"episode {first:,}" if first >= last else f"episodes {first:,}..{last:,}"
        return f"{step_range(start, stop)} ({which}) of {self.view.id}"

    def _last(self, chain: Sequence[BoundFunction]) -> str:
        return (chain or self.chain)[-1].name


def _explained(error: BaseException, name: str, where: str) -> FunctionError:
    """An error of the user's function, with its own part of the traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.rpartition("/")[0] == _HERE and trace.tb_next:
        trace = trace.tb_next
    detail = "".join(traceback.format_exception(type(error), error.with_traceback(trace), trace))
    told = " ".join(f"{type(error).__name__}: {error}".split())
    hint = None
    if isinstance(error, MemoryError):
        hint = "a smaller --batch-size or fewer --procs need less memory"
    return FunctionError(f"{name} raised {told}, for {where}", hint=hint, detail=detail)


@dataclass
class _Random:
    """The global random numbers of torch, numpy and Python, as they are now."""

    torch: torch.Tensor = field(default_factory=torch.get_rng_state)
    numpy: Any = field(default_factory=np.random.get_state)
    python: Any = field(default_factory=random.getstate)

    def restore(self) -> None:
        torch.set_rng_state(self.torch)
        np.random.set_state(self.numpy)
        random.setstate(self.python)


@contextmanager
def at_work(applier: Applier, number: int) -> Iterator[None]:
    """Seed everything random for a chunk, and use one thread: results must depend on nothing else.

    ``number`` is the chunk's. What was there before is put back in place: with one process, it is the caller's own.
    """
    before, threads = _Random(), torch.get_num_threads()
    torch.set_num_threads(1)
    seed = int(np.random.SeedSequence([applier.setting.seed, number]).generate_state(1, np.uint64)[0])
    applier.generator.manual_seed(seed >> 1)
    torch.manual_seed(seed >> 1)
    np.random.seed(seed % (1 << 32))
    random.seed(seed)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(threads)
        before.restore()
        applier.view.release()
