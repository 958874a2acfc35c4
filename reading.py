"""What is done with a dataset on this machine, as Python functions: open it, sample from it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .datasets import local
from .keywords import check_keywords
from .storage.dataset import Dataset
from .storage.replay.loading import load_buffer
from .storage.replay.sample_units import SampleUnit
from .storage.replay.samplers.slices import Span, UniformOver
from .storage.replay.samplers.uniform import Sampler
from .storage.replay.tensordict_buffer import TensorDictReplayBuffer


@check_keywords
def open_dataset(id_or_path: str | os.PathLike[str], *, root: str | os.PathLike[str] | None = None) -> Dataset:
    """Open a dataset read-only, by id (full or bare) or by path. Raises as `datasets.local.find` does."""
    return local.open_dataset(id_or_path, root)


@check_keywords
def load(
    id_or_path: str | os.PathLike[str] | Dataset,
    *,
    root: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    frame_stack: int | None = None,
    stack_keys: Sequence[str] | None = None,
    n_step: int | None = None,
    gamma: float = 0.99,
    slice_len: int | None = None,
    num_slices: int | None = None,
    strict_length: bool = True,
    pad_output: bool = False,
    span: Span = False,
    uniform_over: UniformOver = "trajectories",
    replacement: bool = True,
    drop_last: bool = False,
    shuffle: bool = True,
    alpha: float | None = None,
    beta: float | None = None,
    priority_key: str | tuple[str, ...] = "td_error",
    sampler: Sampler | None = None,
    sample_unit: SampleUnit | None = None,
    transform: Any = None,
    transform_factory: Callable[[], Any] | None = None,
    collate_fn: Callable[[Any], Any] | None = None,
    prefetch: int | None = None,
    pin_memory: bool = False,
    device: str | int | torch.device | None = None,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    rank: int = 0,
    world_size: int = 1,
    shared: bool = False,
    delayed_init: bool | None = None,
    checkpointer: Any = None,
    end_key: str | tuple[str, ...] | None = None,
    traj_key: str | tuple[str, ...] | None = None,
) -> TensorDictReplayBuffer:
    """A replay buffer over a dataset, given by id, by path, or already open: ``buffer.sample()`` is a TED TensorDict.

    - ``batch_size``: steps in a batch; may be given to ``sample`` instead, but iteration and prefetching need it here.
    - ``frame_stack``: the last k states, stacked in a new dimension behind the batch; ``stack_keys`` limits it to some leaves.
    - ``n_step``, ``gamma``: n-step returns. Neither these nor stacks cross an episode.
    - ``slice_len`` or ``num_slices``: slices of consecutive steps, flat ``[batch_size]``, the last step of each truncated.
      ``strict_length=False`` includes episodes that are shorter, ``pad_output`` pads them; ``span`` lets slices reach over the
      ends of episodes; ``uniform_over`` "trajectories" or "transitions" says what is drawn uniformly.
    - ``replacement=False``: every step (or one slice of every episode) once per pass: ``for batch in buffer``. ``drop_last``
      leaves out a short last batch, ``shuffle=False`` keeps the order of the data.
    - ``alpha``, ``beta``: sampling by priority; ``buffer.update_tensordict_priority(batch)`` sets priorities from
      ``priority_key``.
    - ``sampler``: one of your own instead of all these. ``sample_unit``: what is read for each step drawn
      (``rbdata.Sequence(80, burn_in=40)``).
    - ``transform``: a function or module that changes batches (``transform_factory``: makes it); ``collate_fn``.
    - ``prefetch``: batches made ahead, in as many threads. ``pin_memory``, ``device``: where batches are put.
    - ``seed`` or ``generator``: the same seed gives the same batches. ``rank``, ``world_size``: data-parallel training.
    - ``shared``, ``delayed_init``, ``checkpointer``, ``end_key``, ``traj_key``: see `ReplayBuffer`.

    Raises UsageError for options that make no sense together, and as `open_dataset` does.
    """
    options = {name: value for name, value in locals().items() if name not in ("id_or_path", "root")}
    dataset = id_or_path if isinstance(id_or_path, Dataset) else open_dataset(id_or_path, root=root)
    return load_buffer(dataset, **options)
