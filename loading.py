"""`load`: from a dataset, or several, to a buffer whose batches are TED TensorDicts, or dictionaries of arrays.

    dataset -> leaves that are computed (`derived_leaves`) -> storage -> sampler -> buffer -> form of its batches (`output`)

A dataset that is on this machine is opened without asking its source: nothing of the network is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .datasets.opening import PathLike, check_is_open, open_dataset, opened
from .errors import DatasetNotFoundError, UsageError
from .storage.keywords import goes_with

if TYPE_CHECKING:
    import torch

    from .storage.dataset import Dataset
    from .storage.replay import Goals, Sampler, TensorDictReplayBuffer
    from .storage.replay.samplers.slices import Span, UniformOver


def load(
    id_or_path: PathLike | Dataset | Sequence[PathLike | Dataset],
    *,
    root: PathLike | None = None,
    cache_dir: PathLike | None = None,
    cache_limit: int | str | None = None,
    download: bool | Mapping[str, Any] = False,
    batch_size: int | None = None,
    keys: Sequence[str | tuple[str, ...]] | None = None,
    frame_stack: int | None = None,
    stack_keys: str | Sequence[str | tuple[str, ...]] | None = None,
    n_step: int | None = None,
    gamma: float = 0.99,
    windows: Mapping[Any, tuple[int, int]] | None = None,
    padding: Literal["repeat", "zero"] = "repeat",
    extra: str | Sequence[str] | None = None,
    normalize: str | Sequence[str] | Mapping[str, str | Mapping[str, Any]] | None = None,
    reward_scale: float | Literal["return_range", "minus_one"] | None = None,
    dtype: Literal["float32"] | torch.dtype | None = None,
    goals: Goals | None = None,
    slice_len: int | None = None,
    num_slices: int | None = None,
    strict_length: bool = True,
    pad_output: bool = False,
    span: Span = False,
    uniform_over: UniformOver = "trajectories",
    replacement: bool = True,
    drop_last: bool = False,
    shuffle: bool | Literal["global", "blocks"] = True,
    alpha: float | None = None,
    beta: float | None = None,
    priority_key: str | tuple[str, ...] = "td_error",
    weights: Sequence[float] | None = None,
    shares: Literal["random", "exact"] = "random",
    sampler: Sampler | None = None,
    end_key: str | tuple[str, ...] | None = None,
    traj_key: str | tuple[str, ...] | None = None,
    transform: Any = None,
    collate_fn: Callable[[Any], Any] | None = None,
    prefetch: int | None = None,
    pin_memory: bool = False,
    device: Any = None,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    rank: int = 0,
    world_size: int = 1,
    output: Literal["torch", "numpy", "jax"] = "torch",
    form: Literal["ted", "flat"] = "ted",
    sharding: Any = None,
) -> TensorDictReplayBuffer:
    """Make a replay buffer over a dataset, given by id, path or URL, or already open: ``buffer.sample()`` is a TED TensorDict.

    For several datasets (``rbdata.load(["A", "B"], weights=[0.9, 0.1])``) a batch is one flat TensorDict, whose leaf
    ``dataset`` (int64) is the number of the dataset that a row is from (with ``keys`` or ``windows``, name it there as well).

    Where the data are:

    - ``cache_dir``, ``cache_limit``: for a dataset at a URL, see `open_dataset`.
    - ``download=True``: a dataset that is not there is downloaded first; ``download={"mirror": ..., "shards": "0"}``: with
      arguments of `rbdata.download`.

    What a batch has:

    - ``batch_size``: steps in a batch; may be given to ``sample`` instead, but iteration and prefetching need it here.
    - ``keys``: the leaves to read, such as ``["observation", "action", ("next", "reward")]``, with leaves below them. Nothing
      else is read (or fetched): neither successors nor flags.
    - ``frame_stack``: the last k states, stacked in a new dimension after the batch; ``stack_keys`` selects leaves to stack.
      ``padding`` fills rows before the episode: "repeat" with its first state, as Gymnasium's wrapper does, or "zero".
    - ``n_step``, ``gamma``: n-step returns. Neither these nor stacks cross an episode.
    - ``windows``: for each key the offsets of the first and the last row around a step, as in
      ``{"observation": (-1, 0), "action": (0, 15)}``; such a leaf is ``[batch_size, rows, ...]``, and nothing else is read. A
      key stands for the leaves below it.
      ``padding`` fills rows outside the episode ("repeat": with its nearest row, or "zero"); ``batch["mask", key]`` is False
      there. See docs/training.md.
    - ``extra``: leaves computed when they are read, ``[*batch, 1]``: "is_first" (bool), "step" (int64, of the episode),
      "return_to_go" (float32, undiscounted), "discount" (float32, 1 - terminated).
    - ``normalize``: a key or keys, such as "observation": ``(x - mean) / (std + eps)`` of these leaves and their successors,
      before transforms; mean and std over the whole dataset are computed then, with ``eps`` 1e-3,
      or given as ``{"observation": {"mean": ..., "std": ..., "eps": 0.0}}``. ``{"observation": "minmax"}`` maps minimum and
      maximum to -1 and 1 (given: "min", "max"), "quantile" the 1st and the 99th percentile ("q01", "q99"; values beyond them
      are not clipped). ``buffer.statistics`` has the values used.
    - ``reward_scale``: a number that rewards are multiplied by, "return_range" (1000 / (highest - lowest return), CORL's and
      IQL's for locomotion), or "minus_one" (reward - 1, for antmaze).
    - ``dtype``: "float32" rounds float64 leaves (MuJoCo's) to it, after ``normalize``; other leaves keep their types.
    - ``goals``: `Goals`, a mixture of the step's own state, later ones of its trajectory and random ones: adds ``goal`` (and
      ``actor_goal``), replaces ``next/reward``, ``terminated`` and ``done``. Not with n_step.

    Which steps it has:

    - ``slice_len`` or ``num_slices``: slices of consecutive steps, flat ``[batch_size]``, the last step of each truncated.
      ``strict_length=False`` includes shorter episodes, ``pad_output`` pads them; ``span`` lets slices cross the ends of
      episodes; ``uniform_over`` "trajectories" or "transitions": what is drawn uniformly.
    - ``replacement=False``: every step (or one slice of every episode) once per pass: ``for batch in buffer``. ``drop_last``
      leaves out a short last batch, ``shuffle=False`` keeps the order of the data.
    - ``shuffle="blocks"``: every step once per pass, from a few groups of consecutive steps at a time, in an order determined
      by the seed; for datasets at a URL, as groups are prefetched. ``"global"`` is the same as True.
    - ``alpha``, ``beta``: sampling by priority; ``buffer.update_tensordict_priority(batch)`` sets priorities from
      ``priority_key``.
    - ``weights``: the share of each of several datasets in a batch; by default all steps are equally likely. ``shares``:
      "random" (counts are multinomial) or "exact", see `MixtureSampler`.
    - ``sampler``: your own, a `Sampler`, instead of these options. ``end_key``, ``traj_key``: see `ReplayBuffer`.
    - ``seed`` or ``generator``: the same seed gives the same batches. ``rank``, ``world_size``: data-parallel training.

    How it comes:

    - ``transform``: a function or module that changes batches; ``collate_fn``: makes one of the records.
    - ``prefetch``: the number of batches made in advance, each in a thread. ``pin_memory``, ``device``: the memory of batches.
    - ``output``: "torch" (TensorDicts), "numpy" (nested dictionaries of writable NumPy arrays, views of the batch's own memory)
      or "jax" (of JAX arrays, on ``device``: a `jax.Device` or such as "gpu:1"; or divided by ``sharding``, a
      `jax.sharding.Sharding`; put there in the thread of ``prefetch``). JAX rounds 64-bit numbers to 32 bits by default.
    - ``form``: "ted", the keys and shapes of TED, or "flat", a dictionary with the names of D4RL, OGBench and JAX-CORL:
      ``observations`` and ``next_observations`` ``[N, *shape]``, ``actions`` ``[N, *shape]``, ``rewards`` and ``masks``
      (1 - terminated) float32 ``[N]``, ``terminals`` and ``truncations`` bool ``[N]``, ``value_goals`` and ``actor_goals`` of
      goals, ``index``, and other leaves under their names. See docs/jax.md.

    Raises UsageError for options that contradict each other or have no effect, with their names, and as `open_dataset` does.
    """
    where: dict[str, Any] = {"root": root, "cache_dir": cache_dir, "cache_limit": cache_limit}
    if download is not False:
        id_or_path, where["root"] = _downloaded(id_or_path, root, download), None
    data = _opened(id_or_path, where)
    from .storage.replay.around import Around
    from .storage.replay.buffer import sampler_of
    from .storage.replay.output import choose_output
    from .storage.replay.samplers.choice import choose_sampler
    from .storage.replay.storages.dataset_storage import DatasetStorage
    from .storage.replay.tensordict_buffer import TensorDictReplayBuffer

    around = Around(frame_stack, stack_keys, n_step, gamma, windows, padding, end_key, traj_key)
    if windows is not None and keys is not None:
        raise UsageError("windows name the leaves that are read: leave out keys")
    if alpha is None and sampler is None:
        goes_with("alpha or sampler", priority_key=priority_key != "td_error")
    read: Dataset = data
    statistics: dict[str, Any] = {}
    if not (extra is normalize is reward_scale is dtype is None):
        from .storage.derived_leaves import derive

        if keys is not None and extra is not None and not isinstance(keys, str):
            keys = [*keys, *((extra,) if isinstance(extra, (str, bool)) else extra)]
        read, statistics = derive(data, extra, normalize, reward_scale, dtype, around.windows if keys is None else keys)
    storage = DatasetStorage(read, keys, data)
    chosen = choose_sampler(
        data,
        None if sampler is None else sampler_of(sampler),
        slice_len=slice_len,
        num_slices=num_slices,
        strict_length=strict_length,
        pad_output=pad_output,
        span=span,
        uniform_over=uniform_over,
        end_key=end_key,
        traj_key=traj_key,
        replacement=replacement,
        drop_last=drop_last,
        shuffle=shuffle,
        alpha=alpha,
        beta=beta,
        weights=weights,
        shares=shares,
    )
    made = choose_output(
        output,
        form,
        around.windows or storage.keys or read.schema.names,
        device=device,
        sharding=sharding,
        pin_memory=pin_memory,
        collate_fn=collate_fn,
        batch_size=batch_size,
        short_batches=not (chosen.endless or drop_last),
    )
    if shuffle != "blocks":
        data.plan_steps(keys=storage.stored(around.windows))
    buffer = TensorDictReplayBuffer(
        storage=storage,
        sampler=chosen,
        around=around,
        priority_key=priority_key,
        batch_size=batch_size,
        transform=transform,
        collate_fn=collate_fn,
        prefetch=prefetch,
        pin_memory=pin_memory,
        device=None if output == "jax" else device,
        seed=seed,
        generator=generator,
        rank=rank,
        world_size=world_size,
    )
    buffer._statistics = statistics
    if made is not None:
        buffer._set_output(made)
    if goals is not None:
        from .storage.replay.goals import relabeling

        buffer._set_goals(relabeling(read, goals, extra=extra, n_step=n_step, reward_scale=reward_scale))
    return buffer


def torchrl_storage(dataset: PathLike | Dataset | Sequence[PathLike | Dataset], *, root: PathLike | None = None) -> Any:
    """Make a read-only ``torchrl.data`` storage (a `TensorStorage`) of the steps of a dataset, given as for `load`.

    Rows are read, and frames decoded, when a batch is made; flags and ids are read as whole leaves, once with
    ``cache_values=True``. The state of the storage, in TorchRL's checkpoints, is which dataset it is of. Writing raises
    ReadOnlyError, and loading the state of another dataset UsageError. Raises MissingExtraError without torchrl, and as
    `open_dataset` does.
    """
    from .storage.torchrl_storage import storage_class

    return storage_class()(_opened(dataset, {"root": root}))


def _opened(given: Any, where: Mapping[str, Any]) -> Dataset:
    if isinstance(given, (str, os.PathLike)):
        return open_dataset(given, **where)
    from .storage.dataset import Dataset, concat

    if isinstance(given, Dataset):
        check_is_open(**where)
        return given
    return concat(opened(given, **where), marked=True)


def _downloaded(dataset_id: Any, root: PathLike | None, options: bool | Mapping[str, Any]) -> Path:
    """The folder of a dataset, which is downloaded if it is not there, or if ``options`` of `download` are given."""
    from .api import download
    from .datasets.fetch.location import is_remote
    from .datasets.local import find
    from .storage.dataset import Dataset

    if isinstance(dataset_id, Dataset):
        check_is_open(download=True)
    if not isinstance(dataset_id, (str, os.PathLike)):
        raise UsageError("download is for a single id")
    if is_remote(dataset_id):
        raise UsageError("download is for ids", hint="a dataset at a URL is read in place, or pulled as a whole")
    if options is True:
        with suppress(DatasetNotFoundError):  # known only to its mirror
            return find(dataset_id, root)
    return download(os.fspath(dataset_id), root=root, **({} if options is True else options))  # type: ignore[arg-type]
