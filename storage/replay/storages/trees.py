"""Trees of tensors: a TensorDict, a tensorclass, a tensor, or tuples, lists and dictionaries of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, is_tensor_collection
from torch.utils import _pytree as pytree

from ....errors import SchemaError, reason
from ..timeline import Key, path_of

HINT = "a ListStorage takes any object"


def tree_map(function: Callable[[Any], Any], data: Any) -> Any:
    """Return a function of every tensor and every TensorDict of a tree."""
    if isinstance(data, torch.Tensor) or is_tensor_collection(data):
        return function(data)
    return pytree.tree_map(function, data, is_leaf=is_tensor_collection)


def tree_copied(data: Any) -> Any:
    """Return a tree with its tensors copied; other values are shared."""

    def copied(part: Any) -> Any:
        if is_tensor_collection(part):
            return part.apply(torch.clone, filter_empty=False)  # to the bit, which `TensorDict.clone` is not
        return part.clone() if isinstance(part, torch.Tensor) else part

    return tree_map(copied, data)


def check_tensors(data: Any) -> Any:
    """Return a tree with arrays and numbers as tensors. Raises SchemaError for anything that is no tensor."""
    if isinstance(data, torch.Tensor):
        return data
    if is_tensor_collection(data):
        columns_of(data)
        return data

    def tensor(leaf: Any) -> Any:
        if is_tensor_collection(leaf):
            return check_tensors(leaf)
        if not isinstance(leaf, (torch.Tensor, np.ndarray, np.number, np.bool_, int, float, bool)):
            raise SchemaError(f"a {type(leaf).__name__} is no tensor", hint=HINT)
        return torch.as_tensor(leaf)

    return pytree.tree_map(tensor, data, is_leaf=is_tensor_collection)


def as_batch(data: Any) -> Any:
    """Records as one batch: a list of records is stacked. Raises SchemaError for records that are not alike."""
    if isinstance(data, (LazyStackedTensorDict, list)):
        try:
            if isinstance(data, list):
                first = data[0] if data else None
                if not data or not (isinstance(first, torch.Tensor) or is_tensor_collection(first)):
                    columns = [check_tensors(record) for record in data]
                    return pytree.tree_map(lambda *parts: torch.stack(parts), *columns, is_leaf=is_tensor_collection)
                data = torch.stack(data)
            data = data.contiguous() if isinstance(data, LazyStackedTensorDict) else data
        except (RuntimeError, TypeError, ValueError, KeyError) as error:
            raise SchemaError(f"the records are not alike: {reason(error)}", hint=HINT) from error
    return data if isinstance(data, torch.Tensor) or is_tensor_collection(data) else check_tensors(data)


def rows_of(data: Any, ndim: int) -> torch.Size:
    """Return the first ``ndim`` dimensions, which all tensors of a tree must share. Raises SchemaError."""
    if (isinstance(data, torch.Tensor) or is_tensor_collection(data)) and len(data.shape) >= ndim:
        return torch.Size(data.shape[:ndim])
    shapes = [part.shape for part in pytree.tree_leaves(data, is_leaf=is_tensor_collection)]
    if not shapes or len({shape[:ndim] for shape in shapes}) > 1 or len(shapes[0]) < ndim:
        message = (
            f"records have {ndim} leading dimensions in common, not the shapes {[list(shape) for shape in shapes]}"
        )
        raise SchemaError(message)
    return torch.Size(shapes[0][:ndim])


def columns_of(data: Any) -> dict[Key, torch.Tensor]:
    """Return the tensors of a tree by key: the places in it, then those in a TensorDict.

    Raises SchemaError for other leaves.
    """
    if isinstance(data, torch.Tensor):
        return {(): data.as_subclass(torch.Tensor)}
    if not is_tensor_collection(data):
        parts = pytree.tree_leaves_with_path(data, is_leaf=is_tensor_collection)
        return {(*map(str, place), *key): leaf for place, part in parts for key, leaf in columns_of(part).items()}
    columns: dict[Key, torch.Tensor] = {}
    for key, leaf in data.items(True, True, is_leaf=_is_leaf):
        if not isinstance(leaf, torch.Tensor):
            raise SchemaError(f"{path_of(key)} is a {type(leaf).__name__}, no tensor", hint=HINT)
        columns[(key,) if isinstance(key, str) else key] = leaf.as_subclass(torch.Tensor)
    return columns


def _is_leaf(kind: type) -> bool:
    return not is_tensor_collection(kind) or issubclass(kind, (NonTensorData, NonTensorStack))
