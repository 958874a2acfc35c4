"""From the options of ``rbdata.load`` to a buffer over a dataset."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from ...errors import UsageError
from ..dataset import Dataset, DatasetView
from ..derived_leaves import derivation
from ..load_options import check_companions, check_options
from ..remote.remote_dataset import RemoteDataset
from .batches import BatchReader
from .goals import Goals, make_relabeling
from .samplers.mixture import MixtureSampler, Shares
from .samplers.prioritized import PrioritizedSampler, PrioritizedSliceSampler
from .samplers.sampler import Sampler
from .samplers.slices import SliceSampler, SliceSamplerWithoutReplacement, UniformOver
from .samplers.uniform import BlockSampler, RandomSampler, SamplerWithoutReplacement
from .storages.dataset_storage import DatasetStorage
from .tensordict_buffer import TensorDictReplayBuffer
from .timeline import path_of


def load_buffer(
    dataset: Dataset,
    *,
    sampler: Sampler | None = None,
    extra: str | Sequence[str] | None = None,
    normalize: Any = None,
    reward_scale: float | str | None = None,
    weights: Sequence[float] | None = None,
    shares: Shares = "random",
    keys: Sequence[str | tuple[str, ...]] | None = None,
    goals: Goals | None = None,
    dtype: str | torch.dtype | None = None,
    **options: Any,
) -> TensorDictReplayBuffer:
    """A buffer over a dataset, whose batches are TED TensorDicts with ``index`` (int64, the steps drawn).

    - options of `make_sampler`: slices, priorities, or one pass without replacement.
    - ``sampler``: your own sampler instead of these options.
    - ``weights``, ``shares``: of a view of several datasets, see `MixtureSampler`.
    - ``keys``: see `DatasetStorage`.
    - ``extra``, ``normalize``, ``reward_scale``, ``dtype``: leaves computed when they are read, see `derived_leaves`.
    - ``goals``: goals for data that store none, see `goals`.
    - all other ``options`` are those of `ReplayBuffer`: ``batch_size``, ``frame_stack``, ``n_step``,
      ``gamma``, ``transform``, ``prefetch``, ``pin_memory``, ``device``, ``seed``, ``generator``, ``rank``, ``world_size``, ...

    Raises UsageError for options that make no sense together, or of which one has no effect (`load_options`).
    """
    shuffle = options.get("shuffle", True)
    if shuffle not in (True, False, "global", "blocks"):
        raise UsageError(f"shuffle is {shuffle!r}, not True, False, 'global' or 'blocks'")
    computed = {"extra": extra, "normalize": normalize, "reward_scale": reward_scale}
    drawing = {"sampler": sampler, "weights": weights, "shares": shares, "keys": keys}
    check_options({**options, **computed, **drawing}, dataset.schema.names)
    chosen = {name: options.pop(name) for name in SAMPLING if name in options}
    derive, statistics = derivation(dataset, extra=extra, normalize=normalize, reward_scale=reward_scale, dtype=dtype)
    storage = DatasetStorage(dataset, derive=derive, statistics=statistics, keys=keys)
    if shuffle != "blocks" and isinstance(dataset, RemoteDataset):
        dataset.plan_steps(keys=_leaves_read(dataset, storage.keys, options.get("windows")))
    blocks = shuffle == "blocks"
    made = _block_sampler(dataset, chosen) if blocks else make_sampler(storage.max_size, **chosen)
    if isinstance(made, SliceSampler):
        for name in ("end_key", "traj_key"):
            if options.get(name) is not None:
                setattr(made, name, options[name])
    if weights is not None:
        if type(made) is not RandomSampler:
            raise UsageError("weights draw single steps with replacement: no slices, no priorities, no passes")
        sampler = _mixture(dataset, weights, shares)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler or made, **options)
    if buffer.initialized and buffer._spec.has_windows:
        BatchReader(storage, buffer._spec)  # raises for keys that there are not: here rather than at the first batch
    if goals is not None:
        _check_goals(options, reward_scale)
        extras = (extra,) if isinstance(extra, str) else tuple(extra or ())
        buffer._change_spec(relabeling=make_relabeling(storage.dataset, goals, buffer._spec.edges, extras))
    return buffer


def _mixture(dataset: Dataset, weights: Sequence[float], shares: Shares) -> MixtureSampler:
    if not isinstance(dataset, DatasetView):
        hint = 'for example rbdata.load(["A", "B"], weights=[0.9, 0.1])'
        raise UsageError("weights go with several datasets", hint=hint)
    return MixtureSampler([len(one) for one in dataset.members], weights, shares)


def _check_goals(options: Mapping[str, Any], reward_scale: float | str | None) -> None:
    """Raise UsageError for options that do not go with goals."""
    for name in ("n_step", "frame_stack", "windows"):
        if options.get(name) is not None:
            raise UsageError(f"goals and rewards are those of single steps: leave out {name}")
    if reward_scale is not None:
        message = "goals replace the rewards, which reward_scale would scale: leave it out"
        raise UsageError(message, hint="rewards of another size come from rbdata.Goals(reward_fn=...)")


def _leaves_read(dataset: Dataset, keys: Collection[str] | None, windows: Any) -> Collection[str] | None:
    """The stored leaves that batches need; None for all."""
    if not isinstance(windows, Mapping):
        return None if keys is None else [name for name in keys if name in dataset.rows]
    roots = {path_of(key).removeprefix("next/") for key in windows}
    return [name for name in dataset.rows if name.removeprefix("next/") in roots]


def _block_sampler(dataset: Dataset, options: dict[str, Any]) -> Sampler:
    if any(options.get(name) is not None for name in ("slice_len", "num_slices", "alpha", "beta")):
        raise UsageError("shuffle='blocks' draws steps, every one once a pass: no slices, no priorities")
    return BlockSampler(dataset.group_steps, drop_last=bool(options.get("drop_last")))


def make_sampler(
    size: int,
    *,
    slice_len: int | None = None,
    num_slices: int | None = None,
    strict_length: bool = True,
    pad_output: bool = False,
    span: Any = False,
    uniform_over: UniformOver = "trajectories",
    replacement: bool = True,
    drop_last: bool = False,
    shuffle: bool | str = True,
    alpha: float | None = None,
    beta: float | None = None,
) -> Sampler:
    """The sampler of a dataset of ``size`` steps.

    - ``slice_len`` or ``num_slices``, ``strict_length``, ``pad_output``, ``span``, ``uniform_over``: slices of consecutive
      steps, see `SliceSampler`; the last step of every slice is truncated (and done).
    - ``replacement=False``: every step (or one slice of every episode) once per pass; ``drop_last`` leaves out a short last
      batch, ``shuffle=False`` keeps the order.
    - ``alpha`` and ``beta``: sample by priority, see `PrioritizedSampler`; priorities are set with
      ``buffer.update_priority(batch["index"], td_error)``.

    Raises UsageError for options that make no sense together.
    """
    slices = {
        "slice_len": slice_len,
        "num_slices": num_slices,
        "strict_length": strict_length,
        "pad_output": pad_output,
        "span": span,
        "uniform_over": uniform_over,
    }
    sliced = slice_len is not None or num_slices is not None
    passes = {"replacement": replacement, "drop_last": drop_last, "shuffle": shuffle}
    check_companions({**slices, **passes, "alpha": alpha, "beta": beta})
    if alpha is not None:
        if not replacement:
            raise UsageError("priorities are sampled with replacement")
        room, weight = max(1, size), 1.0 if beta is None else beta
        if sliced:
            return PrioritizedSliceSampler(room, alpha, weight, **slices)
        return PrioritizedSampler(room, alpha, weight)
    if sliced:
        if replacement:
            return SliceSampler(**slices)
        return SliceSamplerWithoutReplacement(drop_last=drop_last, shuffle=bool(shuffle), **slices)
    return RandomSampler() if replacement else SamplerWithoutReplacement(drop_last, bool(shuffle))


#: The options that choose a sampler.
SAMPLING = tuple(inspect.signature(make_sampler).parameters)[1:]
