"""The parts of an ensemble's batch: each drawn from one member, with what is known of its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_tensor_collection
from torch.utils import _pytree as pytree

from ...errors import UsageError
from .buffer import ReplayBuffer
from .storages.trees import copy_of, stack


def check_members(buffers: Sequence[Any]) -> None:
    """Raise UsageError for what is no buffer, and where there is none."""
    strangers = [type(buffer).__name__ for buffer in buffers if not isinstance(buffer, ReplayBuffer)]
    if not buffers or strangers:
        message = f"an ensemble needs buffers, not {', '.join(strangers) or 'nothing'}"
        raise UsageError(message, hint="of an ensemble, give the members: *ensemble.buffers" if strangers else None)


def draw_part(buffer: ReplayBuffer, size: int, *, ahead: bool, copied: bool = False) -> tuple[Any, dict[Any, Any]]:
    """``size`` records of a member, and their info; where a pass of its sampler ends, records of the next one follow.

    ``ahead``: parts of this size may be prefetched. ``copied``: what the user's code made is kept while it makes another part.
    """
    pieces: list[tuple[Any, dict[Any, Any]]] = []
    missing = size
    while True:
        data, info = buffer._next_batch(missing, missing == size and (ahead or size == buffer.batch_size))
        found = info()
        if isinstance(found["index"], tuple):
            found["index"] = torch.stack(found["index"], -1)
        missing -= len(found["index"])
        # With num_slices, what is missing would be cut into shorter slices.
        is_last = not buffer._ran_out or getattr(buffer.sampler, "num_slices", None) or missing <= 0
        if buffer._runs_own_code and (copied or not is_last):
            data = copy_of(data)
        pieces.append((data, found))
        if is_last:
            break
    if len(pieces) == 1:
        return pieces[0]
    joined = {key: torch.cat([info[key] for _, info in pieces]) for key in pieces[0][1]}
    return concatenate([data for data, _ in pieces]), joined


def stack_parts(parts: list[Any]) -> Any:
    """Parts beside each other; those of TensorDicts that are not alike as a lazy stack."""
    if not isinstance(parts[0], TensorDictBase):
        return stack(parts)
    if {part.device for part in parts} == {None, torch.device("cpu")}:  # lists say nothing of it, which is the same
        parts = [part.to("cpu") for part in parts]
    return LazyStackedTensorDict.maybe_dense_stack(parts)


def concatenate(batches: list[Any]) -> Any:
    """Batches of one kind after each other: TensorDicts, or trees of tensors."""
    if is_tensor_collection(batches[0]):
        return torch.cat(batches)
    return pytree.tree_map(lambda *leaves: torch.cat(leaves), *batches)


def with_info(batch: TensorDictBase, info: dict[Any, Any]) -> TensorDictBase:
    """A part with what its sampler says of it, unless a transform has made other records of them."""
    if len(info["index"]) == len(batch):
        for key, value in info.items():
            if key != "index":
                batch.set(key, value)
    return batch


def index_of(ids: list[int], rows: list[torch.Tensor], dims: int = 1) -> TensorDictBase:
    """Which member each record is from, and its row there: int64 ``buffer_ids`` and ``index``, batch ``[parts, records, ...]``.

    ``dims`` of the rows number records; a lazy stack where parts are not alike.
    """
    if len({row.shape for row in rows}) > 1:
        return LazyStackedTensorDict.lazy_stack([index_of([member], [row], dims)[0] for member, row in zip(ids, rows)])
    shape = torch.Size([len(ids), *rows[0].shape[:dims]])
    members = torch.tensor(ids).view(-1, *[1] * dims).expand(shape).contiguous()
    return TensorDict({"buffer_ids": members, "index": torch.stack(rows)}, shape)


def info_of(ids: list[int], infos: list[dict[Any, Any]]) -> TensorDict:
    """``index`` of all parts, and what all samplers say in one shape: ``[parts, records, ...]``, batch ``[parts]``."""
    index = index_of(ids, [info.pop("index") for info in infos])
    alike = [key for key, value in infos[0].items() if all(_alike(value, info.get(key)) for info in infos)]
    stacked = {key: torch.stack([info[key] for info in infos]) for key in alike}
    return TensorDict({**stacked, "index": index}, [len(ids)])


def _alike(value: Any, other: Any) -> bool:
    return isinstance(other, torch.Tensor) and other.shape == value.shape
