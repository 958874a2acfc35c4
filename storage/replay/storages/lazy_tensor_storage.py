"""A storage of tensors that is allocated when the first record comes."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from tensordict import is_tensor_collection

from .tensor_layout import batch_shape, expand_record, first_leaf
from .tensor_storage import TensorStorage
from .trees import share_memory, tree_map


class LazyTensorStorage(TensorStorage):
    """Allocates when the first record comes. ``device="auto"`` takes that of the first data.

    With ``ndim`` > 1 the further dimensions are those of the first data, and ``max_size`` is rounded up to full rows.
    With ``shared_init`` processes that start before the first record share the rows as well: they lie in temporary files then,
    and the storage is a `LazyMemmapStorage`. ``consolidated`` and ``cleanup_memmap`` are accepted and change nothing.
    """

    #: The kind whose rows lie in files; set where it is defined.
    in_files: type[LazyTensorStorage]

    def __new__(cls, *args: Any, shared_init: bool = False, **options: Any) -> LazyTensorStorage:
        # Memory that processes can find, which started before it was there, is in files.
        return super().__new__(cls.in_files if shared_init and cls is LazyTensorStorage else cls)

    def __init__(
        self,
        max_size: int,
        *,
        device: Any = "cpu",
        ndim: int = 1,
        compilable: bool = False,
        consolidated: bool = False,
        shared_init: bool = False,
        cleanup_memmap: bool = True,
    ) -> None:
        self._auto = device == "auto"
        super().__init__(None, max_size, device=device, ndim=ndim, compilable=compilable)

    __new__.__signature__ = signature(__init__)  # type: ignore[attr-defined]

    def _allocate(self, example: Any) -> None:
        if self._auto:
            self._device = first_leaf(example).device
        beside = batch_shape(example, self.ndim - 1)
        rows = -(-self.max_size // int(beside.numel()))
        self._set_data(self._allocate_rows(example, rows))

    def _allocate_rows(self, example: Any, rows: int) -> Any:
        if is_tensor_collection(example):
            data: Any = torch.empty_like(expand_record(example.to(self._device), rows))
        else:
            data = tree_map(
                lambda leaf: torch.empty((rows, *leaf.shape), dtype=leaf.dtype, device=self._device), example
            )
        return share_memory(data) if self.is_shared else data
