"""Moving batches: pinned memory and copies to a device."""

from __future__ import annotations

import threading
from typing import Any

import torch

_streams = threading.local()


def to_device(batch: Any, device: torch.device | None, pin: bool) -> Any:
    """The batch in pinned memory if asked for, then on the device.

    A copy to a GPU goes through a stream of the calling thread and is complete on return: from a prefetch thread it runs
    beside what the caller computes.
    """
    if pin and torch.cuda.is_available():
        batch = batch.pin_memory()
    if device is None:
        return batch
    if device.type != "cuda":
        return batch.to(device)
    stream = getattr(_streams, "stream", None)
    if stream is None or stream.device != device:
        stream = _streams.stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        moved = batch.to(device, non_blocking=pin)
    stream.synchronize()
    return moved


def record_stream(batch: Any, device: torch.device | None) -> Any:
    """Tell the allocator that the caller's stream uses what another stream copied; returns the batch."""
    if device is not None and device.type == "cuda":
        current = torch.cuda.current_stream(device)
        batch.apply(lambda leaf: leaf.record_stream(current), filter_empty=False)
    return batch
