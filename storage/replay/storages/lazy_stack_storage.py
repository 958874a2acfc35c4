"""A list of TensorDicts that need not be alike, read as a lazy stack."""

from __future__ import annotations

from typing import Any

from tensordict import lazy_stack

from .list_storage import ListStorage
from .trees import copy_of


class LazyStackStorage(ListStorage):
    """Records in a list; several of them are read as a ``LazyStackedTensorDict`` along ``stack_dim`` of their batch.

    Leaves may differ in shape from record to record; ``batch.densify(layout=torch.jagged)`` makes nested tensors of them.
    """

    def __init__(
        self, max_size: int | None = None, *, compilable: bool = False, stack_dim: int = 0, device: Any = None
    ) -> None:
        super().__init__(max_size, compilable=compilable, device=device)
        self.stack_dim = stack_dim

    def get(self, index: Any) -> Any:
        records = super().get(index)
        if not isinstance(records, list) or not records:
            return records
        dim = self.stack_dim if self.stack_dim >= 0 else records[0].ndim + 1 + self.stack_dim
        return lazy_stack([copy_of(record) for record in records], dim)  # what is set in it would be set in the records
