"""The commands as Python functions, with the same names and defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .preprocess.interface import preprocess as preprocess

if TYPE_CHECKING:
    from .datasets.acquire import Listener, Request
    from .datasets.local import LocalDataset
    from .storage.dataset import Dataset
    from .storage.replay import ReplayBuffer

PathLike = str | os.PathLike[str]


def download(
    dataset_id: str,
    *,
    root: PathLike | None = None,
    mirror: str | None = None,
    procs: int | None = None,
    shards: str | Sequence[int] | None = None,
    codec: str = "auto",
    layout: Literal["auto", "ted"] = "auto",
    unknown_next: Literal["truncate", "zero"] = "truncate",
    keep_raw: bool = False,
    force: bool = False,
    user_project: str | None = None,
    listener: Listener | None = None,
    **extra: Any,
) -> Path:
    """Download a dataset from its source (or a ``mirror``); returns its folder, for `load` and `open_dataset`.

    A complete dataset is not downloaded again; an interrupted download continues. ``shards`` is a selection such as
    ``"0-4,7"``; ``extra`` are the options that the source declares (``steps=20000`` for a recording,
    ``upstream="rl-unplugged"`` for Atari, ``episodes_by="timeouts"`` for D4RL, ...). For the rest see
    `datasets.ingest.request.Request` and `datasets.ingest.protocol.ConvertOptions`. Raises as `datasets.acquire.download`.
    """
    from .datasets.acquire import download as run

    more = {"mirror": mirror, "procs": procs, "keep_raw": keep_raw, "force": force}
    request = make_request(dataset_id, root, codec, layout, unknown_next, shards, extra, user_project, **more)
    return run(request, listener).path


def convert(
    path: PathLike,
    dataset_id: str,
    *,
    source: str = "atari",
    root: PathLike | None = None,
    procs: int | None = None,
    shards: str | Sequence[int] | None = None,
    codec: str = "auto",
    layout: Literal["auto", "ted"] = "auto",
    unknown_next: Literal["truncate", "zero"] = "truncate",
    force: bool = False,
    listener: Listener | None = None,
    **extra: Any,
) -> Path:
    """Convert the raw files of a source in the folder ``path`` to the dataset ``dataset_id``; returns its folder."""
    from .datasets.acquire import convert as run

    request = make_request(dataset_id, root, codec, layout, unknown_next, shards, extra, procs=procs, force=force)
    return run(Path(path), source, request, listener).path


def make_request(
    dataset_id: str,
    root: PathLike | None,
    codec: str,
    layout: Literal["auto", "ted"],
    unknown_next: Literal["truncate", "zero"],
    shards: str | Sequence[int] | None,
    extra: Mapping[str, Any],
    user_project: str | None = None,
    **more: Any,
) -> Request:
    """What `download` and `convert` run, here and on the command line; ``more`` are other fields of `Request`."""
    from .datasets.acquire import Request
    from .datasets.fetch import FetchOptions
    from .datasets.ingest.number_ranges import parse_numbers
    from .datasets.ingest.protocol import ConvertOptions

    options = ConvertOptions(codec, layout, unknown_next, parts=parse_numbers(shards), extra=extra)
    fetch = FetchOptions(user_project=user_project)
    return Request(dataset_id, root=None if root is None else Path(root), options=options, fetch=fetch, **more)


def open_dataset(id_or_path: PathLike, *, root: PathLike | None = None) -> Dataset:
    """Open a dataset read-only, by id (full or bare) or by path. Raises as `datasets.local.find` does."""
    from .datasets.local import open_dataset as run

    return run(id_or_path, root)


def load(id_or_path: PathLike | Dataset, *, root: PathLike | None = None, **options: Any) -> ReplayBuffer:
    """A `ReplayBuffer` over a dataset (by id, path, or already open).

    The ``options`` are those of `storage.replay.loading.load_buffer` and of `ReplayBuffer`: ``batch_size``, ``slice_len``,
    ``num_slices``, ``strict_length``, ``replacement``, ``frame_stack``, ``n_step``, ``gamma``, ``alpha``, ``beta``,
    ``transform``, ``prefetch``, ``pin_memory``, ``device``, ``seed``, ``rank``, ``world_size`` and more. Raises UsageError for
    invalid options, and as `open_dataset` does.
    """
    from .storage.dataset import Dataset
    from .storage.replay.loading import load_buffer

    dataset = id_or_path if isinstance(id_or_path, Dataset) else open_dataset(id_or_path, root=root)
    return load_buffer(dataset, **options)


def list_datasets(*, root: PathLike | None = None) -> list[LocalDataset]:
    """The datasets on this machine: id, path, state, steps, episodes, bytes."""
    from .datasets.local import list_local

    return list_local(root)


def delete(dataset_id: str, *, root: PathLike | None = None) -> None:
    """Delete a dataset, complete or not, with all its files."""
    from .datasets.local import deletable
    from .datasets.local import delete as run

    run(deletable(dataset_id, root))
