"""From the options of ``rbdata.load`` to a buffer over a dataset."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from tensordict import TensorDict

from ...errors import UnknownKeyError, UsageError
from ..dataset import Dataset, DatasetView, DerivedDataset
from ..derived_leaves import EXTRA, derivation
from ..load_options import check_companions, check_options
from ..remote.remote_dataset import RemoteDataset
from .columns import Recipe
from .draw import Draw
from .goals import Relabeling
from .order import Place
from .reading import Reader
from .samplers.sampler import Sampler
from .samplers.slices import SliceSampler, SliceSamplerWithoutReplacement, UniformOver
from .samplers.uniform import RandomSampler, SamplerWithoutReplacement
from .storages.dataset_storage import DatasetStorage
from .tensordict_buffer import TensorDictReplayBuffer
from .timeline import path_of


def load_buffer(
    dataset: Dataset,
    *,
    keys: Sequence[str | tuple[str, ...]] | None = None,
    extra: str | Sequence[str] | None = None,
    normalize: Any = None,
    reward_scale: float | str | None = None,
    dtype: str | torch.dtype | None = None,
    goals: Any = None,
    weights: Sequence[float] | None = None,
    shares: str = "random",
    sampler: Sampler | None = None,
    **options: Any,
) -> TensorDictReplayBuffer:
    """A buffer over a dataset, whose batches are TED TensorDicts with ``index`` (int64, the steps drawn).

    ``options``: those of `make_sampler` and of `ReplayBuffer`; all as in `rbdata.load`. Three stages: the leaves that are
    computed when they are read, the sampler that draws the steps, the buffer that reads and finishes them. Raises UsageError
    for options that make no sense together, or of which one has no effect (`load_options`).
    """
    shuffle = options.get("shuffle", True)
    if shuffle not in (True, False, "global", "blocks"):
        raise UsageError(f"shuffle is {shuffle!r}, not True, False, 'global' or 'blocks'")
    drawing = {"sampler": sampler, "weights": weights, "shares": shares, "keys": keys}
    computed = {"extra": extra, "normalize": normalize, "reward_scale": reward_scale}
    check_options({**options, **computed, **drawing}, dataset.schema.names)
    if goals is not None:
        _check_goals(options, extra, reward_scale)
    derive, statistics = derivation(dataset, **computed, dtype=dtype)
    read = dataset if derive is None else DerivedDataset(dataset, derive)
    chosen = _chosen_keys(read, keys, extra)
    storage = DatasetStorage(read, chosen, dataset)
    if shuffle != "blocks" and isinstance(dataset, RemoteDataset):
        dataset.plan_steps(keys=_stored(dataset, chosen, options.get("windows")))
    chosen_sampler = _sampler(dataset, sampler, weights, shares, options)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=chosen_sampler, **options)
    buffer._statistics = statistics
    if goals is not None:
        relabeling = Relabeling(read, goals, discount="discount" in _names(extra))
        buffer._change(options=replace(buffer._batches.options, goals=relabeling))
    buffer._batches.reader()  # raises for keys that there are not: here rather than at the first batch
    return buffer


def _names(given: Any) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


def _chosen_keys(dataset: Dataset, keys: Any, extra: Any) -> list[str] | None:
    """The TED keys at and below ``keys``, and the ``extra`` ones; None for all. Raises UnknownKeyError."""
    if keys is None:
        return None
    if isinstance(keys, str):
        raise UsageError(f"keys is a sequence of keys, not {keys!r}", hint=f"keys=[{keys!r}]")
    names = dataset.schema.names
    wanted = [path_of(key) for key in keys]
    unknown = [path for path in wanted if not any(f"{name}/".startswith(f"{path}/") for name in names)]
    if unknown:
        raise UnknownKeyError(f"unknown keys {', '.join(unknown)}", hint=f"there are {', '.join(names)}")
    chosen = [name for name in names if any(f"{name}/".startswith(f"{path}/") for path in wanted)]
    return list(dict.fromkeys([*chosen, *(name for name in _names(extra) if name in EXTRA)]))


def _stored(dataset: Dataset, keys: Sequence[str] | None, windows: Any) -> list[str] | None:
    """The stored leaves that batches need; None for all."""
    if isinstance(windows, Mapping):
        keys = [path_of(key) for key in windows]
    if keys is None:
        return None
    stored = [name if name in dataset.rows else name.removeprefix("next/") for name in keys]
    return [name for name in dict.fromkeys(stored) if name in dataset.rows]


def _check_goals(options: Mapping[str, Any], extra: Any, reward_scale: Any) -> None:
    """Raise UsageError for options that do not go with goals."""
    if "return_to_go" in _names(extra):
        raise UsageError("return_to_go is of the stored rewards, which goals replace: leave one of them out")
    if options.get("n_step") is not None:
        raise UsageError("goals and rewards are those of single steps: leave out n_step")
    if reward_scale is not None:
        message = "goals replace the rewards, which reward_scale would scale: leave it out"
        raise UsageError(message, hint="rewards of another size come from rbdata.Goals(reward_fn=...)")


# -- the sampler ---------------------------------------------------------------------------------------------------------


def _sampler(dataset: Dataset, given: Sampler | None, weights: Any, shares: Any, options: dict[str, Any]) -> Sampler:
    """The sampler for the options that choose one, which are taken out of ``options``."""
    chosen = {name: options.pop(name) for name in SAMPLING if name in options}
    if chosen.get("shuffle") == "blocks":
        return _block_sampler(dataset, chosen)
    made = make_sampler(max(1, len(dataset)), **chosen)
    if isinstance(made, SliceSampler):
        for name in ("end_key", "traj_key"):
            if options.get(name) is not None:
                setattr(made, name, options[name])
    if weights is None:
        return made if given is None else given
    if type(made) is not RandomSampler:
        raise UsageError("weights draw single steps with replacement: no slices, no priorities, no passes")
    if not isinstance(dataset, DatasetView):
        hint = 'for example rbdata.load(["A", "B"], weights=[0.9, 0.1])'
        raise UsageError("weights go with several datasets", hint=hint)
    from .samplers.mixture import MixtureSampler

    return MixtureSampler([len(one) for one in dataset.members], weights, shares)


def _block_sampler(dataset: Dataset, options: dict[str, Any]) -> Sampler:
    from .samplers.blocks import BlockSampler

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
        from .samplers.prioritized import PrioritizedSampler, PrioritizedSliceSampler

        weight = 1.0 if beta is None else beta
        return (
            PrioritizedSliceSampler(size, alpha, weight, **slices)
            if sliced
            else PrioritizedSampler(size, alpha, weight)
        )
    if sliced:
        if replacement:
            return SliceSampler(**slices)
        return SliceSamplerWithoutReplacement(drop_last=drop_last, shuffle=bool(shuffle), **slices)
    return RandomSampler() if replacement else SamplerWithoutReplacement(drop_last, bool(shuffle))


#: The options that choose a sampler.
SAMPLING = tuple(inspect.signature(make_sampler).parameters)[1:]


def read_steps(
    dataset: Dataset, steps: torch.Tensor, frame_stack: int | None, n_step: int | None, gamma: float
) -> TensorDict:
    """These steps (int64 ``[n]``) as batches have them with these options, for a preprocessing run."""
    recipe = Recipe(frame_stack=frame_stack, n_step=n_step, gamma=gamma)
    reader = Reader(DatasetStorage(dataset), recipe, with_info=False)
    draw = Draw(steps, [len(steps)], [Place()])
    return reader.finish(*reader.begin(draw, None)[0]).clone()  # stacks are overlapping views of the same memory
