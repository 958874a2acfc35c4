"""The arguments of buffers: checks of their values, and their types for the classes that pass them on.

`ReplayBuffer` documents the arguments and has their defaults. A class that passes them on takes ``**options:
Unpack[BufferOptions]``: editors and type checkers read the names and types from here, ``inspect.signature`` through
`keywords.with_options`. The types are split into pieces because an argument that a class declares itself must not also be in
its options.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from typing_extensions import TypedDict

from ...errors import SamplingError, UsageError
from ..amounts import MOST_RECORDS
from ..dataset import Dataset
from ..keywords import whole_number
from .samplers.sampler import Sampler, Use
from .storages.dataset_storage import DatasetStorage
from .storages.list_storage import ListStorage
from .storages.storage import Storage
from .writers import Writer

Part = TypeVar("Part", Storage, Sampler, Writer)


def resolve_storage(given: Any) -> Storage:
    """A storage: resolved by `resolve`, or made for a dataset. Raises UsageError for anything else."""
    if isinstance(given, (Dataset, str, os.PathLike)):
        return DatasetStorage(given)
    example = "LazyTensorStorage(1_000_000), or the path of a dataset"
    return resolve(given, Storage, lambda: ListStorage(1000), example)


def resolve(given: Any, kind: type[Part], default: Callable[[], Part], example: str) -> Part:
    """A part of this kind: as given, made by a given class or function, or the default. Raises UsageError for anything else."""
    if given is None:
        return default()
    made: Any = given() if callable(given) and not isinstance(given, kind) else given
    _check_kind(made, kind, example)
    return made


def _check_kind(part: Any, kind: type[Part], example: str) -> None:
    if not isinstance(part, kind):
        message = f"a {kind.__name__.lower()} is wanted, not a {type(part).__name__}"
        raise UsageError(message, hint=f"for example {example}")


def check_parts(sampler: Sampler, storage: Storage, writer: Writer, use: Use) -> None:
    """Raise UsageError if the parts of a buffer do not work together, or do not support this use, or are no parts."""
    _check_kind(sampler, Sampler, "RandomSampler()")
    _check_kind(storage, Storage, "LazyTensorStorage(1_000_000)")
    _check_kind(writer, Writer, "RoundRobinWriter()")
    sampler._check_parts(storage, writer, use)


def check_frame_stack(frame_stack: Any) -> int:
    """The number of frames in a stack. Raises UsageError unless it is a whole number, NumPy's included, that can be read."""
    if isinstance(frame_stack, bool) or not hasattr(frame_stack, "__index__"):
        raise UsageError(f"frame_stack must be a whole number, not {frame_stack!r}")
    if not 1 <= frame_stack <= MOST_RECORDS:
        raise UsageError(f"frame_stack must be at least 1 and at most {MOST_RECORDS:,}, not {int(frame_stack)!r}")
    return int(frame_stack)


def check_seed(seed: Any) -> int:
    """The seed. Raises UsageError for any value that is not a seed."""
    if not isinstance(seed, (int, np.integer)) or not 0 <= seed < 1 << 64:
        raise UsageError(f"seed must be a whole number of at least 0 and below 2**64, not {seed!r}")
    return int(seed)


def check_batch_size(batch_size: Any) -> int:
    """The batch size. Raises SamplingError if it is invalid."""
    whole = isinstance(batch_size, (int, np.integer)) and not isinstance(batch_size, bool)
    if not whole or not 1 <= batch_size <= MOST_RECORDS:
        message = f"batch_size must be a whole number of at least 1 and at most {MOST_RECORDS:,}, not {batch_size!r}"
        raise SamplingError(message)
    return int(batch_size)


def check_prefetch(prefetch: Any, batch_size: int | None) -> int:
    """How many batches to prefetch. Raises UsageError for an invalid number, or without a batch size."""
    if not prefetch:
        return 0
    prefetch = whole_number("prefetch", prefetch, 0)
    if batch_size is None:
        raise UsageError("prefetching needs the batch_size given to the buffer (or to load())")
    return prefetch


def rank_seed(seed: int, rank: int) -> int:
    """A different seed for each of several processes."""
    return int(np.random.SeedSequence((seed, rank)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def make_generator(seed: int) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(seed)
    return generator


class ServiceOptions(TypedDict, total=False):
    """Options of TorchRL that have no effect here."""

    compilable: bool | None
    service_backend: str
    service_backend_options: dict[str, Any] | None
    transport: str
    transport_options: dict[str, Any] | None


class EnsembleOptions(ServiceOptions, total=False):
    """Options of `ReplayBufferEnsemble` without effect, because its members are made before it and save themselves."""

    checkpointer: Any
    delayed_init: bool | None
    dim_extend: int | None


class CommonOptions(ServiceOptions, total=False):
    """Options that every class passes on."""

    transform_factory: Callable[[], Any] | None
    dim_extend: int | None
    checkpointer: Any
    generator: torch.Generator | None
    shared: bool
    delayed_init: bool | None
    device: Any
    seed: int | None
    frame_stack: int | None
    stack_keys: str | Sequence[str | tuple[str, ...]] | None
    windows: Mapping[Any, tuple[int, int]] | None
    padding: Literal["repeat", "zero"]
    n_step: int | None
    gamma: float
    traj_key: Any
    rank: int
    world_size: int


class CollateOptions(TypedDict, total=False):
    collate_fn: Callable[[Any], Any] | None
    pin_memory: bool
    prefetch: int | None


class WriteOptions(TypedDict, total=False):
    writer: Any
    transform: Any
    batch_size: int | None


class PartOptions(TypedDict, total=False):
    storage: Any
    sampler: Any


class EndOptions(TypedDict, total=False):
    end_key: Any


class PriorityKeyOptions(TypedDict, total=False):
    priority_key: Any


class BufferOptions(PartOptions, WriteOptions, CollateOptions, EndOptions, CommonOptions, total=False):
    """All options of `ReplayBuffer`."""


class HindsightOptions(PartOptions, WriteOptions, CollateOptions, PriorityKeyOptions, CommonOptions, total=False):
    """Options that `HERReplayBuffer` passes on."""


class PrioritizedBufferOptions(WriteOptions, CollateOptions, EndOptions, CommonOptions, total=False):
    """Options that `PrioritizedReplayBuffer` passes on."""


class PrioritizedOptions(PartOptions, PrioritizedBufferOptions, total=False):
    """Options that `TensorDictPrioritizedReplayBuffer` passes on."""

    eps: float
    dtype: torch.dtype
    reduction: str
    sampler_device: Any
    sync: bool
