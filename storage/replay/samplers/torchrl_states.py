"""The states of TorchRL's samplers, as our samplers take them over.

TorchRL's prioritized samplers keep (p + eps)^alpha in a tree of sums, and not the priorities themselves, which are worked
out from it:  p = tree^(1 / alpha) - eps.  With alpha = 0 every record is 1 there, and gets the largest priority.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ....errors import DamagedDatasetError, UsageError, reason
from ...tensordict_folder import read_json, read_memmap

METADATA_BYTES = 1 << 20


def priorities_of(state: dict[str, Any], capacity: int, *, within_buffer: bool) -> dict[str, Any]:
    """Our state of a prioritized sampler from TorchRL's, which has room for ``capacity`` records.

    States without ``_schema_version`` are of a time when the largest priority within the buffer was kept as it is in the
    tree; it is then that of the priorities. Raises UsageError for what is no such state.
    """
    try:
        alpha, beta, eps = (float(state[name]) for name in ("_alpha", "_beta", "_eps"))
        tree = torch.as_tensor(np.asarray(state["_sum_tree"][np.arange(capacity)]), dtype=torch.float64)
        top = None if state["_max_priority"] is None else state["_max_priority"][0]
        largest = None if top is None else float(top)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError, OverflowError) as error:
        raise UsageError(f"the state is not that of a prioritized sampler: {reason(error)}") from error
    raw = (tree ** (1 / alpha) - eps).clamp(min=0) if alpha else torch.full_like(tree, largest or 1.0)
    priorities = torch.where(tree > 0, raw, math.nan)
    written = bool((tree > 0).any())
    if within_buffer and alpha and not state.get("_schema_version", 0):
        largest = float(raw[tree > 0].max()) if written else None
    return {"alpha": alpha, "beta": beta, "eps": eps, "largest": largest, "priorities": priorities}


def read_torchrl_state(folder: Path) -> dict[str, Any] | None:
    """What a sampler of TorchRL wrote to a folder, as its ``state_dict`` has it; None where none did.

    Raises DamagedDatasetError when it is not whole, UsageError for a pickle, which is not read.
    """
    if (folder / "consuming_sampler.pt").exists():
        raise UsageError(f"{folder} holds a pickle, which is not read", hint="pass the sampler's state_dict()")
    try:
        if (folder / "sampler_metadata.json").exists():
            state: dict[str, Any] = read_json(folder / "sampler_metadata.json", METADATA_BYTES)
            data = (folder / "sumtree.memmap").read_bytes()
            tree = torch.frombuffer(bytearray(data), dtype=torch.float64) if data else torch.zeros(0)
            if len(tree) != state["_max_capacity"]:
                raise ValueError(f"{len(tree)} priorities for {state['_max_capacity']} rows")
            return {**state, "_sum_tree": tree}
        if (folder / "meta.json").exists():
            leaves = read_memmap(folder).items()
            return {name: leaf if leaf.ndim else leaf.item() for name, leaf in leaves}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise DamagedDatasetError(f"the state in {folder} is damaged: {reason(error)}") from error
    return None
