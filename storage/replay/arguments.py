"""Checks of the arguments of buffers, made once, when a buffer is made."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypedDict

import torch

from ...errors import SamplingError, UsageError
from ..amounts import MOST_RECORDS
from ..dataset import Dataset
from ..keywords import whole_number
from ..load_options import check_companions
from .columns import Recipe
from .order import WORD, draw_seed
from .storages.dataset_storage import DatasetStorage
from .storages.list_storage import ListStorage
from .storages.storage import Storage
from .timeline import Edges, as_key, path_of
from .windows import NStep, check_padding, check_windows


class RecipeOptions(TypedDict, total=False):
    """What a batch has of the rows around each step; for all buffers, see `ReplayBuffer`."""

    frame_stack: int | None
    stack_keys: Any
    n_step: int | None
    gamma: float
    windows: Any
    padding: Any
    end_key: Any
    traj_key: Any


class CommonOptions(RecipeOptions, total=False):
    """Arguments of `ReplayBuffer`, for the classes that pass them on, without those that some of these make themselves."""

    writer: Any
    collate_fn: Callable[[Any], Any] | None
    pin_memory: bool
    prefetch: int | None
    transform: Any
    transform_factory: Callable[[], Any] | None
    batch_size: int | None
    dim_extend: int | None
    generator: torch.Generator | None
    shared: bool
    compilable: bool | None
    device: Any
    seed: int | None
    rank: int
    world_size: int


class BufferOptions(CommonOptions, total=False):
    """All arguments of `ReplayBuffer`."""

    storage: Any
    sampler: Any


def make_recipe(
    *,
    frame_stack: int | None = None,
    stack_keys: Any = None,
    n_step: int | None = None,
    gamma: float = 0.99,
    windows: Any = None,
    padding: Any = "repeat",
    end_key: Any = None,
    traj_key: Any = None,
) -> Recipe:
    """Raises UsageError for values out of range, and for options that go with others."""
    check_padding(padding)
    given = {"frame_stack": frame_stack, "stack_keys": stack_keys, "n_step": n_step, "gamma": gamma}
    check_companions({**given, "windows": windows, "padding": padding})
    if frame_stack is not None:
        frame_stack = whole_number("frame_stack", frame_stack, 1, MOST_RECORDS)
    if stack_keys is not None:
        stack_keys = (stack_keys,) if isinstance(stack_keys, str) else tuple(map(path_of, stack_keys))
    if n_step is not None:
        made = NStep(n_step, gamma)
        n_step, gamma = made.steps, made.gamma
    if windows is not None:
        windows = check_windows(windows)
        if frame_stack is not None or n_step is not None:
            raise UsageError("windows are read instead of frame_stack and n_step", hint="give windows alone")
    edges = Edges(None if traj_key is None else as_key(traj_key), () if end_key is None else (as_key(end_key),))
    return Recipe(frame_stack, stack_keys, n_step, gamma, windows, padding, edges)


def check_batch_size(batch_size: Any) -> int:
    """Raises SamplingError unless it is a whole number of records that can be read."""
    try:
        return whole_number("batch_size", batch_size, 1, MOST_RECORDS)
    except UsageError as error:
        raise SamplingError(error.message) from error


def check_prefetch(prefetch: Any, batch_size: int | None) -> int:
    """Raises UsageError for a number below 0, and without a batch size."""
    if prefetch is None:
        return 0
    number = whole_number("prefetch", prefetch, 0, 1024)
    if number and batch_size is None:
        raise UsageError("prefetching needs the batch_size given to the buffer (or to load())")
    return number


def check_share(rank: Any, world_size: Any) -> tuple[int, int]:
    rank, world_size = whole_number("rank", rank, 0), whole_number("world_size", world_size, 1)
    if rank >= world_size:
        raise UsageError(f"rank {rank} is not among {world_size} processes")
    return rank, world_size


def seed_of(seed: Any, generator: torch.Generator | None) -> int:
    """A seed as given, drawn once from a ``generator``, or else from torch's global one. Raises UsageError."""
    if seed is not None and generator is not None:
        raise UsageError("give generator or seed, not both")
    if generator is not None:
        if generator.device.type != "cpu":
            message = f"the generator is on {generator.device}, and rows are drawn on the CPU"
            raise UsageError(message, hint="give torch.Generator() without a device")
        return int(torch.randint(1 << 62, (), generator=generator, device="cpu"))
    return draw_seed() if seed is None else whole_number("seed", seed, 0, WORD)


def part(given: Any, kind: type, default: Callable[[], Any], example: str) -> Any:
    """A part of a buffer: an instance, or what a function makes. Raises UsageError for anything else."""
    if given is None:
        return default()
    return check_part(given() if callable(given) and not isinstance(given, kind) else given, kind, example)


def check_part(given: Any, kind: type, example: str) -> Any:
    """Raise UsageError unless it is an instance of a kind of part."""
    if not isinstance(given, kind):
        message = f"a {kind.__name__.lower()} is wanted, not a {type(given).__name__}"
        raise UsageError(message, hint=f"for example rbdata.{example}")
    return given


def storage_of(given: Any) -> Storage:
    """A storage, or that of a dataset or its path; ``ListStorage(1000)`` without one."""
    if isinstance(given, (Dataset, str, os.PathLike)):
        return DatasetStorage(given)
    made: Storage = part(given, Storage, lambda: ListStorage(1000), "LazyTensorStorage(1_000_000)")
    return made
