"""The keyword arguments that classes of buffers pass on to `ReplayBuffer`, as types: ``**options: Unpack[BufferOptions]``.

Editors and type checkers read them from here, ``inspect.signature`` through `keywords.with_options`. `ReplayBuffer` documents
them and has the defaults. An argument that a class has by itself must not be in its options as well: hence the pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from typing_extensions import TypedDict


class ServiceOptions(TypedDict, total=False):
    """TorchRL's, without effect here."""

    compilable: bool | None
    service_backend: str
    service_backend_options: dict[str, Any] | None
    transport: str
    transport_options: dict[str, Any] | None


class EnsembleOptions(ServiceOptions, total=False):
    """Of `ReplayBufferEnsemble`; without effect either, as its members are made before it and save themselves."""

    checkpointer: Any
    delayed_init: bool | None
    dim_extend: int | None


class CommonOptions(ServiceOptions, total=False):
    """Those that no class has by itself."""

    sample_unit: Any
    transform_factory: Callable[[], Any] | None
    dim_extend: int | None
    checkpointer: Any
    generator: torch.Generator | None
    consume_after_n_samples: int | None
    shared: bool
    delayed_init: bool | None
    device: Any
    seed: int | None
    frame_stack: int | None
    stack_keys: Sequence[str] | None
    n_step: int | None
    gamma: float
    traj_key: Any
    rank: int
    world_size: int


class CollateOptions(TypedDict, total=False):
    collate_fn: Callable[[Any], Any] | None
    pin_memory: bool
    prefetch: int | None


class WriteOptions(TypedDict, total=False):
    writer: Any
    transform: Any
    batch_size: int | None


class PartOptions(TypedDict, total=False):
    storage: Any
    sampler: Any


class EndOptions(TypedDict, total=False):
    end_key: Any


class PriorityKeyOptions(TypedDict, total=False):
    priority_key: Any


class BufferOptions(PartOptions, WriteOptions, CollateOptions, EndOptions, CommonOptions, total=False):
    """All of `ReplayBuffer`."""


class HindsightOptions(PartOptions, WriteOptions, CollateOptions, PriorityKeyOptions, CommonOptions, total=False):
    """Of `HERReplayBuffer`, beside its own."""


class ReadOptions(WriteOptions, CollateOptions, EndOptions, CommonOptions, total=False):
    """Of `PrioritizedReplayBuffer`, beside its own."""


class PrioritizedOptions(PartOptions, ReadOptions, total=False):
    """Of `TensorDictPrioritizedReplayBuffer`, beside its own."""

    eps: float
    dtype: torch.dtype
    reduction: str
    sampler_device: Any
    sync: bool
