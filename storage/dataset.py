"""A dataset opened for reading: its manifest, its episode table and, by leaf, its rows (`codecs.codec.Rows`).

All reads consist of reads of rows. The ways to open a dataset differ in where the rows come from:

    Dataset(path)                  mapped: opening reads no rows
    DerivedDataset(dataset, f)     with leaves that ``f`` computes from the stored ones when they are read (`derived_leaves`)
    DatasetView(datasets, ...)     some episodes or steps of open datasets: `Dataset.select`, `concat`
    RemoteDataset(cache, ...)      mapped in a cache, into which the blocks that a read needs are fetched first

An open dataset stays readable if it is replaced, extended or deleted. Everything returned is private to the caller: writing
into it never reaches the files. A dataset pickles as the call that opens it and the identity of its content. It may be used by
several threads and after a fork (where torch itself needs ``torch.set_num_threads(1)``, which ``DataLoader`` sets in its
workers).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch
from tensordict import TensorDict

from ..errors import RbdataError, UnknownKeyError, UsageError
from .codecs import codec_of
from .codecs.codec import Rows
from .computed_rows import ConstantRows
from .episodes import EpisodeTable, map_episodes
from .manifest import Manifest
from .memory_map import keep_freed_memory, map_array
from .row_index import lookup, row_index, runs_of
from .schema import LARGE_ROW, Leaf, Schema, at_and_below
from .snapshot import read_snapshot
from .window import Pad, nest, read_window

if TYPE_CHECKING:
    import gymnasium

    from .reference_scores import ReferenceScores
    from .tensor_specs import Composite
    from .view import Segments

#: Bytes of consecutive rows that shuffling in blocks keeps together: several blocks, so that the partial ones at the edges cost
#: little.
GROUP_BYTES = 16 << 20


class Dataset:
    """Read-only view of a dataset folder.

    ``len(dataset)`` is its number of steps. ``dataset[i]``, ``dataset[a:b]`` and ``dataset[indices]`` return TED TensorDicts
    (batch ``[]``, ``[b - a]``, ``[n]``); ``dataset["next/reward"]`` (or a tuple key) returns one whole leaf.

    Raises DatasetNotFoundError for other folders, DamagedDatasetError if files are missing or too short, and
    DatasetBusyError if the dataset is being replaced repeatedly.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._open(Path(path))

    def _open(self, path: Path) -> None:
        self.path = path
        keep_freed_memory()
        self.manifest, self._table, self._rows = read_snapshot(self.path, self._map)

    def _map(self, manifest: Manifest) -> tuple[Manifest, EpisodeTable, dict[str, Rows]]:
        table = map_episodes(self.path, manifest.episodes)
        rows = {leaf.name: open_leaf(self.path, leaf, manifest.rows(leaf)) for leaf in manifest.schema}
        return manifest, table, rows

    @property
    def id(self) -> str:
        return self.manifest.id

    @property
    def schema(self) -> Schema:
        return self.manifest.schema

    @property
    def statistics(self) -> dict[str, Any]:
        """Statistics that preprocessing computed, by function: ``{"normalize_observations": {...}}``."""
        return self.manifest.statistics

    @property
    def reference_scores(self) -> ReferenceScores | None:
        """The returns that normalised scores call 0 and 100, and the policies they are from; None if unknown."""
        from . import reference_scores as scores

        return scores.reference_scores(self.manifest)

    def normalized_score(self, returns: Any) -> Any:
        """Convert undiscounted returns to scores: 0 is a random policy's, 100 an expert's (a human's).

        ``returns`` is a number, an array, a tensor or a sequence of numbers. Raises UsageError if no scores are known.
        """
        from .reference_scores import require_scores

        return require_scores(self.reference_scores, self.id).normalize(returns)

    @property
    def normalized_returns(self) -> np.ndarray:
        """The returns of the episodes as scores, float64 ``[episodes]``; NaN for episodes that are not whole.

        Episodes that the end of the data cut, or whose beginning is missing, are not whole: average with `np.nanmean`. Raises
        UsageError if no scores are known, or if they do not apply (Atari's clipped rewards, returns changed by preprocessing).
        """
        from .reference_scores import normalized_returns

        return normalized_returns(self.manifest, self.episodes)

    def make_env(self, *, trust: bool = False, **arguments: Any) -> gymnasium.Env:
        """Return the Gymnasium environment that the data come from; ``arguments`` (``render_mode``) override those recorded.

        For Atari datasets it returns frames as stored in the dataset. Nothing that the dataset's files name is imported: the
        environment is one of Gymnasium's registry. ``trust=True`` also imports modules and wrappers that the manifest names:
        use it only for files whose author you trust. Raises UsageError if the environment is unknown or needs trust,
        MissingExtraError if a package is not installed.
        """
        known = self._environment()
        if known is None:
            message = f"{self.id} does not state an environment that Gymnasium can make"
            hint = "own data state theirs by --environment ID when they are converted"
            raise UsageError(message, hint=f"observation_space and action_space are available without it; {hint}")
        return known.make(trust, arguments)

    def _environment(self) -> Any:
        """What makes the environment of the data (`datasets.sources.known_environment`); None if that is unknown."""
        from . import plugins
        from .reference_scores import original_source

        source, _ = original_source(self.manifest)
        try:
            return plugins.load(str(source.get("name"))).environment(source)
        except RbdataError:
            return None

    @property
    def spec(self) -> Composite:
        """`make_spec` with its defaults."""
        return self.make_spec()

    def make_spec(self, categorical_action_encoding: bool = True) -> Composite:
        """Return the specs of one step: a Composite of shape ``[]`` with TED's keys; ``to_torchrl()`` converts it.

        ``spec.is_in(batch)`` checks batches of any shape; ``spec.expand(batch.shape)`` adds a batch shape. Bounds are those
        that the manifest states, otherwise the dtype's. For a Discrete space without a stated number of values (Atari's
        actions), it is one more than the largest value in the data. ``categorical_action_encoding=False`` returns OneHot
        instead of Categorical, as TorchRL's environments do, for batches whose actions a transform encodes that way. Raises
        SchemaError for a manifest with malformed spaces.
        """
        from .specs import make_spec

        return make_spec(self.manifest, self._count, categorical_action_encoding)

    @property
    def observation_space(self) -> gymnasium.Space:
        """The Gymnasium space that the manifest states, otherwise boxes of the leaves' shapes and dtypes.

        Raises MissingExtraError without gymnasium, UnknownKeyError without an observation, SchemaError as `make_spec`.
        """
        return self._space("observation")

    @property
    def action_space(self) -> gymnasium.Space:
        """As `observation_space`; an unstated number of values of a Discrete is that of `make_spec`."""
        return self._space("action")

    def _space(self, base: str) -> gymnasium.Space:
        from .specs import gymnasium_space

        return gymnasium_space(self.manifest, base, self._count)

    def _count(self, name: str) -> int:
        return int(self[name].max()) + 1 if len(self) else 1

    def __len__(self) -> int:
        return self.manifest.steps

    def __repr__(self) -> str:
        return f"Dataset({self.id!r}, steps={len(self)}, episodes={self.manifest.episodes}, path={str(self.path)!r})"

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.schema.names)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_folder, (self.path.absolute(), self.manifest.content, type(self))

    @cached_property
    def episodes(self) -> EpisodeTable:
        """The position, outcome and return of each episode. Raises DamagedDatasetError if the table is invalid."""
        return self._table.checked(self.path, len(self))

    @property
    def episode_starts(self) -> torch.Tensor:
        """First step of every episode and, last, the number of steps: int64 ``[episodes + 1]``, a copy."""
        return self._starts.clone()

    @cached_property
    def _starts(self) -> torch.Tensor:
        """`episode_starts`, not to be changed."""
        return torch.from_numpy(np.append(self.episodes.starts, len(self)))

    @property
    def rows(self) -> Mapping[str, Rows]:
        """The leaves by name."""
        return self._rows

    @property
    def group_steps(self) -> int:
        """How many consecutive steps take about GROUP_BYTES of the largest leaf; shuffling in blocks keeps them together."""
        stored = {codec_of(leaf).path("blob") for leaf in self.manifest.schema if leaf.constant is None}
        files = self.manifest.files
        largest = max((sum(int(length) for length, _ in files.get(path, ())) for path in stored), default=0)
        return max(1, len(self) * GROUP_BYTES // max(1, largest))

    @property
    def folders(self) -> tuple[tuple[Path, Manifest], ...]:
        """The folders that hold the stored rows, with their manifests; empty if some rows are not in such a folder."""
        return ((self.path, self.manifest),)

    def plan_steps(self, ranges: Sequence[tuple[int, int]] = (), keys: Collection[str] | None = None) -> None:
        """Steps ``start..stop-1`` of these ranges are read next, of the leaves ``keys``: a dataset at a URL fetches them."""

    def episode_of(self, steps: torch.Tensor) -> torch.Tensor:
        """Return the episode each step belongs to, int64, same shape."""
        return runs_of(self._starts, steps)

    # -- views -----------------------------------------------------------------------------------------------------

    def select(self, *, episodes: Any = None, steps: Any = None) -> DatasetView:
        """Make a view of some ``episodes`` or ``steps``, in the order given: numbers, a range, a slice, or a mask over all.

            dataset.select(episodes=range(100))
            dataset.select(episodes=dataset.episodes.where(min_return=3000, outcome="truncated"))
            dataset.select(steps=slice(0, 50_000))

        Nothing is copied. Each run of consecutive steps of an episode becomes an episode of the view; if the original episode
        continues after it, its last step is truncated (and done). Raises UsageError for numbers out of range, and unless
        exactly one of the two is given.
        """
        if (episodes is None) == (steps is None):
            raise UsageError("select takes either episodes or steps")
        from . import view

        if episodes is not None:
            return self._view(
                view.Segments.of_episodes(self.episodes, view.chosen("episodes", episodes, len(self.episodes)))
            )
        return self._view(view.Segments.of_steps(self.episodes, view.chosen("steps", steps, len(self))))

    def _view(self, segments: Segments) -> DatasetView:
        return DatasetView((self,), segments)

    def save(self, dest: str, **options: Any) -> Path:
        """Write this dataset or view as the dataset ``dest``, such as ``"my/expert"``; returns its folder.

        Equals `rbdata.preprocess` without a function, and takes its ``options``: ``root``, ``force``, ``procs``, ``codec``, ...
        Compressed rows are copied unchanged; the lineage names the datasets that they come from. Raises as `preprocess`.
        """
        from . import plugins

        return plugins.above("preprocess")(self, (), dest=dest, **options)

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(
        self,
        steps: torch.Tensor | Iterable[int],
        *,
        before: int = 0,
        length: int = 1,
        after: int = 0,
        keys: Iterable[str] | None = None,
        pad: Pad = "zero",
    ) -> TensorDict:
        """Return windows of ``before + length + after`` steps that start ``before`` steps ahead of each of ``steps``.

        Returns TED with batch ``[B, before + length + after]`` and ``mask`` (bool, same shape), which is False where the
        window leaves the episode and rows are padding. A state leaf and its successor are overlapping views of the rows
        read: ``clone`` one of them before changing it in place. ``keys`` selects leaves (for a state leaf, ``"observation"``
        includes ``"next/observation"``). Raises UsageError for steps outside the dataset, negative extents and unknown keys.
        """
        index = self._checked(steps)
        if min(before, length - 1, after) < 0:
            raise UsageError(f"a window of before={before}, length={length}, after={after} is invalid")
        if pad not in ("zero", "repeat"):
            raise UsageError(f"pad is {pad!r}, not 'zero' or 'repeat'")
        extent = before + length + after
        episode = self.episode_of(index)
        low, high = lookup(self._starts, episode), lookup(self._starts, episode + 1)
        first = index - before
        position = first[:, None] + torch.arange(extent, device="cpu")
        columns: dict[str, torch.Tensor] = {"mask": (position >= low[:, None]) & (position < high[:, None])}
        for name in self._names(keys):
            rows = self.rows[name]
            if rows.leaf.kind == "step":
                columns[name] = read_window(rows, first, extent, low, high, pad)
            else:
                # State row of step i in episode e is i + e, and an episode has one more of them.
                states = read_window(rows, first + episode, extent + 1, low + episode, high + episode + 1, pad)
                columns[name], columns["next/" + name] = states[:, :-1], states[:, 1:]
        return nest(columns, (len(index), extent))

    @overload
    def __getitem__(self, key: str | tuple[str, ...]) -> torch.Tensor: ...

    @overload
    def __getitem__(self, key: int | slice | Sequence[int] | torch.Tensor | np.ndarray) -> TensorDict: ...

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._leaf(key)
        if isinstance(key, tuple) and key and all(isinstance(part, str) for part in key):
            return self._leaf("/".join(key))
        return self.steps_at(key)

    def steps_at(self, key: Any, keys: Iterable[str] | None = None) -> TensorDict:
        """``dataset[key]`` for a number, a slice, numbers or a mask; ``keys`` selects leaves as in `read`."""
        index = row_index(list(key) if isinstance(key, tuple) else key, len(self), "step")
        if isinstance(index, slice):
            return self._range(index.start, index.stop, index.step, keys)
        if isinstance(index, int):
            return self._steps(torch.tensor([index], device="cpu"), keys)[0]
        return self._steps(index.reshape(-1), keys).reshape(index.shape)

    def episode(self, number: int) -> TensorDict:
        """Return one whole episode as TED, batch ``[its length]``."""
        if not -len(self.episodes) <= number < len(self.episodes):
            raise UsageError(f"there is no episode {number}: {self.id} has {len(self.episodes)}")
        number %= len(self.episodes)
        start = int(self.episodes.starts[number])
        return self._range(start, start + int(self.episodes.lengths[number]), 1)

    def to_tensordict(self) -> TensorDict:
        """Return the whole dataset in memory, as TED with batch ``[steps]``; state leaves become ``key`` and ``next/key``."""
        return self._range(0, len(self), 1)

    def to_numpy(self, keys: Iterable[str | tuple[str, ...]] | None = None) -> dict[str, np.ndarray]:
        """Return leaves in memory by TED key (``"next/reward"``), a row per step: all leaves, or those at and below ``keys``.

        Raises UnknownKeyError.
        """
        names = self.schema.names
        if keys is not None:
            names = [leaf for name in _paths(keys) for leaf in self._at_or_below(name)]
        return {name: self[name].numpy() for name in names}

    def qlearning(self) -> dict[str, np.ndarray]:
        """Return the arrays of `d4rl.qlearning_dataset`: ``observations``, ``actions``, ``next_observations``, ``rewards`` and
        ``terminals``, the last two ``[steps]``.

        d4rl leaves out steps that a time limit ends, because its files lack their successors. Here every step has a successor.
        Raises UnknownKeyError for observations of several leaves.
        """
        keys = {"observations": "observation", "actions": "action", "next_observations": "next/observation"}
        missing = [key for key in keys.values() if key not in self.schema.names]
        if missing:
            message = f"{self.id} has no single array {missing[0]!r}"
            raise UnknownKeyError(message, hint=f"there are {', '.join(self.schema.names)}: `to_numpy` returns each")
        arrays = {name: self[key].numpy() for name, key in keys.items()}
        flat = {"rewards": "next/reward", "terminals": "next/terminated"}
        return arrays | {name: self[key].numpy().reshape(-1) for name, key in flat.items()}

    def iter_episodes(self) -> Iterator[TensorDict]:
        """Return the episodes in order, each as TED with batch ``[its length]``."""
        return map(self.episode, range(len(self.episodes)))

    def as_source(self, **options: Any) -> Any:
        """Return the steps by number, as dictionaries of NumPy arrays: what the loaders of grain, of torch and others take.

            source = dataset.as_source(windows={"observation": (-1, 0), "action": (0, 15)})

        ``options`` are those of `rbdata.load` that say what a record has: ``keys``, ``windows``, ``frame_stack``, ``n_step``,
        ``extra``, ``normalize``, ``reward_scale``, ``dtype``, ``transform``, ``form``. ``len(source)`` is the number of steps,
        ``source[i]`` the nested dictionary of a step (arrays of the leaves' shapes, a window ``[rows, *shape]``), and
        ``source.__getitems__([i, j, ...])`` the list of these, read at once. It pickles as a path and these options, so that
        workers may be forked or spawned, and may be read by several threads. Raises as `rbdata.load`, and UsageError for goals,
        which are drawn with batches.
        """
        from . import plugins

        return plugins.above("load")(self, **{"output": "numpy", **options}).as_map()

    def _steps(self, index: torch.Tensor, keys: Iterable[str] | None = None) -> TensorDict:
        return self.read(index, keys=keys).exclude("mask")[:, 0]

    def _range(self, start: int, stop: int, step: int, keys: Iterable[str] | None = None) -> TensorDict:
        if step != 1:
            return self._steps(torch.tensor(range(start, stop, step), dtype=torch.int64, device="cpu"), keys)
        stop = max(start, stop)
        every = [key for name in self._names(keys) for key in self.rows[name].leaf.names]
        return nest(dict(read_columns(self, start, stop, every, copy=True)), (stop - start,))

    def state_numbers(self, start: int, stop: int) -> torch.Tensor:
        """Return the state row in which each of steps ``start..stop-1`` starts, int64; its successor is the next row."""
        steps = torch.arange(start, stop, device="cpu")
        return steps + self.episode_of(steps)

    def _leaf(self, name: str) -> torch.Tensor | TensorDict:
        """A leaf, or the leaves below a name as a TensorDict."""
        found = self._at_or_below(name)
        if found != [name]:
            return nest({one[len(name) + 1 :]: self._leaf(one) for one in found}, (len(self),))
        ((_, rows),) = read_columns(self, 0, len(self), [name], copy=True)
        return rows

    def _at_or_below(self, name: str) -> list[str]:
        names = self.schema.names
        found = at_and_below(names, name)
        if not found:
            raise UnknownKeyError(f"there is no leaf {name!r}", hint=f"there are {', '.join(names)}")
        return found

    def _names(self, keys: Iterable[str] | None) -> list[str]:
        if keys is None:
            return list(self.rows)
        wanted = _paths(keys)
        unknown = [name for name in wanted if name not in self.rows]
        if unknown:
            raise UnknownKeyError(f"unknown keys {', '.join(unknown)}", hint=f"there are {', '.join(self.rows)}")
        return wanted

    def _checked(self, steps: torch.Tensor | Iterable[int]) -> torch.Tensor:
        index = torch.as_tensor(steps if isinstance(steps, (torch.Tensor, np.ndarray)) else list(steps), device="cpu")
        if index.numel() and (index.is_floating_point() or index.is_complex() or index.dtype == torch.bool):
            raise UsageError(f"steps are whole numbers, not {index.dtype}")
        index = index.long()
        if index.ndim != 1:
            raise UsageError(f"steps must be one-dimensional, not {tuple(index.shape)}")
        if len(index) and (int(index.min()) < 0 or int(index.max()) >= len(self)):
            raise UsageError(f"steps {int(index.min())}..{int(index.max())} are not all below {len(self)}")
        return index


def _paths(keys: Iterable[str | tuple[str, ...]]) -> list[str]:
    """Keys as names of leaves; a string is one key."""
    return [keys] if isinstance(keys, str) else ["/".join(key) if isinstance(key, tuple) else key for key in keys]


def read_columns(
    dataset: Dataset, start: int, stop: int, keys: Iterable[str], *, copy: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """TED keys and the rows ``[stop - start, ...]`` of steps ``start..stop-1``. A state leaf has two keys, which share a read
    where one follows the other. Without ``copy``, the rows of step leaves may be views of what all readers of this process map.
    """
    leaves = dataset.rows
    held = ""
    states: Any = None  # the state rows of leaf `held`, and where in them each step starts
    local: Any = None
    for key in keys:
        name = key if key in leaves else key.removeprefix("next/")
        rows = leaves[name]
        if start == stop:
            yield key, rows.block(0, 0)
        elif rows.leaf.kind == "step":
            yield key, rows.block(start, stop).clone() if copy else rows.block(start, stop)
        else:
            if name != held:
                numbers = dataset.state_numbers(start, stop)
                states, local, held = rows.block(int(numbers[0]), int(numbers[-1]) + 2), numbers - numbers[0], name
            yield key, states.index_select(0, local + (name != key))


def open_leaf(folder: Path, leaf: Leaf, count: int) -> Rows:
    """Return the first ``count`` rows of a leaf, mapped."""
    if leaf.constant is None:
        return codec_of(leaf).open_rows(folder, count)
    if leaf.row_bytes > LARGE_ROW:  # never read, but its rows take memory: the file must back the claimed size
        map_array(folder / leaf.memmap, np.dtype(np.uint8), count * leaf.row_bytes)
    return ConstantRows(leaf, count)


def open_folder(path: str | os.PathLike[str], content: str | None = None, kind: type[Dataset] = Dataset) -> Dataset:
    """Return a dataset folder as a `Dataset`, or as a subclass ``kind`` of it; ``content``: the expected content.

    Raises UsageError if the folder holds a dataset with other content.
    """
    opened = object.__new__(kind)
    opened._open(Path(path))
    if content not in (None, opened.manifest.content):
        message = f"{opened.path} was replaced by a dataset with other content since this one was opened"
        raise UsageError(message, hint="open it again, and pickle that")
    return opened


# -- views -----------------------------------------------------------------------------------------------------------------


class DatasetView(Dataset):
    """Segments of episodes of ``members``, which must have the same leaves (``keys`` "common": only shared leaves are read).

    Reads like any dataset, with its own numbers of steps and episodes; its ``id`` and other facts are those on which the
    members agree. ``marked`` adds the leaf ``dataset`` (int64 ``[]``), the number of the member that a step is from. See
    `view`.
    """

    def __init__(
        self,
        members: Sequence[Dataset],
        segments: Segments,
        keys: Literal["all", "common"] = "all",
        marked: bool = False,
    ) -> None:
        from . import view

        self.members, self._segments, self._keys, self._marked = tuple(members), segments, keys, marked
        self._table = view.make_table(self.members, self._segments)
        leaves = view.common_leaves(self.members, keys)
        self._rows = view.make_rows(self.members, self._segments, leaves, self._table, marked)
        schema = Schema(tuple(rows.leaf for rows in self._rows.values()))
        self.manifest = view.make_manifest(self.members, self._segments, schema, self._table)
        self.path = self.members[0].path

    def _view(self, segments: Segments) -> DatasetView:
        # a view of the members, so that reads do not go through two views
        return DatasetView(self.members, segments.within(self._segments), self._keys, self._marked)

    @property
    def group_steps(self) -> int:
        return min(member.group_steps for member in self.members)

    @property
    def folders(self) -> tuple[tuple[Path, Manifest], ...]:
        found = [member.folders for member in self.members]
        return tuple(folder for one in found for folder in one) if all(found) else ()

    def _count(self, name: str) -> int:
        return max(member._count(name) for member in self.members)

    def _environment(self) -> Any:
        first, *others = (member._environment() for member in self.members)
        return first if all(one == first for one in others) else None

    def __reduce__(self) -> tuple[Any, ...]:
        return DatasetView, (self.members, self._segments, self._keys, self._marked)

    def __repr__(self) -> str:
        return f"DatasetView({self.id!r}, steps={len(self)}, episodes={self.manifest.episodes})"


def concat(datasets: Sequence[Dataset], keys: Literal["all", "common"] = "all", *, marked: bool = False) -> DatasetView:
    """Return a view of all episodes of ``datasets``, one after the other; for ``keys`` and ``marked`` see `DatasetView`.

    Raises UsageError, naming them, for datasets whose leaves differ, unless ``keys`` is "common".
    """
    if keys not in ("all", "common"):
        raise UsageError(f"keys is {keys!r}, not 'all' or 'common'")
    if not datasets:
        raise UsageError("concat needs at least one dataset")
    from . import view

    wholes = [
        view.Segments.of_episodes(one.episodes, np.arange(len(one.episodes)), number)
        for number, one in enumerate(datasets)
    ]
    return DatasetView(tuple(datasets), view.Segments.join(wholes), keys, marked)
