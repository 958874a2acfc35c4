"""Opens, inspects and verifies datasets by id, path or URL; opens several as one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .. import settings
from ..errors import UsageError

if TYPE_CHECKING:
    from ..storage.dataset import Dataset, DatasetView
    from ..storage.episodes import EpisodeTable
    from ..storage.integrity import Report
    from ..storage.manifest import Manifest
    from .card.overview import Overview

PathLike = str | os.PathLike[str]


def open_dataset(
    id_or_path: PathLike,
    *,
    root: PathLike | None = None,
    cache_dir: PathLike | None = None,
    cache_limit: int | str | None = None,
) -> Dataset:
    """Open a dataset read-only, by id (full or bare), by path, or by the URL of a converted dataset (``s3://...``).

    A dataset at a URL is read in place, through a cache in ``cache_dir`` (default: ``.remote`` under the root) of at most
    ``cache_limit`` bytes, such as ``"20GB"``, and every block is compared
    with its checksum when it is fetched (`verify` does that for a local one).

    Raises as `datasets.local.find` and `datasets.remote.open_remote` do.
    """
    folder = _at_hand(id_or_path, root)
    if folder is None:
        from .fetch.location import is_remote

        if is_remote(id_or_path):
            from .remote import open_remote

            return open_remote(id_or_path, cache_dir=cache_dir, cache_limit=cache_limit, root=root)
    if cache_dir is not None or cache_limit is not None:
        raise UsageError(f"cache_dir and cache_limit are for URLs, not for {os.fspath(id_or_path)}")
    if folder is None:  # a bare name, or nothing that is there: sources are asked
        from .local import find

        folder = find(id_or_path, root)
    from ..storage.dataset import Dataset

    return Dataset(folder)


class Inspected(NamedTuple):
    """What is in a dataset; ``remote`` is the open one of a URL."""

    path: Path
    manifest: Manifest
    episodes: EpisodeTable
    overview: Overview
    remote: Dataset | None = None


def inspect(
    id_or_path: PathLike,
    *,
    root: PathLike | None = None,
    cache_dir: PathLike | None = None,
    cache_limit: int | str | None = None,
) -> Inspected:
    """Read what `Overview` describes, by id, path or URL; rows that can be mapped without torch. Raises as `open_dataset`."""
    from ..storage.episodes import open_episodes
    from ..storage.snapshot import read_snapshot
    from .card.overview import overview
    from .fetch.location import is_remote
    from .local import find

    if is_remote(id_or_path):
        from .remote import open_remote

        one = open_remote(id_or_path, cache_dir=cache_dir, cache_limit=cache_limit, root=root)
        found = overview(one.path, one.manifest, one.episodes, one.rows, observations=False)
        return Inspected(one.path, one.manifest, one.episodes, found, one)
    path = find(id_or_path, root)

    def read(manifest: Manifest) -> Inspected:
        table = open_episodes(path, manifest.episodes, manifest.steps)
        return Inspected(path, manifest, table, overview(path, manifest, table))

    return read_snapshot(path, read)


def verify(
    id_or_path: PathLike,
    *,
    root: PathLike | None = None,
    quick: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Check a dataset by id, path or URL: `storage.integrity.verify`, or `datasets.remote.verify_remote`."""
    from ..storage import integrity
    from .fetch.location import is_remote
    from .local import find
    from .remote import verify_remote

    if is_remote(id_or_path):
        return verify_remote(id_or_path, quick=quick, on_progress=on_progress)
    return integrity.verify(find(id_or_path, root), quick=quick, on_progress=on_progress)


def _at_hand(id_or_path: PathLike, root: PathLike | None) -> Path | None:
    """The folder of a dataset that its full id or its path leads to; None where more must be known to tell.

    Looks only at the disk, so that no source is imported for a dataset that is there.
    """
    from ..storage.snapshot import has_manifest

    if not isinstance(id_or_path, str):
        return Path(id_or_path).absolute() if isinstance(id_or_path, Path) and has_manifest(id_or_path) else None
    if id_or_path.startswith(("/", ".", "~")):
        folder = settings.expanded(id_or_path).absolute()
        return folder if has_manifest(folder) else None
    if "://" in id_or_path or not {"", ".", ".."}.isdisjoint(id_or_path.split("/")):
        return None
    here, of_root = Path(id_or_path).absolute(), settings.root(root) / id_or_path
    return of_root if has_manifest(of_root) and (here == of_root or not has_manifest(here)) else None


def concat(
    datasets: Sequence[PathLike | Dataset],
    *,
    keys: Literal["all", "common"] = "all",
    root: PathLike | None = None,
) -> DatasetView:
    """Make a view of all episodes of several datasets, one after the other, given as for `open_dataset` or already open.

    It can be used like a dataset: `load`, `preprocess`, `export` and `Dataset.select` take it, ``save`` writes it. ``members``
    are the datasets. Raises UsageError, naming them, for leaves that differ; with ``keys`` "common" these are left out.
    """
    from ..storage import dataset

    return dataset.concat(opened(datasets, root=root), keys)


def opened(datasets: Any, **where: Any) -> list[Dataset]:
    """Datasets, of which some may be open already; ``where`` are options of `open_dataset`."""
    from ..storage.dataset import Dataset

    if not isinstance(datasets, Sequence) or isinstance(datasets, (str, bytes)):
        message = f"a sequence of datasets is needed, not a {type(datasets).__name__}"
        raise UsageError(message, hint="data in memory become a dataset with `rbdata.from_arrays(data, 'my/x')`")
    if datasets and all(isinstance(one, Dataset) for one in datasets):
        check_is_open(**where)
    return [one if isinstance(one, Dataset) else open_dataset(one, **where) for one in datasets]


def check_is_open(**where: Any) -> None:
    """Raise UsageError for options that say where a dataset is, beside datasets that are open already."""
    for name, value in where.items():
        if value is not None and value is not False:
            message = f"{name} is for ids, paths and URLs, not for a dataset that is already open"
            raise UsageError(message, hint="give them to `load` together with its id, path or URL")
