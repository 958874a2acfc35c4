"""Devices: checking them, and moving batches to them through pinned memory."""

from __future__ import annotations

import threading
from typing import Any

import torch
from tensordict import is_tensor_collection
from torch.utils import _pytree as pytree

from ...errors import UsageError

_streams = threading.local()


def check_device(given: Any) -> torch.device:
    """Return the device.

    Raises UsageError for values that do not name a device, and for a GPU that this machine does not have.
    """
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
    *,
    ahead: bool = False,
) -> Any:
    """The batch in pinned memory if asked for, then on the device. Tensors that a transform made on a GPU are not pinned.

    ``batch`` is a TensorDict, or a tree of tensors that a ``collate_fn`` made; other leaves of a tree stay as they are.

    A copy to a GPU goes through the caller's stream, in order with what the caller computes there. If it is made ``ahead``,
    which another thread may do, it goes through a stream of that thread beside the computations, and is complete on return; see
    `record_stream`. Raises UsageError in a process that was forked after its parent had used CUDA.
    """
    if device is None or device.type != "cuda":
        pinned = _pinned(batch) if pin and torch.cuda.is_available() else batch
        return pinned if device is None else _moved(pinned, device)
    try:
        if not ahead:
            return _to_gpu(batch, device, pin)
        stream = getattr(_streams, "stream", None)
        if stream is None or stream.device != device:
            stream = _streams.stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            moved = _to_gpu(batch, device, pin)
        stream.synchronize()
    except RuntimeError as error:
        if "forked subprocess" not in str(error):
            raise
        message = f"batches cannot be moved to {device} in a forked process: CUDA was in use before the fork"
        hint = "leave device out, and move them where they are used: batch.to(device, non_blocking=True)"
        raise UsageError(message, hint=hint) from error
    return moved


def _to_gpu(batch: Any, device: torch.device, pin: bool) -> Any:
    # A copy out of pinned memory is not complete on return: a transform that keeps such memory may write the next batch there.
    is_pinned_by_user = any(leaf.is_pinned() for leaf in _tensors(batch))
    return _moved(_pinned(batch) if pin else batch, device, non_blocking=not is_pinned_by_user)


def _moved(batch: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    if is_tensor_collection(batch):
        return batch.to(device, non_blocking=non_blocking)

    def move(leaf: Any) -> Any:
        return leaf.to(device, non_blocking=non_blocking) if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(move, batch)


def _pinned(batch: Any) -> Any:
    def pin(leaf: Any) -> Any:
        return leaf.pin_memory() if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" else leaf

    return batch.apply(pin, filter_empty=False) if is_tensor_collection(batch) else pytree.tree_map(pin, batch)


def _tensors(batch: Any) -> list[torch.Tensor]:
    """The tensors of a batch; of a lazy stack those of its records."""
    found: list[Any] = []
    if is_tensor_collection(batch):
        batch.apply(found.append, filter_empty=False)
    else:
        found = pytree.tree_leaves(batch)
    return [leaf for leaf in found if isinstance(leaf, torch.Tensor)]


def record_stream(batch: Any, device: torch.device | None) -> Any:
    """Tell the allocator that the caller's stream uses what another stream copied; returns the batch."""
    if device is not None and device.type == "cuda":
        current = torch.cuda.current_stream(device)
        for leaf in _tensors(batch):
            if leaf.device.type == "cuda":
                leaf.record_stream(current)
    return batch
