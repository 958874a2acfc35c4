"""Which member of an ensemble a record is written to.

routing_key="task"      the record itself names its member            task  0 2 0      members 0 2 0
routing_dim=1           a dimension of the data is the members        data [time, 3]   members 0 1 2 of each time step
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from ...errors import SchemaError, UsageError
from .windows.edges import as_key


class Router:
    """Shares records out to ``buffers``: by the integer under ``routing_key``, or by their place along ``routing_dim``."""

    def __init__(self, buffers: Sequence[Any], routing_key: Any = None, routing_dim: int | None = None) -> None:
        if routing_key is not None and routing_dim is not None:
            raise UsageError("give routing_key or routing_dim, not both")
        if routing_dim is not None and type(routing_dim) is not int:
            raise UsageError(f"routing_dim is the number of a dimension, not {routing_dim!r}")
        self.buffers, self.routing_dim = buffers, routing_dim
        self.routing_key = None if routing_key is None else as_key(routing_key)
        self.active = routing_key is not None or routing_dim is not None

    def extend(self, data: TensorDictBase) -> TensorDict:
        """Write records, in their order within each member; returns ``buffer_ids`` and ``index``, int64, batch ``[n]``.

        ``n`` counts the records of all batch dimensions. Raises SchemaError for data that do not name members, before
        anything is written.
        """
        if not isinstance(data, TensorDictBase):
            raise SchemaError(f"only TensorDicts are shared out to members, not a {type(data).__name__}")
        ids = self._members(data)
        flat = data.reshape(-1)
        index: torch.Tensor | None = None
        for member in ids.unique().tolist():
            chosen = (ids == member).nonzero().squeeze(1)
            rows = torch.as_tensor(self.buffers[member].extend(flat[chosen]))
            if index is None:
                index = torch.full((len(ids), *rows.shape[1:]), -1)
            index[chosen] = rows
        return TensorDict({"buffer_ids": ids, "index": ids.clone() if index is None else index}, [len(ids)])

    def _members(self, data: TensorDictBase) -> torch.Tensor:
        """The member of each record, int64 ``[n]``."""
        count = len(self.buffers)
        if self.routing_key is None:
            dim = self.routing_dim or 0
            if not -data.ndim <= dim < data.ndim or data.shape[dim] != count:
                raise SchemaError(f"data of shape {tuple(data.shape)} have no {count} members along dimension {dim}")
            shape = [1] * data.ndim
            shape[dim] = count
            return torch.arange(count).reshape(shape).expand(data.batch_size).reshape(-1)
        name = "/".join(self.routing_key)
        ids = data.get(self.routing_key, None)
        if ids is None or ids.numel() != data.numel():
            raise SchemaError(f"the data have no {name} with the number of a member for each record")
        ids = ids.reshape(-1).cpu()
        if ids.is_floating_point() or ids.dtype == torch.bool:
            raise SchemaError(f"members are named by whole numbers, and {name} is {ids.dtype}")
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < count:
            raise SchemaError(f"{name} names members {int(ids.min())}..{int(ids.max())} of {count}")
        return ids.long()
