"""tensordict's own ``meta.json``, written without importing it.

One per nested level: for every leaf ``{device, shape, dtype, is_nested}``, for every nested tensordict
``{"type": "TensorDict"}``, and the batch shape, device and class. tensordict 0.13 and later read it (the tests compare
with what tensordict writes itself). Workers and commands that never sample stay free of torch this way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .checksums import crc32c
from .durable import write_atomically

_CLASS = "<class 'tensordict._td.TensorDict'>"


def write_meta(
    folder: Path, prefix: str, leaves: Mapping[str, tuple[str, tuple[int, ...]]], rows: int
) -> dict[str, list[list[object]]]:
    """Write ``meta.json`` for ``prefix`` (a path in the folder, "" for its top) and every level below it.

    ``leaves`` maps a path below the prefix to (dtype name, full shape). Returns the checksum ranges.
    """
    levels: dict[str, dict[str, Any]] = {"": {}}
    for name, (dtype, shape) in leaves.items():
        *parents, last = name.split("/")
        for depth in range(len(parents)):
            above, here = "/".join(parents[:depth]), "/".join(parents[: depth + 1])
            levels[above][parents[depth]] = {"type": "TensorDict"}
            levels.setdefault(here, {})
        levels["/".join(parents)][last] = {
            "device": "cpu",
            "shape": list(shape),
            "dtype": f"torch.{dtype}",
            "is_nested": False,
        }
    ranges: dict[str, list[list[object]]] = {}
    for level, entries in levels.items():
        record = {**entries, "shape": [rows], "device": "cpu", "_type": _CLASS}
        data = json.dumps(record).encode()
        path = "/".join(part for part in (prefix, level, "meta.json") if part)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / path, data)
        ranges[path] = [[len(data), crc32c(data)]]
    return ranges
