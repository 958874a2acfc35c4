"""Writing to records only if they are still there.

A ring reuses rows: when a value computed for a sampled record is written back, the row may hold a different record. A record
is identified by its row and the stamp of the row at the time of sampling (see `SlotGenerations`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection

from ....errors import SchemaError, UnknownKeyError, UnsupportedError, UsageError
from ..storages.storage import Storage
from ..storages.tensor_storage import TensorStorage
from ..timeline import as_key
from ..writers import Writer


@dataclass(frozen=True)
class ConditionalUpdateResult:
    """The outcome for every record: bool tensors ``[n]`` in the order given; no record is in more than one group.

    ``updated``: the record was still there and was written. ``version_rejected``: it was still there, but its version is too
    new (None without versions). All other records are stale: their row was overwritten or emptied.
    """

    updated: torch.Tensor
    version_rejected: torch.Tensor | None = None

    @property
    def updated_count(self) -> int:
        return int(self.updated.sum())

    @property
    def version_rejected_count(self) -> int:
        return 0 if self.version_rejected is None else int(self.version_rejected.sum())

    @property
    def stale_count(self) -> int:
        return self.updated.numel() - self.updated_count - self.version_rejected_count


def update_records(
    storage: Storage,
    writer: Writer,
    index: Any,
    generation: Any,
    patch: Mapping[Any, Any] | TensorDictBase,
    version_key: Any,
    version: Any,
    require_newer: bool,
) -> ConditionalUpdateResult:
    """`ReplayBuffer.update_if_present`; the caller holds the buffer's lock. Everything is checked before the first write."""
    stamps = storage.generations
    if not isinstance(storage, TensorStorage) or stamps is None or not writer.tracks_generations:
        message = f"conditional updates need stamps: {type(storage).__name__} with {type(writer).__name__}"
        raise UnsupportedError(message, hint="a tensor storage, and a writer with track_generations=True")
    index = torch.as_tensor(index, device="cpu")
    if index.numel() and (index.dtype == torch.bool or index.is_floating_point() or index.is_complex()):
        raise UsageError(f"index must hold row numbers, not {index.dtype}", hint="the `index` of a batch or of extend")
    index = index.long()
    places = index.unbind(-1) if index.ndim > 1 else (index.reshape(-1),)
    count = places[0].numel()
    generation = torch.as_tensor(generation, device="cpu").long().reshape(-1)
    if generation.numel() != count:
        raise UsageError(f"{count} rows, but {generation.numel()} generations")
    leaves: Any = patch
    items = leaves.items(True, True) if is_tensor_collection(patch) else leaves.items()
    values = {as_key(key): torch.as_tensor(value).detach() for key, value in items}
    if (version_key is None) != (version is None):
        raise UsageError("give version_key and version together")
    if version_key is not None:
        version_key = _version_key(version_key, values)
        values[version_key] = _versions(version, count)
    targets: dict[Any, Any] = {key: storage.leaf(key) for key in values}
    for key, leaf in targets.items():
        if leaf is None:
            raise UnknownKeyError(f"the storage has no {'/'.join(key)} to update")
    checked = {key: _fit(key, value, targets[key], count, len(places)) for key, value in values.items()}
    live = (generation >= 0) & (stamps.of(places[0]) == generation)
    rejected = None
    if version_key is not None:
        leaf, incoming = targets[version_key], checked[version_key].reshape(-1)
        if leaf.shape[len(places) :].numel() != 1:
            raise UsageError(f"{'/'.join(version_key)} is no number for each record")
        held = leaf[tuple(torch.where(live, part, 0) for part in places)].reshape(-1).cpu()
        newer = incoming > held if require_newer else incoming >= held
        accepted = live & newer & _winners(index.reshape(count, -1), incoming, live)
        rejected, live = live & ~accepted, accepted
    if bool(live.any()):
        rows = tuple(part[live] for part in places)
        # All values are copied before any is written: they may be views of the records.
        written = {key: value[live].to(targets[key].device) for key, value in checked.items()}
        for key, value in written.items():
            targets[key][rows] = value
        storage.touch()
    return ConditionalUpdateResult(live, rejected)


def _version_key(key: Any, values: Mapping[tuple[str, ...], Any]) -> tuple[str, ...]:
    if isinstance(key, str) and "." in key:
        hint = f"name it {tuple(key.split('.'))}"
        raise UsageError(f"Dotted-string version keys are not supported: {key!r}", hint=hint)
    key = as_key(key)
    if key in values:
        raise UsageError(f"the version_key {'/'.join(key)} may not appear in patch")
    return key


def _versions(version: Any, count: int) -> torch.Tensor:
    given = torch.as_tensor(version, device="cpu")
    if given.numel() not in (1, count) or (given.ndim and given.shape[0] != count):
        message = f"a version of shape {list(given.shape)} for {count} records"
        raise UsageError(message, hint="one number, or one a record")
    return given.reshape(-1).expand(count)


def _fit(key: tuple[str, ...], value: torch.Tensor, leaf: torch.Tensor, count: int, ndim: int) -> torch.Tensor:
    """``value`` as ``[count, ...]``. Records may come in any shape, as `extend` takes them; each has the shape of a row."""
    shape = (count, *leaf.shape[ndim:])
    row = [size for size in leaf.shape[ndim:] if size != 1]
    last = [size for size in value.shape if size != 1][-len(row) :] if row else []
    if value.dtype != leaf.dtype or value.numel() != torch.Size(shape).numel() or last != row:
        got, needed = f"{value.dtype} {list(value.shape)}", f"{leaf.dtype} {list(shape)}"
        raise SchemaError(f"key {'/'.join(key)}: got {got}, the records need {needed}")
    return value.reshape(shape)


def _winners(index: torch.Tensor, version: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """For each row, the live handle with the newest version, or the last one of equal versions."""
    best: dict[tuple[int, ...], tuple[Any, int]] = {}
    for place in live.nonzero()[:, 0].tolist():
        row, own = tuple(index[place].tolist()), (version[place].item(), place)
        best[row] = max(best.get(row, own), own)
    won = torch.zeros_like(live)
    won[[place for _, place in best.values()]] = True
    return won
