"""The commands as Python functions, with the same names and defaults."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from typing_extensions import Unpack

from .cards.overview import Overview
from .datasets.ingest.progress_bar import progress_listener
from .datasets.ingest.request import Listener, make_request
from .datasets.local import LocalDataset
from .datasets.sources.catalogue_entry import Catalogue, CatalogueEntry
from .datasets.sources.options import RawFileOptions, SourceOptions, given_options
from .preprocess.interface import preprocess as preprocess
from .storage.integrity import Report
from .storage.keywords import check_keywords, with_options

PathLike = str | os.PathLike[str]


@with_options(SourceOptions)
def download(
    dataset_id: str,
    *,
    root: PathLike | None = None,
    mirror: str | None = None,
    procs: int | None = None,
    shards: str | Sequence[int] | None = None,
    codec: Literal["auto", "raw", "zstd"] = "auto",
    layout: Literal["auto", "ted"] = "auto",
    unknown_next: Literal["truncate", "zero"] = "truncate",
    keep_raw: bool = False,
    force: bool = False,
    wait: bool = True,
    user_project: str | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    progress: bool | None = None,
    listener: Listener | None = None,
    **source_options: Unpack[SourceOptions],
) -> Path:
    """Download a dataset from its source (or a ``mirror``); returns its folder, for `load` and `open_dataset`.

    A complete dataset is not downloaded again; an interrupted download continues. Where another process downloads it,
    that one is waited for; ``wait=False`` raises DatasetBusyError. ``shards`` is a selection such as ``"0-4,7"``.
    ``engine="ray"`` converts on a Ray cluster whose nodes see the folder under the same path; its ``address`` may be
    ``"auto"``. A bar is shown on a terminal (stderr) and in a notebook; ``progress=False`` hides it, True shows it in pipes
    as well. ``listener`` has callbacks instead. For the rest see `datasets.ingest.request.Request` and
    `datasets.ingest.protocol.ConvertOptions`.

    Options of one source (None: its default; ``rbdata download --help`` describes them):

    - Atari: ``upstream``. D4RL: ``episodes_by``, ``horizon``, ``accept_changed``. Minari: ``text``.
    - OpenML: ``target``, ``exclude``, ``missing``, ``one_hot``, ``standardize``, ``format``, ``accept_changed``.
    - Gymnasium (recordings; `record` takes policies as objects): ``name``, ``steps``, ``episodes``, ``policy``, ``num_envs``,
      ``seed``, ``epsilon``, ``env_args``, ``text``.
    - sources of other packages: by name in ``options``.

    Raises as `datasets.acquire.download`, and UsageError for options that the source does not have.
    """
    extra = given_options(source_options)
    from .datasets.acquire import download as run
    from .datasets.workers.engines import open_cluster

    with open_cluster(engine, procs=procs, address=address) as cluster:
        request = make_request(
            dataset_id,
            root,
            extra,
            codec=codec,
            layout=layout,
            unknown_next=unknown_next,
            shards=shards,
            user_project=user_project,
            mirror=mirror,
            procs=procs,
            keep_raw=keep_raw,
            force=force,
            wait=wait,
            engine=cluster,
        )
        with progress_listener(dataset_id, listener, progress) as events:
            return run(request, events).path


@with_options(RawFileOptions)
def convert(
    path: PathLike,
    dataset_id: str,
    *,
    source: str | None = None,
    root: PathLike | None = None,
    procs: int | None = None,
    shards: str | Sequence[int] | None = None,
    codec: Literal["auto", "raw", "zstd"] = "auto",
    layout: Literal["auto", "ted"] = "auto",
    unknown_next: Literal["truncate", "zero"] = "truncate",
    force: bool = False,
    wait: bool = True,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    progress: bool | None = None,
    listener: Listener | None = None,
    **source_options: Unpack[RawFileOptions],
) -> Path:
    """Convert the raw files of a source (a folder, or one file ``path``) to the dataset ``dataset_id``; returns its folder.

    Without ``source``, the one whose data they plainly are; UsageError where that cannot be told. ``wait`` as in `download`.

    Options of one source as in `download`; ``dataset`` is the D4RL id of the file, where its name does not tell.
    """
    extra = given_options(source_options)
    from .datasets.acquire import convert as run
    from .datasets.workers.engines import open_cluster

    with open_cluster(engine, procs=procs, address=address) as cluster:
        request = make_request(
            dataset_id,
            root,
            extra,
            codec=codec,
            layout=layout,
            unknown_next=unknown_next,
            shards=shards,
            procs=procs,
            force=force,
            wait=wait,
            engine=cluster,
        )
        with progress_listener(dataset_id, listener, progress) as events:
            return run(Path(path), source, request, events).path


@check_keywords
def list_datasets(*, root: PathLike | None = None) -> list[LocalDataset]:
    """The datasets on this machine: id, path, state, steps, episodes, bytes."""
    from .datasets.local import list_local

    return list_local(root)


@check_keywords
def catalogue(source: str | None = None, *, root: PathLike | None = None) -> Catalogue:
    """The datasets that can be downloaded or recorded, of all sources or of one, with all that is known of each.

    Nothing is asked of the network; counts that a server stated at the last `rbdata list --refresh` are included. Raises
    UnknownDatasetError for an unknown source.
    """
    from .datasets.search import known

    return known(source, root)


@check_keywords
def search(
    words: str = "",
    *,
    source: str | None = None,
    observations: Literal["image", "vector", "discrete", "dict"] | None = None,
    actions: Literal["discrete", "continuous"] | None = None,
    max_size: str | int | None = None,
    root: PathLike | None = None,
) -> Catalogue:
    """The datasets that match all words (of ids, environments, kinds and tags), such as "hopper medium", the best first.

    ``max_size`` bounds the bytes to download, such as ``"2GB"``; datasets whose size is not known are then left out. Raises
    UsageError for an unknown kind or a malformed size, UnknownDatasetError for an unknown source.
    """
    from .datasets.search import find

    found = find([words], source=source, observations=observations, actions=actions, max_size=max_size, root=root)
    return found.entries


@check_keywords
def info(dataset_id: str, *, root: PathLike | None = None) -> CatalogueEntry:
    """What is known of a dataset before it is downloaded, without the network.

    Raises UnknownDatasetError, with the nearest ids, for one that no source has.
    """
    from .datasets.search import describe

    return describe(dataset_id, root)[0]


@check_keywords
def verify(id_or_path: PathLike, *, root: PathLike | None = None, quick: bool = False) -> Report:
    """Check a dataset against its checksums and the rules of TED: ``report.ok``, ``report.problems``.

    ``quick`` compares the sizes of files only. Of a dataset at a URL all files are read there and compared with its manifest;
    nothing is kept. Raises as `storage.integrity.verify` for a folder that cannot be checked, and
    as `open_dataset` does.
    """
    from .datasets.fetch.location import is_remote
    from .datasets.local import find
    from .datasets.remote import verify_remote
    from .storage.integrity import verify as run

    if is_remote(id_or_path):
        return verify_remote(id_or_path, quick=quick)
    return run(find(id_or_path, root), quick=quick)


@check_keywords
def inspect(
    id_or_path: PathLike,
    *,
    root: PathLike | None = None,
    cache_dir: PathLike | None = None,
    cache_limit: int | str | None = None,
) -> Overview:
    """How the episodes of a dataset ended, and its returns, lengths, rewards and actions, as `rbdata inspect` shows them.

    Above 65,536 steps the distributions are those of a sample, so that it is quick for a dataset of any size. Datasets at a
    URL, ``cache_dir`` and ``cache_limit`` as in `open_dataset`; raises as it does.
    """
    from .cards.overview import overview
    from .datasets.fetch.location import is_remote
    from .datasets.local import find
    from .datasets.remote import open_remote
    from .storage.episodes import open_episodes
    from .storage.snapshot import read_snapshot

    if is_remote(id_or_path):
        remote = open_remote(id_or_path, cache_dir=cache_dir, cache_limit=cache_limit, root=root)
        return overview(remote.path, remote.manifest, remote.episodes, remote.rows)
    path = find(id_or_path, root)
    return read_snapshot(path, lambda held: overview(path, held, open_episodes(path, held.episodes, held.steps)))


@check_keywords
def delete(dataset_id: str, *, root: PathLike | None = None) -> None:
    """Delete a dataset, complete or not, with all its files."""
    from .datasets.local import deletable
    from .datasets.local import delete as run

    run(deletable(dataset_id, root))
