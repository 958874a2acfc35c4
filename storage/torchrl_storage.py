"""A dataset as a storage of TorchRL's own buffers: what the replay runtime here lacks is there, over every codec.

A checkpoint of such a buffer states which dataset it is of; the data stay where they are.

from torchrl.data import ImmutableDatasetWriter, SliceSampler, TensorDictReplayBuffer

storage = rbdata.torchrl_storage("Pong/5")
sampler = SliceSampler(slice_len=8, end_key=("next", "done"), cache_values=True)
buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, writer=ImmutableDatasetWriter(), batch_size=256)
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import MissingExtraError, ReadOnlyError
from .dataset import Dataset
from .replay import DatasetStorage


@cache
def storage_class() -> type:
    """Return the class of the storages that `torchrl_storage` makes. Raises MissingExtraError without torchrl."""
    try:
        from torchrl.data import TensorStorage
    except ImportError as error:
        raise MissingExtraError("torchrl_storage needs torchrl", hint="pip install torchrl") from error

    import torch

    class DatasetTensorStorage(TensorStorage):
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

        def state_dict(self) -> dict[str, Any]:
            return DatasetStorage(self.dataset).state_dict()

        def load_state_dict(self, state: dict[str, Any]) -> None:
            DatasetStorage(self.dataset).load_state_dict(state)

        def dumps(self, path: Any) -> None:
            Path(path).mkdir(exist_ok=True)
            Path(path, "dataset.json").write_text(json.dumps(self.state_dict()))

        def loads(self, path: Any) -> None:
            self.load_state_dict(json.loads(Path(path, "dataset.json").read_text()))

        def __repr__(self) -> str:
            return f"DatasetTensorStorage({self.dataset!r})"

    return DatasetTensorStorage
