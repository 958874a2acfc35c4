"""Columns of a LeRobotDataset in memory as records, under the keys that TorchRL gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from ...errors import UsageError

_KEYS = {
    "episode_index": ("episode",),
    "frame_index": ("frame",),
    "task": ("language_instruction",),
}


def lerobot_records(columns: Mapping[str, Any], with_next: bool) -> TensorDict:
    """``columns`` ``[rows, ...]`` as a TensorDict ``[rows]``; texts as UTF-8 bytes, uint8 ``[rows, longest]``.

    ``with_next``: see `LeRobotExperienceReplay.from_columns`. Raises UsageError.
    """
    rows = {_key(name): _tensor(values) for name, values in columns.items()}
    lengths = {len(values) for values in rows.values()}
    if len(lengths) != 1:
        raise UsageError(
            f"the columns have {', '.join(map(str, sorted(lengths)))} rows", hint="all need the same number"
        )
    count = lengths.pop()
    data = TensorDict({}, [count])
    for key, values in rows.items():
        data[key] = values[:, None] if key[0] == "next" and values.ndim == 1 else values
    if not with_next:
        return data
    if ("episode",) not in rows:
        raise UsageError("there is no column episode_index, which says where episodes end")
    ends = torch.ones(count, dtype=torch.bool)
    ends[:-1] = data["episode"][1:] != data["episode"][:-1]
    after = torch.where(ends, torch.arange(count), torch.arange(count) + 1)
    for key, values in rows.items():
        if key[0] == "observation":
            data.set(("next", *key), values[after])
    data["next", "truncated"] = ends[:, None]
    return data


def _key(name: str) -> tuple[str, ...]:
    camera = name.removeprefix("observation.images.")
    return _KEYS.get(name) or (("observation", "image", camera) if camera != name else tuple(name.split(".")))


def _tensor(values: Any) -> torch.Tensor:
    if not isinstance(values, Sequence):
        return torch.as_tensor(values)
    if not all(isinstance(value, str) for value in values):
        return torch.as_tensor(values)
    texts = [value.encode() for value in values]
    padded = np.zeros((len(texts), max(map(len, texts), default=1)), np.uint8)
    for row, text in zip(padded, texts):
        row[: len(text)] = np.frombuffer(text, np.uint8)
    return torch.from_numpy(padded)
