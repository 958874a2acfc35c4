"""From a dataset to online training: batches of both, or a buffer that starts with the dataset."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase

from ...errors import SamplingError, UsageError
from ...storage.dataset import Dataset
from ...storage.replay import LazyTensorStorage, ReplayBuffer, ReplayBufferEnsemble, SliceSampler, Storage
from ...storage.replay.arguments import check_batch_size, check_seed
from ...storage.replay.goals import GoalRelabeling
from ...storage.replay.loading import load_buffer
from ...storage.replay.overrides import is_overridden
from ..local import open_dataset
from .dataset_classes import load_dataset


class OfflineToOnlineReplayBuffer:
    """Batches of a dataset that is never changed and of a buffer that `extend` writes to, ``[batch_size]``.

    - ``offline_dataset``: a buffer, a `Dataset`, its path or id, or a name with a prefix (``"minari:..."``, `load_dataset`).
    - ``online_storage`` or ``online_capacity`` (records of a `LazyTensorStorage`): what the online buffer is made of.
    - ``offline_fraction``: exactly ``round(offline_fraction * batch_size)`` records of every batch are the dataset's, and come
      first; between 0 and 1, see `anneal`. All records are the dataset's while the online buffer is empty.
    - ``transform``: applied to the whole batch. ``seed``: same seed, same batches of both.
    - ``dataset_kwargs``: options of the buffer over the dataset, if that is given by name, and the ``root`` of an id.

    Frame stacks and n-step returns of the dataset's buffer are made of the online records as well, which are stored one by one.
    Raises UsageError where the dataset's batches are slices or windows of a ``sample_unit``, and for ``normalize``,
    ``reward_scale`` and ``goals``, which would change one part of a batch alone. A batch has the keys that both parts have:
    rows and weights of a sampler, for example, only where both buffers give them. Numbers of different precision get the
    higher one, as in TorchRL; raises SamplingError if a leaf has whole numbers in one part and fractions in the other.
    """

    def __init__(
        self,
        offline_dataset: Any,
        *,
        online_storage: Storage | None = None,
        online_capacity: int | None = None,
        offline_fraction: float = 0.5,
        batch_size: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        seed: int | None = None,
        **dataset_kwargs: Any,
    ) -> None:
        if online_storage is not None and online_capacity is not None:
            raise UsageError("give online_storage or online_capacity, not both")
        if online_storage is None:
            if online_capacity is None:
                raise UsageError("give one of online_storage and online_capacity")
            online_storage = LazyTensorStorage(online_capacity)
        if not 0 < offline_fraction < 1:
            raise UsageError(f"offline_fraction must lie between 0 and 1, and is {offline_fraction!r}")
        self.batch_size = None if batch_size is None else check_batch_size(batch_size)
        self._offline_buffer = _offline_buffer(offline_dataset, self.batch_size, dataset_kwargs)
        self._online_buffer = ReplayBuffer(storage=online_storage, **_windows(self._offline_buffer))
        # The hooks of TorchRL's trainers save and restore these two.
        self._offline_fraction = self._base_offline_fraction = float(offline_fraction)
        self._transform = transform
        if seed is not None:
            self.set_seed(seed)

    # Properties, as of TorchRL's class: a subclass of both passes the check of its trainer.
    @property
    def offline_buffer(self) -> Any:
        """The buffer over the dataset."""
        return self._offline_buffer

    @property
    def online_buffer(self) -> ReplayBuffer:
        """The buffer that is written to."""
        return self._online_buffer

    @property
    def offline_fraction(self) -> float:
        """The share of the dataset in a batch, after annealing."""
        return self._offline_fraction

    def anneal(self, step: int, total_steps: int) -> None:
        """Set the dataset's share for a step: it falls linearly from ``offline_fraction`` to none at ``total_steps``."""
        if total_steps < 1:
            raise UsageError(f"total_steps must be at least 1, not {total_steps}")
        self._offline_fraction = self._base_offline_fraction * min(1.0, max(0.0, 1 - step / total_steps))

    def set_seed(self, seed: int) -> None:
        """Start the sequence of batches that belongs to a seed."""
        self.offline_buffer.set_seed(check_seed(seed))
        self.online_buffer.set_seed(seed + 1)

    def add(self, data: Any) -> Any:
        """Write one record to the online buffer."""
        return self.online_buffer.add(data)

    def extend(self, data: Any) -> Any:
        """Write records to the online buffer; returns their rows in it."""
        return self.online_buffer.extend(data)

    def sample(self, batch_size: int | None = None) -> Any:
        """Draw one batch. Raises SamplingError where the two parts do not fit together."""
        size = self.batch_size if batch_size is None else check_batch_size(batch_size)
        if size is None:
            raise UsageError("the batch_size must be provided", hint="give it to the buffer, or to sample()")
        offline = size if not len(self.online_buffer) else round(self._offline_fraction * size)
        shares = ((self.offline_buffer, offline), (self.online_buffer, size - offline))
        parts = [_drawn(buffer, count) for buffer, count in shares if count]
        batch = parts[0] if len(parts) == 1 else _join(*parts)
        if self._transform is None:
            return batch
        changed = self._transform(batch)
        return batch if changed is None else changed

    def state_dict(self) -> dict[str, Any]:
        """The states of both buffers, and where annealing stands."""
        offline = self.offline_buffer
        return {
            **({"offline_buffer": offline.state_dict()} if hasattr(offline, "state_dict") else {}),
            "online_buffer": self.online_buffer.state_dict(),
            "offline_fraction": self._offline_fraction,
            "base_offline_fraction": self._base_offline_fraction,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        fractions = state["offline_fraction"], state["base_offline_fraction"]
        if "offline_buffer" in state:  # older states are without it
            self.offline_buffer.load_state_dict(state["offline_buffer"])
        self.online_buffer.load_state_dict(state["online_buffer"])
        self._offline_fraction, self._base_offline_fraction = fractions

    def __len__(self) -> int:
        return len(self.offline_buffer) + len(self.online_buffer)

    def __repr__(self) -> str:
        return (
            f"OfflineToOnlineReplayBuffer(offline={self.offline_buffer!r}, online={self.online_buffer!r}, "
            f"offline_fraction={self._offline_fraction:.3f}, batch_size={self.batch_size})"
        )


def prefill_replay_buffer(rb: Any, dataset: Any, n_samples: int | None = None, chunk_size: int = 1000) -> Any:
    """Copy a dataset (as in `OfflineToOnlineReplayBuffer`) into the buffer ``rb``, and return that.

    Without ``n_samples`` every record is copied once and in order, so that episodes stay whole; with fewer than there are,
    ``n_samples`` records are drawn by the dataset's sampler. Either way the copies are what batches of the dataset's buffer
    hold: with ``n_step`` the rewards are n-step returns, with ``frame_stack`` the observations are stacks. ``chunk_size``
    records are copied at a time.

    Raises UsageError if all records are to be copied and a class of yours overrides ``sample`` (of a sampler also ``draw``): a
    copy in order calls neither.
    """
    source = _offline_buffer(dataset, check_batch_size(chunk_size), {})
    if isinstance(source, ReplayBufferEnsemble):
        raise UsageError("an ensemble has no order of records", hint="prefill from its members: ensemble.buffers")
    if _has_goals(source):
        message = "goals are drawn with each batch, and not a part of the records that are copied"
        raise UsageError(message, hint="leave out goals=")
    total = len(source) if n_samples is None else min(n_samples, len(source))
    if total == len(source):
        _check_draws_alike(source)
        in_order = getattr(getattr(source, "storage", None), "in_order", True)
    else:
        in_order = isinstance(getattr(source, "sampler", None), SliceSampler)
    copied = 0
    while copied < total:
        count = min(chunk_size, total - copied)
        if total == len(source):
            data = _in_time(source, copied, count)
        else:
            data = source.sample(count)
            count = len(data) if isinstance(data, TensorDictBase) else count
        rb.extend(data.exclude(*_OF_A_DRAW) if isinstance(data, TensorDictBase) else data)
        copied += count
    if not in_order and isinstance(getattr(rb, "storage", None), Storage):
        rb.storage.ordered = 0
    return rb


def _check_draws_alike(source: Any) -> None:
    """Raise UsageError for a buffer whose batches may hold other records, or other values, than it does in order."""
    if not isinstance(source, ReplayBuffer):
        return
    for part, name in ((source, "sample"), (source.sampler, "sample"), (source.sampler, "draw")):
        if is_overridden(part, name):
            message = f"a copy of all records in order would not call {type(part).__name__}.{name}()"
            hint = "give fewer n_samples than there are records, or extend with batches: rb.extend(...)"
            raise UsageError(message, hint=hint)


#: Keys of a batch that say how and where its records were drawn.
_OF_A_DRAW = ("index", "index_generation", "priority_weight", "_weight")


def _in_time(source: Any, first: int, count: int) -> Any:
    """Records by their order in time, which in a ring that has wrapped begins at its oldest row.

    In a storage with more dimensions, it is one environment after the other.
    """
    storage: Any = getattr(source, "storage", None)
    oldest, ndim = getattr(storage, "oldest", 0), getattr(storage, "ndim", 1)
    places = torch.arange(first, first + count, device="cpu")
    if ndim > 1:
        steps = storage.filled
        return source.sample_at(storage.coordinates((places + oldest) % steps * storage.width + places // steps))
    if _has_windows(source):
        return source.sample_at((places + oldest) % len(source))
    return source[(places + oldest) % len(source) if oldest else slice(first, first + count)]


def _has_windows(buffer: Any) -> bool:
    spec = getattr(buffer, "_spec", None)
    names = ("frame_stack", "n_step", "key_windows", "expand")
    return spec is not None and any(getattr(spec, name) is not None for name in names)


def _has_goals(buffer: Any) -> bool:
    return isinstance(getattr(getattr(buffer, "_spec", None), "relabeling", None), GoalRelabeling)


def _windows(buffer: Any) -> dict[str, Any]:
    """The windows of a buffer, as options of `ReplayBuffer`. Raises UsageError if one record gives several records of a batch,
    or if values are changed in a way that would not apply to the online records."""
    changed = ["goals"] if _has_goals(buffer) else []
    statistics = getattr(buffer, "statistics", None) or {}
    changed += sorted({"reward_scale" if "scale" in values else "normalize" for values in statistics.values()})
    if changed:
        message = f"{' and '.join(changed)} would change the dataset's half of every batch, and not the online one"
        raise UsageError(message, hint="give OfflineToOnlineReplayBuffer a transform, which changes both")
    spec = getattr(buffer, "_spec", None)
    if isinstance(getattr(buffer, "sampler", None), SliceSampler) or (spec is not None and spec.expand is not None):
        message = "half of every batch would be slices or windows, and half single records of the online buffer"
        raise UsageError(message, hint="leave out slice_len, num_slices and sample_unit, or sample from two buffers")
    if spec is None or not _has_windows(buffer):
        return {}
    look_ahead = {} if spec.n_step is None else {"n_step": spec.n_step.steps, "gamma": spec.n_step.gamma}
    if spec.key_windows is not None:
        look_ahead = {"windows": spec.key_windows.offsets, "padding": spec.key_windows.padding}
    ends = {"end_key": spec.edges.end_keys[0] if spec.edges.end_keys else None, "traj_key": spec.edges.traj_key}
    return {"frame_stack": spec.frame_stack, "stack_keys": spec.stack_keys, **look_ahead, **ends}


def _offline_buffer(dataset: Any, batch_size: int | None, options: dict[str, Any]) -> Any:
    if isinstance(dataset, str) and ":" in dataset and not Path(dataset).exists():
        if batch_size is None and "batch_size" not in options:
            raise UsageError("the batch_size must be provided for a dataset that is named with a prefix")
        return load_dataset(dataset, **{"batch_size": batch_size, **options})
    if isinstance(dataset, (str, os.PathLike)):
        options = dict(options)
        dataset = open_dataset(dataset, root=options.pop("root", None))
    if isinstance(dataset, Dataset):
        return load_buffer(dataset, **{"batch_size": batch_size, **options})
    if options:
        message = f"{', '.join(options)}: options are only forwarded when the dataset is named"
        raise UsageError(message, hint="give them to the buffer you pass")
    return dataset


def _drawn(buffer: Any, count: int) -> Any:
    """``count`` records: where a pass without replacement ends within them, the next pass fills them up."""
    batch = buffer.sample(count)
    while isinstance(batch, TensorDictBase) and 0 < len(batch) < count:
        more = buffer.sample(count - len(batch))
        if not len(more):
            break
        batch = torch.cat([batch, more])
    return batch


def _check_kinds(key: Any, offline: Any, online: Any) -> None:
    """Raise SamplingError for bytes beside floating point numbers, and the like: in a batch one becomes the other."""
    if not isinstance(offline, torch.Tensor) or not isinstance(online, torch.Tensor):
        return
    kinds = [(leaf.dtype == torch.bool, leaf.is_floating_point(), leaf.is_complex()) for leaf in (offline, online)]
    if kinds[0] != kinds[1]:
        name = "/".join(key) if isinstance(key, tuple) else key
        message = f"{name} is {offline.dtype} in the dataset and {online.dtype} in the online buffer"
        hint = "convert what you write to the online buffer, or give the offline buffer a transform"
        raise SamplingError(message, hint=hint)


def _join(offline: Any, online: Any) -> Any:
    if isinstance(offline, TensorDictBase) and isinstance(online, TensorDictBase):
        there = set(online.keys(True, True))
        shared = [key for key in offline.keys(True, True) if key in there]
        if not shared:
            raise SamplingError("records of the dataset and of the online buffer have no key in common")
        offline, online = offline.select(*shared), online.select(*shared)
        for key in shared:
            _check_kinds(key, offline.get(key), online.get(key))
    try:
        return torch.cat([offline, online])
    except (RuntimeError, TypeError) as error:
        message = f"records of the dataset and of the online buffer are not alike: {error}"
        raise SamplingError(message, hint="give the offline buffer a transform that makes them so") from error
