"""What is done with a dataset on this machine, as Python functions: open it, sample from it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from .datasets import local
from .datasets.fetch.location import is_remote
from .datasets.remote import open_remote
from .errors import NotADatasetError, UnknownDatasetError, UsageError
from .storage.dataset import Dataset
from .storage.keywords import check_keywords
from .storage.replay.loading import load_buffer
from .storage.replay.sample_units import SampleUnit
from .storage.replay.samplers.slices import Span, UniformOver
from .storage.replay.samplers.uniform import Sampler
from .storage.replay.tensordict_buffer import TensorDictReplayBuffer

if TYPE_CHECKING:
    from .storage.partial_dataset import PartialDataset


@overload
def open_dataset(
    id_or_path: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    partial: Literal[True],
    wait: float = 0.0,
) -> PartialDataset: ...


@overload
def open_dataset(
    id_or_path: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str | None = None,
    check: bool = False,
    partial: bool = False,
    wait: float = 0.0,
) -> Dataset: ...


@check_keywords
def open_dataset(
    id_or_path: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str | None = None,
    check: bool = False,
    partial: bool = False,
    wait: float = 0.0,
) -> Dataset:
    """Open a dataset read-only, by id (full or bare), by path, or by the URL of a converted dataset (``s3://...``).

    One at a URL is read where it lies: what is read is kept in ``cache_dir`` (default: ``.remote`` under the root), at most
    ``cache_limit`` bytes of it, such as ``"20GB"``. ``check=True`` compares what is read of a folder with its checksums, every
    block of 4 MiB once, when it is first read: DamagedDatasetError names the file and the block. (What is fetched from a URL is
    always checked.)

    ``partial=True``: what is finished of a dataset that is still being downloaded, by this or another process; it grows with
    ``dataset.refresh()``: see `PartialDataset`. ``wait``: the seconds that may pass until there is something.

    Raises as `datasets.local.find`, `datasets.local.open_unfinished` and `datasets.remote.open_remote` do.
    """
    if partial:
        _check_is_here("partial=True is for datasets on this machine", id_or_path, check, cache_dir, cache_limit)
        return local.open_unfinished(id_or_path, root, wait=wait)
    if wait:
        raise UsageError("wait goes with partial=True")
    if is_remote(id_or_path):
        return open_remote(id_or_path, cache_dir=cache_dir, cache_limit=cache_limit, root=root)
    if cache_dir is not None or cache_limit is not None:
        raise UsageError(f"cache_dir and cache_limit are for URLs, not for {os.fspath(id_or_path)}")
    return local.open_dataset(id_or_path, root, check=check)


@check_keywords
def load(
    id_or_path: str | os.PathLike[str] | Dataset,
    *,
    root: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str | None = None,
    check: bool = False,
    download: bool | Mapping[str, Any] = False,
    growth: Sequence[Sequence[int]] | None = None,
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
    shuffle: bool | Literal["global", "blocks"] = True,
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
    """A replay buffer over a dataset, given by id, path or URL, or already open: ``buffer.sample()`` is a TED TensorDict.

    - ``batch_size``: steps in a batch; may be given to ``sample`` instead, but iteration and prefetching need it here.
    - ``frame_stack``: the last k states, stacked in a new dimension behind the batch; ``stack_keys`` limits it to some leaves.
    - ``n_step``, ``gamma``: n-step returns. Neither these nor stacks cross an episode.
    - ``slice_len`` or ``num_slices``: slices of consecutive steps, flat ``[batch_size]``, the last step of each truncated.
      ``strict_length=False`` includes episodes that are shorter, ``pad_output`` pads them; ``span`` lets slices reach over the
      ends of episodes; ``uniform_over`` "trajectories" or "transitions" says what is drawn uniformly.
    - ``replacement=False``: every step (or one slice of every episode) once per pass: ``for batch in buffer``. ``drop_last``
      leaves out a short last batch, ``shuffle=False`` keeps the order of the data.
    - ``shuffle="blocks"``: every step once a pass, from a few stretches of the data at a time, in an order by the seed: for
      datasets at a URL, of which the stretches are fetched ahead. ``"global"`` is the same as True.
    - ``cache_dir``, ``cache_limit``: of a dataset at a URL, see `open_dataset`.
    - ``check=True``: every block of the files is compared with its checksum when it is first read, see `open_dataset`.
    - ``download=True``: a dataset that is not there is downloaded by another process, and sampled from as soon as there is an
      episode; what is finished is added between batches, see docs/remote.md. ``download={"mirror": ...}``: with arguments of
      `rbdata.download`.
    - ``growth``: the batches that there were while the dataset was downloaded, again: for each, no more of it is shown than was
      there. It is ``buffer.state_dict()["_storage"]["growth"]``, see `DatasetStorage`.
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
    elsewhere = ("id_or_path", "root", "cache_dir", "cache_limit", "check", "download")
    options = {name: value for name, value in locals().items() if name not in (*elsewhere, "elsewhere")}
    if isinstance(id_or_path, Dataset):
        given = {"check": check, "download": download is not False, "cache_dir": cache_dir, "cache_limit": cache_limit}
        for name, value in given.items():
            if value is not None and value is not False:
                message = f"{name} is for ids, paths and URLs, not for a dataset that is already open"
                raise UsageError(message, hint="give them to `load` together with its id, path or URL")
        return load_buffer(id_or_path, **options)
    if download is not False:
        _check_is_here("download is for ids", id_or_path, check, cache_dir, cache_limit)
        return load_buffer(_open_downloading(id_or_path, root, download), watch=True, **options)
    dataset = open_dataset(id_or_path, root=root, cache_dir=cache_dir, cache_limit=cache_limit, check=check)
    return load_buffer(dataset, **options)


def _check_is_here(what: str, id_or_path: str | os.PathLike[str], check: bool, *cache: object) -> None:
    if check or is_remote(id_or_path) or any(option is not None for option in cache):
        raise UsageError(f"{what}, without check, cache_dir and cache_limit")


def _open_downloading(
    dataset_id: str | os.PathLike[str], root: str | os.PathLike[str] | None, options: bool | Mapping[str, Any]
) -> Dataset:
    """The dataset if it is complete, otherwise its first episodes as soon as one is finished."""
    from .datasets.background_download import open_when_begun

    if options is True:
        with suppress(UnknownDatasetError, NotADatasetError):  # by its mirror alone
            if (place := local.find_place(dataset_id, root)).exists():
                return local.open_unfinished(place.path)
    arguments = {} if options is True else dict(options)  # type: ignore[arg-type]
    return open_when_begun("rbdata.api:download", {"dataset_id": os.fspath(dataset_id), "root": root, **arguments})
