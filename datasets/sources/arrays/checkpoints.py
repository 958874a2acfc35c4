"""The records of a replay buffer's checkpoint (``dumps``) as a table, in the order in which they were written."""

from __future__ import annotations

from pathlib import Path

from ....errors import CorruptSourceError, UsageError
from ....storage.tensordict_folder import read_json, read_memmap
from .stored import Ring
from .tables import Table, memory_table


def open_checkpoint(path: Path) -> Table:
    """The records of a checkpoint of rbdata or TorchRL, from the oldest one on.

    Raises UsageError where they are not rows of tensors, or not in order of time.
    """
    if (path / "state.json").is_file():
        storage = read_json(path / "state.json").get("state", {}).get("_storage", {})
        rows = storage.get("_storage")
        if not isinstance(rows, dict) or "name" not in rows:
            message = f"{path.name} is a checkpoint whose storage holds records of their own, not rows of tensors"
            raise UsageError(message, hint="load it into a buffer, and give rbdata.from_arrays what buffer[:] holds")
        tensors = path / "tensors" / str(rows["name"])
        filled, cursor, ordered = storage.get("_len"), storage.get("newest", -1) + 1, bool(storage.get("in_order"))
    else:
        tensors, writer = path / "storage", path / "writer" / "metadata.json"
        written = read_json(writer) if writer.is_file() else {}
        filled, cursor = read_json(tensors / "storage_metadata.json").get("len"), written.get("cursor", 0)
        ordered = "rank_key" not in written  # which a TensorDictMaxValueWriter has
    if not isinstance(filled, int) or not isinstance(cursor, int):
        raise CorruptSourceError(f"{path.name}: its storage does not say how many records it holds")
    if not ordered:
        message = f"{path.name} is a checkpoint whose records are not in order of time, so that no episodes can be told"
        raise UsageError(message, hint="load it into a buffer, and give rbdata.from_arrays its records in order")
    table = memory_table(read_memmap(tensors), path.name)
    for name, value in table.values.items():
        begin = cursor if filled == len(value) else 0  # a ring that is not full begins at its first row
        table.values[name] = Ring(value, filled, begin % max(1, filled))
    table.values.pop("index", None)  # where TorchRL's writer put each record
    return table
