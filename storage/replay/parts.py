"""What a buffer is given, checked and made into parts."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, is_tensor_collection

from ...errors import SamplingError, UsageError
from ..dataset import Dataset
from .dataset_storage import DatasetStorage
from .samplers import Sampler
from .storages import ListStorage, Storage
from .tensor_storage import stack
from .writers import Writer


def storage_of(given: Any) -> Storage:
    """A storage: as given, made by a function, or that of a dataset. Raises UsageError for anything else."""
    if given is None:
        return ListStorage(1000)
    if isinstance(given, (Dataset, str, os.PathLike)):
        return DatasetStorage(given)
    made = instance(given)
    if not isinstance(made, Storage):
        message = f"a storage is wanted, not a {type(made).__name__}"
        raise UsageError(message, hint="for example LazyTensorStorage(1_000_000), or the path of a dataset")
    return made


def instance(part: Any) -> Any:
    """An instance: given as such, or by a class or function."""
    if part is None or isinstance(part, (Storage, Sampler, Writer)):
        return part
    return part() if callable(part) else part


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
