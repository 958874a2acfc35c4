"""What a buffer is given, checked and made into parts."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from tensordict import TensorDict, is_tensor_collection
from torch.utils import _pytree as pytree

from ...errors import SamplingError, SchemaError, UsageError
from ..dataset import Dataset
from .samplers.uniform import RandomSampler, Sampler
from .storages.dataset_storage import DatasetStorage
from .storages.storage import ListStorage, Storage
from .storages.tensor_storage import stack
from .writers.round_robin import Writer

Part = TypeVar("Part", Storage, Sampler, Writer)


def storage_of(given: Any) -> Storage:
    """A storage: as given, made by a function, or that of a dataset. Raises UsageError for anything else."""
    if given is None:
        return ListStorage(1000)
    if isinstance(given, (Dataset, str, os.PathLike)):
        return DatasetStorage(given)
    return instance(given, Storage, "LazyTensorStorage(1_000_000), or the path of a dataset")


def sampler_of(given: Any) -> Sampler:
    """A sampler: as given, made by a function, or the default. Raises UsageError for anything else."""
    return RandomSampler() if given is None else instance(given, Sampler, "SliceSampler(slice_len=32)")


def writer_of(given: Any, default: Callable[[], Writer]) -> Writer:
    """A writer: as given, made by a function, or the default. Raises UsageError for anything else."""
    return default() if given is None else instance(given, Writer, "RoundRobinWriter()")


def instance(part: Any, kind: type[Part], example: str) -> Part:
    """An instance of its kind, given as such or by a class or function. Raises UsageError for anything else."""
    made = part() if callable(part) and not isinstance(part, kind) else part
    if not isinstance(made, kind):
        message = f"a {kind.__name__.lower()} is wanted, not a {type(made).__name__}"
        raise UsageError(message, hint=f"for example {example}")
    return made


def checked_seed(seed: Any) -> int:
    """Raises UsageError for what is no seed."""
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise UsageError(f"seed must be a whole number of at least 0, not {seed!r}")
    return int(seed)


def checked_size(batch_size: Any) -> int:
    """Raises SamplingError for what is no batch size."""
    if not isinstance(batch_size, (int, np.integer)) or isinstance(batch_size, bool) or batch_size < 1:
        raise SamplingError(f"batch_size must be a whole number of at least 1, not {batch_size!r}")
    return int(batch_size)


def checked_depth(prefetch: Any, batch_size: int | None) -> int:
    """How many batches to prefetch. Raises UsageError for what is no number of them, or without a batch size."""
    if not prefetch:
        return 0
    if not isinstance(prefetch, int) or prefetch < 0:
        raise UsageError(f"prefetch must be a number of batches, not {prefetch!r}")
    if batch_size is None:
        raise UsageError("prefetching needs the batch_size given to the buffer (or to load())")
    return prefetch


def mixed_seed(seed: int, rank: int) -> int:
    """A seed of its own for each of several processes."""
    return int(np.random.SeedSequence((seed, rank)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seeded(seed: int) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(seed)
    return generator


def time_first(data: Any, dim: int, ndim: int) -> Any:
    """Data with the dimension along which they are to be written in front; ``ndim`` is the storage's.

    Raises SchemaError when they have no such dimension.
    """
    if not dim or isinstance(data, list):
        return data
    if is_tensor_collection(data):
        if data.ndim <= dim:
            message = f"data of shape {tuple(data.shape)} have no dimension {dim} to extend along"
            raise SchemaError(message, hint=f"a storage with ndim={ndim} takes batches of [*batch, time]")
        return data.transpose(dim, 0)
    return pytree.tree_map(lambda leaf: leaf.transpose(dim, 0), data)


def stacked(records: Any) -> Any:
    """The records of a list as a batch; numbers become tensors, TensorDicts that are not alike a lazy stack."""
    if not isinstance(records, list) or not records:
        return records
    if not is_tensor_collection(records[0]):
        return stack(records)
    shapes = {
        (record.batch_size, tuple(sorted((str(key), leaf.shape) for key, leaf in record.items(True, True))))
        for record in records
    }
    return TensorDict.lazy_stack(records) if len(shapes) > 1 else torch.stack(records)
