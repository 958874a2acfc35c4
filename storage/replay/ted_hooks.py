"""TED, and TED with every state stored once: hooks for `dumps` and `loads`.

    TED          observation  s0 s1 s2 | t0 t1            next  s1 s2 s3 | t1 t2
    flattened    observation  s0 s1 s2 s3 | t0 t1 t2      one extra row for each trajectory

Rows are in order of time, one column of the storage after the other. The layout is TorchRL's (0.14): reward and flags of
``next`` are stored under their own names, with ``is_full``, ``shift`` (the row of the next write) and ``_storage_shape``
beside them. Data are refused if the successor of a step is not the following observation although the step is not done.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tensordict import TensorDict, TensorDictBase

from ...errors import DamagedDatasetError, SchemaError
from ..schema import FLAGS
from .timeline import as_key, in_time

SHAPE_KEY = "_storage_shape"
#: The leaves of ``next`` that have no counterpart at the root, or one that is False.
_OF_NEXT = {("reward",), *((flag,) for flag in FLAGS)}


class TED2Flat:
    """``hook(data, path)``: TED ``[time, *batch]`` to flattened TED in files below ``path`` (None: in memory).

    The buffer sets ``shift`` and ``is_full`` before.
    """

    shift = 0
    is_full = False

    def __call__(self, data: TensorDictBase, path: Path | None = None) -> TensorDictBase:
        shift, full = self.shift, self.is_full
        length, width = data.batch_size[0], int(data.batch_size[1:].numel())
        oldest = shift if full else 0

        def ordered(leaf: torch.Tensor) -> torch.Tensor:
            return in_time(leaf.reshape(length * width, *leaf.shape[data.ndim :]), length, width, oldest)

        done = data.get(("next", "done"), None)
        if done is None:
            raise SchemaError("the data have no next/done: they are not TED")
        ends, place, rows = _flat_places(
            ordered(done.reshape(data.batch_size)), width, length - 1 if full else shift - 1
        )
        after = {as_key(key): leaf for key, leaf in data.get("next").items(True, True)}
        roots = {as_key(key): leaf for key, leaf in data.exclude("next").items(True, True)}
        out = TensorDict(batch_size=[])
        out.set_non_tensor("is_full", full)
        out.set_non_tensor("shift", shift)
        # JSON knows no tuples.
        out.set_non_tensor(SHAPE_KEY, tuple(data.batch_size) if path is None else list(data.batch_size))
        for key in {**roots, **after}:
            if key in _OF_NEXT:
                value = ordered(after[key])
            elif key in after:
                if key not in roots:
                    raise SchemaError(f"next/{'/'.join(key)} has no counterpart at the root: the data are not TED")
                root, successor = ordered(roots[key]), ordered(after[key])
                _check_successors(key, root, successor, ends, length, 0 if full else shift)
                value = root.new_zeros((rows, *root.shape[1:]))
                value[place] = root
                value[place[ends] + 1] = successor[ends]
            else:
                value = ordered(roots[key]).contiguous()
            out.set(key, value)
        return out if path is None else out.memmap(path)


def _flat_places(done: torch.Tensor, width: int, newest: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Where trajectories end (also at the newest step of a column), the flattened row of each root, the number of rows."""
    ends = done.clone()
    ends.view(width, -1)[:, newest] = True
    place = torch.arange(len(ends), device="cpu") + ends.cumsum(0) - ends.long()
    return ends, place, len(ends) + int(ends.sum())


def _check_successors(
    key: tuple[str, ...], root: torch.Tensor, successor: torch.Tensor, ends: torch.Tensor, length: int, filled: int
) -> None:
    """Raise SchemaError if flattening would lose a successor, which TorchRL's hook loses silently."""
    differs = (successor[:-1] != root[1:]) & ~((successor[:-1] != successor[:-1]) & (root[1:] != root[1:]))
    lost = differs.flatten(1).any(1) if differs.ndim > 1 else differs
    lost &= ~ends[:-1]
    if filled:  # rows never written hold nothing
        lost &= torch.arange(len(lost), device="cpu") % length < filled
    if bool(lost.any()):
        message = f"next/{'/'.join(key)} of a step that is not done is not the following {'/'.join(key)}"
        raise SchemaError(message, hint="save without the hook: such data cannot be stored once for each state")


class Flat2TED:
    """``hook(data)``: flattened TED back to TED, with root flags False; rows never written hold arbitrary values."""

    def __call__(self, data: TensorDictBase) -> TensorDictBase:
        shape, shift, full = (data.get_non_tensor(key, default=None) for key in (SHAPE_KEY, "shift", "is_full"))
        if shape is None or shift is None or full is None:
            raise SchemaError("the data are not flattened TED: they do not say how they were stored")
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        length, width = shape[0], int(torch.Size(shape[1:]).numel())
        steps, oldest = length * width, shift if full else 0
        done = data.get("done", None)
        if done is None or done.numel() != steps:
            raise DamagedDatasetError(f"done does not have one flag for each of {steps} rows")
        _, place, rows = _flat_places(done.reshape(-1), width, length - 1 if full else shift - 1)

        def stored(leaf: torch.Tensor) -> torch.Tensor:
            """Reorder a leaf from the order of time to the order of rows."""
            by_column = leaf.view(width, length, *leaf.shape[1:]).transpose(0, 1)
            return by_column.roll(oldest, 0).reshape(*shape, *leaf.shape[1:])

        ted = TensorDict(batch_size=shape)
        for name, leaf in data.items(include_nested=True, leaves_only=True):
            key = as_key(name)
            if not isinstance(leaf, torch.Tensor):
                continue
            leaf = leaf.as_subclass(torch.Tensor)
            if key in _OF_NEXT:
                ted.set(("next", *key), stored(leaf))
                if key != ("reward",):
                    ted.set(key, torch.zeros(*shape, *leaf.shape[1:], dtype=leaf.dtype, device="cpu"))
            elif len(leaf) == rows:
                ted.set(key, stored(leaf[place]))
                # Clipped for the last row, if it was never written.
                ted.set(("next", *key), stored(leaf[(place + 1).clamp(max=rows - 1)]))
            elif len(leaf) == steps:
                ted.set(key, stored(leaf))
            else:
                message = f"{'/'.join(key)} has {len(leaf)} rows, which is neither {steps} steps nor {rows} states"
                raise DamagedDatasetError(message)
        return ted
