"""Leaves that `load` computes from stored ones when they are read: extra leaves, normalised observations, scaled rewards.

`derive_leaves` makes the rows of a `DerivedDataset`, which batches, slices, stacks and windows read like any others. The leaves
of ``extra`` (all ``[*batch, 1]``, like the done leaves of TED):

    is_first        bool      whether the step is the first of its episode
    step            int64     the number of the step in its episode, from 0
    return_to_go    float32   the undiscounted sum of this reward and all later ones of the episode
    discount        float32   1 - terminated: what dm_env calls discount (https://github.com/google-deepmind/dm_env)

Returns to go equal those of the function ``returns_to_go`` of `preprocess` with gamma 1, for the rewards as they are read. They
are computed per episode when one of its steps is first read, and kept: no pass over the data, 4 bytes a step.

`read_statistics` returns what leaves are normalised by, over the states in which an action was taken: the mean and standard
deviation, from one pass that merges blocks in float64 (Chan, Golub & LeVeque, 1983), the extremes, or percentiles. Extremes and
percentiles become -1 and 1, as by lerobot's MIN_MAX and QUANTILES (https://github.com/huggingface/lerobot,
processor/normalize_processor.py).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from numbers import Real
from typing import Any

import numpy as np
import torch

from ..errors import UsageError
from .codecs.codec import Rows, WrappedRows
from .computed_rows import ComputedRows
from .dataset import Dataset
from .episodes import EpisodeTable
from .leaf import Leaf
from .row_index import lookup
from .schema import FLAGS, Schema, at_and_below

#: Returns the rows by which a dataset is read, by leaf, with computed ones (`ComputedRows`): a module-level function, or a
#: `functools.partial` of one, so that the dataset can be pickled.
Derivation = Callable[[Dataset], Mapping[str, Rows]]

EXTRA = ("is_first", "step", "return_to_go", "discount")
#: Added to standard deviations where rows are divided by them, as by ``compute_mean_std`` of CORL (https://github.com/tinkoff-ai/CORL,
#: algorithms/offline/iql.py).
EPS = 1e-3
#: Bytes of the blocks in which rows are read for statistics, and elements of those in which rewards are read for returns.
_BLOCK_BYTES = 16 << 20
_BLOCK_ELEMENTS = 1 << 20

#: Types with values that float32 rounds.
_BEYOND_FLOAT32 = ("int32", "int64", "float64")
#: The error of the result, from a rounded ``shift``, that float32 may have: a few float32 steps near 1.
_LOST = 1e-6

#: What a leaf is normalised by: "mean", "std" (the population's) and "eps", or the two numbers that become -1 and 1.
Moments = Mapping[str, np.ndarray]
#: The statistics of each kind of ``normalize``.
KINDS = {"std": ("mean", "std", "eps"), "minmax": ("min", "max"), "quantile": ("q01", "q99")}
#: Percentiles are those of at most this many bytes of float64 numbers, from states at equal distances.
_QUANTILE_BYTES = 256 << 20


class DerivedDataset(Dataset):
    """A dataset that is read by the leaves that ``derive`` gives; the manifest states the stored ones."""

    folders = ()

    def __init__(self, stored: Dataset, derive: Derivation) -> None:
        self.stored, self.path, self.manifest, self._derive = stored, stored.path, stored.manifest, derive

    @cached_property
    def rows(self) -> Mapping[str, Rows]:
        return dict(self._derive(self.stored))

    @cached_property
    def schema(self) -> Schema:
        return Schema(tuple(rows.leaf for rows in self.rows.values()))

    @cached_property
    def episodes(self) -> EpisodeTable:
        return self.stored.episodes

    def _count(self, name: str) -> int:
        return self.stored._count(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return DerivedDataset, (self.stored, self._derive)


def derive(
    dataset: Dataset,
    extra: Any = None,
    normalize: Any = None,
    reward_scale: Any = None,
    dtype: Any = None,
    only: Iterable[Any] | None = None,
) -> tuple[Dataset, dict[str, Any]]:
    """Return the dataset as these options of `load` have it, and the statistics that were used.

    ``only``: the keys that are read. Raises UsageError for unknown names, for statistics that are not finite, for another
    ``dtype`` than float32, and for options that change nothing that is read.
    """
    names = _extra_names(dataset, extra)
    found: dict[str, Any] = dict(_moments(dataset, normalize))
    scale, shift = _reward_map(dataset, reward_scale)
    if dtype not in (None, "float32", torch.float32):
        raise UsageError(
            f"dtype is {dtype!r}, not 'float32'", hint="other types: transform=lambda batch: batch.double()"
        )
    moments = {name: _affine(values) for name, values in found.items()}
    if reward_scale is not None:
        found["next/reward"] = {"scale": scale, "shift": shift}
    if only is not None:
        changed = {f"extra {name}": [name] for name in names}
        changed |= {f"normalize {key}": _leaves(dataset, key) for key in _keys(normalize)}
        changed |= {} if reward_scale is None else {"reward_scale": ["reward", *{"return_to_go"}.intersection(names)]}
        read = [_path(key).removeprefix("next/") for key in only]
        for option, leaves in changed.items():
            if not at_and_below(leaves, *read):
                hint = "name its leaf there as well, or leave the option out"
                raise UsageError(f"{option} changes nothing of what keys or windows read", hint=hint)
    if not names and not found and dtype is None:
        return dataset, found
    rows = partial(derive_leaves, extra=names, moments=moments, reward=(scale, shift), narrow=dtype is not None)
    return DerivedDataset(dataset, rows), found


def derive_leaves(
    dataset: Dataset,
    *,
    extra: Sequence[str],
    moments: Mapping[str, Any],
    reward: tuple[float, float],
    narrow: bool = False,
) -> dict[str, Rows]:
    """Return all leaves, those of ``moments`` normalised, rewards as ``scale * reward + shift``, and the ``extra`` ones.

    ``narrow``: what is float64, stored or after that, is rounded to float32 when it is read.
    """
    rows: dict[str, Rows] = dict(dataset.rows)
    for name, (mean, std) in moments.items():
        for each in (name, "next/" + name):
            if each in rows:
                rows[each] = AffineRows(rows[each], mean, std)
    if reward != (1.0, 0.0):
        scale, shift = reward
        rows["next/reward"] = AffineRows(rows["next/reward"], -shift / scale, 1 / scale)
    for name in extra:
        kind, dtype = _MAKERS[name]
        rows[name] = kind(name, dtype, dataset, rows)
    if narrow:
        rows = {name: Float32Rows(one) if one.leaf.dtype == "float64" else one for name, one in rows.items()}
    return rows


def _extra_names(dataset: Dataset, extra: Any) -> tuple[str, ...]:
    if isinstance(extra, bool):
        raise UsageError(f"extra is {extra}, not a leaf or several", hint=f"there are {', '.join(EXTRA)}")
    names = () if extra is None else (extra,) if isinstance(extra, str) else tuple(extra)
    for name in names:
        if name not in EXTRA:
            raise UsageError(f"there is no extra leaf {name!r}", hint=f"there are {', '.join(EXTRA)}")
        if name in dataset.schema.names:
            raise UsageError(f"{dataset.id} already has a leaf {name!r}: leave it out of extra")
    if "return_to_go" in names and "next/reward" not in dataset.schema.names:
        raise UsageError(f"{dataset.id} has no next/reward: there are no returns to go")
    return tuple(dict.fromkeys(names))


# -- rows ------------------------------------------------------------------------------------------------------------------


class AffineRows(WrappedRows):
    """``(row - shift) / scale`` of the rows of a leaf, in float32 (float64 if the leaf is float64).

    Far from zero float32 holds neither a row (time stamps) nor ``shift`` to a small part of ``scale``: the difference is then
    computed in float64.
    """

    def __init__(self, rows: Rows, shift: Any, scale: Any) -> None:
        super().__init__(rows)
        dtype = "float64" if rows.leaf.dtype == "float64" else "float32"
        self.leaf = replace(rows.leaf, dtype=dtype, constant=None)
        self._dtype: torch.dtype = getattr(torch, dtype)
        shift, scale = (torch.as_tensor(value, dtype=torch.float64, device="cpu") for value in (shift, scale))
        lost = (shift.float().double() - shift).abs() > _LOST * scale.abs()
        exact = rows.leaf.dtype in _BEYOND_FLOAT32 or bool(lost.any())
        self._within = torch.float64 if exact else torch.float32
        self._shift, self._scale = shift.to(self._within), scale.to(self._within)

    def _read(self, first: np.ndarray, length: int, read: Callable[[], torch.Tensor]) -> torch.Tensor:
        # By NumPy for the reason given in `row_index.lookup`.
        values = read().to(self._within).numpy()
        with np.errstate(all="ignore"):
            mapped = np.divide(np.subtract(values, self._shift.numpy()), self._scale.numpy())
        return torch.from_numpy(mapped).to(self._dtype)


class Float32Rows(WrappedRows):
    """The float64 rows of a leaf, rounded to float32."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows)
        self.leaf = replace(rows.leaf, dtype="float32", constant=None)

    def _read(self, first: np.ndarray, length: int, read: Callable[[], torch.Tensor]) -> torch.Tensor:
        return torch.from_numpy(read().numpy().astype(np.float32))


