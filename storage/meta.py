"""The files ``meta.json`` that let tensordict open the folder of a dataset."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .durable import write_atomically
from .tensordict_folder import TENSORDICT


def write_meta(folder: Path, prefix: str, leaves: Mapping[str, tuple[str, tuple[int, ...]]], rows: int) -> list[str]:
    """Write ``meta.json`` for ``prefix`` (a path in the folder, "" for its top) and every level below it.

    ``leaves`` maps a path below the prefix to (dtype name, shape of one row). Returns the paths of the files.
    """
    levels: dict[str, dict[str, Any]] = {"": {}}
    for name, (dtype, shape) in leaves.items():
        *parents, last = name.split("/")
        level = ""
        for parent in parents:
            levels[level][parent] = {"type": "TensorDict"}
            level += parent + "/"
            levels.setdefault(level, {})
        levels[level][last] = {"device": "cpu", "shape": [rows, *shape], "dtype": f"torch.{dtype}", "is_nested": False}
    paths = []
    for level, entries in levels.items():
        data = json.dumps({**entries, "shape": [rows], "device": "cpu", "_type": TENSORDICT}).encode()
        path = Path(prefix, level, "meta.json")
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / path, data)
        paths.append(path.as_posix())
    return paths
