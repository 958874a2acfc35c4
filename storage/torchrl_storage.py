"""A dataset as a storage of TorchRL's own buffers: what the replay runtime here lacks is there, over every codec.

from torchrl.data import ImmutableDatasetWriter, SliceSampler, TensorDictReplayBuffer

storage = rbdata.torchrl_storage(rbdata.open_dataset("Pong/5"))
sampler = SliceSampler(slice_len=8, end_key=("next", "done"), cache_values=True)
buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, writer=ImmutableDatasetWriter(), batch_size=256)
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from ..errors import MissingExtraError, ReadOnlyError
from .dataset import Dataset


def torchrl_storage(dataset: Dataset | str | os.PathLike[str]) -> Any:
    """Make a read-only ``torchrl.data`` storage (a `TensorStorage`) of the steps of a dataset, an open one or the path of one.

    Rows are read, and frames decoded, when a batch is made; flags and ids are read as whole leaves, once with
    ``cache_values=True``. Writing raises ReadOnlyError. Raises MissingExtraError without torchrl.
    """
    return _storage_class()(dataset if isinstance(dataset, Dataset) else Dataset(dataset))


@cache
def _storage_class() -> type:
    try:
        from torchrl.data import TensorStorage
    except ImportError as error:
        raise MissingExtraError("torchrl_storage needs torchrl", hint="pip install torchrl") from error

    import torch

    class DatasetStorage(TensorStorage):
        """TorchRL's samplers ask for ``storage[:][key]``, which is one leaf of the dataset, and for rows."""

        _is_full = True
        shape = _total_shape = property(lambda self: torch.Size([len(self)]))

        def __init__(self, dataset: Dataset) -> None:
            super(TensorStorage, self).__init__(len(dataset))  # that of TensorStorage takes the tensors themselves
            self.dataset = dataset

        def __len__(self) -> int:
            return len(self.dataset)

        def get(self, index: Any) -> Any:
            whole = isinstance(index, slice) and index == slice(None)
            return self.dataset if whole else self.dataset[index[0] if isinstance(index, tuple) else index]

        def set(self, *arguments: Any, **options: Any) -> None:
            raise ReadOnlyError(
                f"{self.dataset.id} doesn't allow writing", hint="give the buffer writer=ImmutableDatasetWriter()"
            )

    return DatasetStorage