class _ExtraRows(ComputedRows):
    """A leaf of ``extra``; ``rows`` are those of the other leaves."""

    def __init__(self, name: str, dtype: str, dataset: Dataset, rows: Mapping[str, Rows]) -> None:
        super().__init__(Leaf(name, "step", dtype, (1,)), len(dataset))
        self._dataset, self._others = dataset, rows


class _IsFirst(_ExtraRows):
    def take(self, index: torch.Tensor) -> torch.Tensor:
        return (lookup(self._dataset._starts, self._dataset.episode_of(index)) == index)[:, None]


class _StepNumber(_ExtraRows):
    def take(self, index: torch.Tensor) -> torch.Tensor:
        return (index - lookup(self._dataset._starts, self._dataset.episode_of(index)))[:, None]


class _Discount(_ExtraRows):
    follows_action = True

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return 1 - self._others["next/terminated"].take(index).float()


class _ReturnToGo(_ExtraRows):
    def __init__(self, *leaf: Any) -> None:
        super().__init__(*leaf)
        #: By step; the system allocates memory only for computed ones.
        self._sums = torch.empty(self.count, *self.leaf.shape, dtype=torch.float32, device="cpu")
        self._known = torch.zeros(len(self._dataset._starts) - 1, dtype=torch.bool, device="cpu")

    def take(self, index: torch.Tensor) -> torch.Tensor:
        episode = self._dataset.episode_of(index)
        known = lookup(self._known, episode)
        if not bool(known.all()):
            self._compute(torch.unique(episode[~known]))
        return lookup(self._sums, index)

    def _compute(self, episodes: torch.Tensor) -> None:
        """Compute the sums of these episodes. Threads that compute the same episode write the same numbers."""
        starts = self._dataset._starts
        lengths = starts[episodes + 1] - starts[episodes]
        for length in torch.unique(lengths).tolist():
            alike = starts[episodes[lengths == length]]
            for first in alike.split(max(1, _BLOCK_ELEMENTS // length)):
                later = self._others["next/reward"].windows(first, length).double().flip(1).cumsum(1).flip(1)
                self._sums[first[:, None] + torch.arange(length, device="cpu")] = later.float()
        self._known[episodes] = True


_MAKERS = {
    "is_first": (_IsFirst, "bool"),
    "step": (_StepNumber, "int64"),
    "return_to_go": (_ReturnToGo, "float32"),
    "discount": (_Discount, "float32"),
}


# -- statistics ------------------------------------------------------------------------------------------------------------


def _moments(dataset: Dataset, normalize: Any) -> dict[str, Moments]:
    by = normalize if isinstance(normalize, Mapping) else dict.fromkeys(_keys(normalize), "std")
    found: dict[str, Moments] = {}
    for key, values in by.items():
        if isinstance(values, str):
            if values not in KINDS:
                raise UsageError(f"normalize of {_path(key)} is {values!r}", hint=f"there are {', '.join(KINDS)}")
            found |= read_statistics(dataset, _leaves(dataset, key), values)
        else:
            found[_path(key)] = _given(dataset, _path(key), values)
    return found


def _keys(normalize: Any) -> Iterable[Any]:
    if normalize is None or isinstance(normalize, str):
        return [] if normalize is None else [normalize]
    if not isinstance(normalize, Iterable):
        raise UsageError(f"normalize is {normalize!r}, not a key or several", hint='normalize="observation"')
    return normalize


def _affine(moments: Moments) -> tuple[np.ndarray, np.ndarray]:
    """What is subtracted from a leaf, and what it is then divided by. A component that has one value becomes 0."""
    if "std" in moments:
        return moments["mean"], moments["std"] + moments["eps"]
    low, high = moments.values()
    return (low + high) / 2, np.where(high > low, (high - low) / 2, 1.0)


def _path(key: Any) -> str:
    return key if isinstance(key, str) else "/".join(key)


def _leaves(dataset: Dataset, key: Any) -> list[str]:
    """The numeric leaves at and below a key, which can be normalised."""
    name = _path(key)
    usable = [
        leaf.name
        for leaf in dataset.schema
        if leaf.key[0] != "next" and leaf.key[0] not in FLAGS and leaf.dtype != "bool"
    ]
    found = at_and_below(usable, name)
    if not found:
        hint = f"there are {', '.join(usable)}; rewards have reward_scale"
        raise UsageError(f"{name!r} cannot be normalised", hint=hint)
    return found


def _given(dataset: Dataset, name: str, values: Any) -> Moments:
    leaves = _leaves(dataset, name)
    if leaves != [name]:
        raise UsageError(f"{name!r} is several leaves: give mean and std for each of {', '.join(leaves)}")
    stated = {"eps": 0.0, **values} if isinstance(values, Mapping) and "std" in values else values
    whats = next((some for some in KINDS.values() if isinstance(stated, Mapping) and {*some} == {*stated}), None)
    if whats is None:
        message = f'normalize of {name} is {{"mean": ..., "std": ...}}, and perhaps "eps", not {values!r:.60}'
        raise UsageError(message, hint='or {"min": ..., "max": ...}, {"q01": ..., "q99": ...}, ' + ", ".join(KINDS))
    moments = {what: np.array(stated[what], np.float64) for what in whats}  # copies: the program may change its own
    shape = dataset.schema[name].shape
    for what, values in moments.items():
        if values.shape not in ((), shape) or not np.isfinite(values).all():
            raise UsageError(f"the {what} of {name} is a finite number, or an array {list(shape)} of them")
    first, second, *eps = moments.values()
    if (second + eps[0] <= 0).any() if eps else (first > second).any():
        raise UsageError(f"the {whats[1]} of {name} is too small: std + eps is above 0, and two limits are in order")
    return moments


def read_statistics(dataset: Dataset, names: Iterable[str], kind: str = "std") -> dict[str, Moments]:
    """The statistics of this kind for each leaf, by one pass over it: float64, shaped as a row, or ``[]`` for images (rows of
    two dimensions and more).

    "std": ``mean`` and ``std`` (the population's, ``numpy.std``), and ``eps``, 1e-3: batches hold ``(x - mean) / (std + eps)``.
    "minmax": ``min`` and ``max``; "quantile": ``q01`` and ``q99``, the 1st and the 99th percentile (``numpy.quantile``). These
    become -1 and 1. Raises UsageError for values that are not finite.
    """
    found: dict[str, Moments] = {}
    for name in dict.fromkeys(names):
        found[name] = _COMPUTED[kind](dataset, name) if len(dataset) else {}
        if not found[name] or not all(np.isfinite(one).all() for one in found[name].values()):
            message = f"{name} of {dataset.id} cannot be normalised: it has no values, or some that are not finite"
            raise UsageError(message)
    return found


def _moment_shape(leaf: Leaf) -> tuple[int, ...]:
    return leaf.shape if len(leaf.shape) < 2 else ()


def _blocks(dataset: Dataset, name: str) -> Iterator[np.ndarray]:
    """The values of a leaf in the states in which an action was taken: float64 ``[n, *moment shape]``, to be written to."""
    rows = dataset.rows[name]
    steps = max(1, _BLOCK_BYTES // max(1, 8 * math.prod(rows.leaf.shape)))
    for start in range(0, len(dataset), steps):
        stop = min(len(dataset), start + steps)
        if rows.leaf.kind == "step":
            block = rows.block(start, stop)
        else:  # without the final states
            block = rows.take(dataset.state_numbers(start, stop))
        yield block.numpy().astype(np.float64).reshape(-1, *_moment_shape(rows.leaf))


def _mean_and_std(dataset: Dataset, name: str) -> Moments:
    shape = _moment_shape(dataset.rows[name].leaf)
    count, mean, squares = 0, np.zeros(shape), np.zeros(shape)
    for values in _blocks(dataset, name):
        own = values.mean(0)
        differences, new = own - mean, len(values)
        values -= own
        squares = squares + (values * values).sum(0) + differences**2 * (count * new / (count + new))
        mean, count = mean + differences * (new / (count + new)), count + new
    return {"mean": np.asarray(mean), "std": np.asarray(np.sqrt(squares / count)), "eps": np.asarray(EPS)}


def _extremes(dataset: Dataset, name: str) -> Moments:
    extremes = [(values.min(0), values.max(0)) for values in _blocks(dataset, name)]
    return {"min": np.min([low for low, _ in extremes], 0), "max": np.max([high for _, high in extremes], 0)}


def _percentiles(dataset: Dataset, name: str) -> Moments:
    rows = dataset.rows[name]
    most = max(1, _QUANTILE_BYTES // max(1, 8 * math.prod(rows.leaf.shape)))
    steps = torch.from_numpy(np.linspace(0, len(dataset) - 1, min(len(dataset), most)).astype(np.int64))
    index = steps if rows.leaf.kind == "step" else steps + dataset.episode_of(steps)
    values = rows.take(index).numpy().astype(np.float64).reshape(-1, *_moment_shape(rows.leaf))
    low, high = np.quantile(values, (0.01, 0.99), axis=0, overwrite_input=True)
    return {"q01": np.asarray(low), "q99": np.asarray(high)}


_COMPUTED = {"std": _mean_and_std, "minmax": _extremes, "quantile": _percentiles}


def _reward_map(dataset: Dataset, reward_scale: Any) -> tuple[float, float]:
    """Scale and shift of rewards. Raises UsageError.

    "return_range" is 1000 / (highest - lowest return), the locomotion scaling of CORL's ``modify_reward``
    (algorithms/offline/iql.py; Kostrikov, Nair & Levine, 2021); "minus_one" its reward - 1 for antmaze.
    """
    if reward_scale is None:
        return 1.0, 0.0
    if reward_scale == "minus_one":
        return 1.0, -1.0
    if reward_scale == "return_range":
        returns = dataset.episodes.returns
        width = float(returns.max() - returns.min()) if len(returns) else 0.0
        if not (math.isfinite(width) and width > 0):
            raise UsageError(f"the returns of {dataset.id} have no range to scale rewards by: it is {width}")
        return 1000 / width, 0.0
    number = isinstance(reward_scale, Real) and not isinstance(reward_scale, bool)
    if not number or not math.isfinite(reward_scale) or reward_scale == 0:
        raise UsageError(f"reward_scale is a number, 'return_range' or 'minus_one', not {reward_scale!r}")
    return float(reward_scale), 0.0


# -- leaves that are computed when they are read -----------------------------------------------------------------------------


class EpisodeRows(ComputedRows):
    """The number of the episode of each step, int64 ``[]``."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(Leaf("episode", "step", "int64", ()), len(dataset))
        self._dataset = dataset

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return self._dataset.episode_of(index)


class ShiftedRows(ComputedRows):
    """The rows of a step leaf ``by`` steps later (earlier where negative) in the same episode; zeros outside it."""

    def __init__(self, dataset: Dataset, source: str, name: str, by: int) -> None:
        self._rows, self._dataset, self._by = dataset.rows[source], dataset, by
        super().__init__(replace(self._rows.leaf, name=name, constant=None, codec="raw"), len(dataset))

    def take(self, index: torch.Tensor) -> torch.Tensor:
        starts = self._dataset._starts
        episode = self._dataset.episode_of(index)
        wanted = index + self._by
        outside = (wanted < starts[episode]) | (wanted >= starts[episode + 1])
        found = self._rows.take(torch.where(outside, index, wanted))
        found[outside] = 0
        return found


def rename(rows: Rows, name: str) -> Rows:
    """Return the same rows under another name."""
    renamed = copy.copy(rows)
    renamed.leaf = replace(rows.leaf, name=name)
    return renamed


def add_episode(dataset: Dataset) -> dict[str, Rows]:
    """Return all leaves and ``episode``, the number of each step's episode, where the data have none of their own."""
    return {"episode": EpisodeRows(dataset), **dataset.rows}
