"""Devices: checking them, and moving batches to them through pinned memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch

from ...errors import UsageError

_streams = threading.local()


def check_device(given: Any) -> torch.device:
    """The device. Raises UsageError for values that do not name a device, and for a GPU that this machine does not have."""
    try:
        device = torch.device(given)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"{given!r} is not a device", hint='for example "cpu", "cuda" or "cuda:1"') from error
    if device.type == "cuda":
        count = torch.cuda.device_count()  # asks the driver without a CUDA context, which a fork could not use
        if (device.index or 0) >= count:
            message = f"device {str(device)!r} cannot be used: torch {torch.__version__} finds {count} CUDA devices"
            hint = "check `nvidia-smi`, CUDA_VISIBLE_DEVICES and that torch is built for CUDA, or leave the device out"
            raise UsageError(message, hint=hint)
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError("device 'mps' cannot be used: torch finds none here", hint="leave the device out")
    return device


def to_device(
    batch: Any,
    device: torch.device | None,
    pin: bool,
    windows: Mapping[str, torch.Tensor] | None = None,
    *,
    ahead: bool = False,
) -> Any:
    """The batch in pinned memory if asked for, then on the device.

    A copy to a GPU goes through the caller's stream, in order with what the caller computes there. If it is made ``ahead``,
    which another thread may do, it goes through a stream of that thread beside the computations, and is complete on return; see
    `record_stream`. ``windows``, ``[B, k + 1, *shape]`` by path: rows that the stacks of a leaf and of its successor were cut
    from. To a GPU they go once, through pinned memory, and are cut there: half of the bytes. Raises UsageError in a process
    that was forked after its parent had used CUDA.
    """
    if device is None or device.type != "cuda":
        pinned = batch.pin_memory() if pin and torch.cuda.is_available() else batch
        return pinned if device is None else pinned.to(device)
    try:
        if not ahead:
            return _to_gpu(batch, device, pin, windows)
        stream = getattr(_streams, "stream", None)
        if stream is None or stream.device != device:
            stream = _streams.stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            moved = _to_gpu(batch, device, pin, windows)
        stream.synchronize()
    except RuntimeError as error:
        if "forked subprocess" not in str(error):
            raise
        message = f"batches cannot be moved to {device} in a forked process: CUDA was in use before the fork"
        hint = "leave device out, and move them where they are used: batch.to(device, non_blocking=True)"
        raise UsageError(message, hint=hint) from error
    return moved


def _to_gpu(batch: Any, device: torch.device, pin: bool, windows: Mapping[str, torch.Tensor] | None) -> Any:
    stacks: dict[Any, torch.Tensor] = {}
    for name, rows in (windows or {}).items():
        key = tuple(name.split("/"))
        successor = ("next", *key)
        there = rows.pin_memory().to(device, non_blocking=True)
        stacks[key], stacks[successor] = there[:, :-1].clone(), there[:, 1:]
    rest = batch.exclude(*stacks) if stacks else batch
    moved = (rest.pin_memory() if pin else rest).to(device, non_blocking=True)
    for key, stack in stacks.items():
        moved.set(key, stack)
    return moved


def record_stream(batch: Any, device: torch.device | None) -> Any:
    """Tell the allocator that the caller's stream uses what another stream copied; returns the batch."""
    if device is not None and device.type == "cuda":
        current = torch.cuda.current_stream(device)
        batch.apply(lambda leaf: leaf.record_stream(current), filter_empty=False)
    return batch
