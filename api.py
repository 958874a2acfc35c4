"""The Python API: the commands as functions with the same names and defaults (`load` and `open_dataset` are elsewhere).

Heavy packages are imported where they are used, so that ``rbdata.search`` does not load torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from .datasets import opening
from .datasets.audit.findings import AuditReport
from .datasets.card.overview import Overview
from .datasets.ingest.bar import progress_listener
from .datasets.ingest.request import Listener, make_request
from .datasets.local import LocalDataset
from .datasets.opening import open_dataset
from .datasets.sources.catalogue_entry import Catalogue, CatalogueEntry
from .datasets.sources.options import RawFileOptions, SourceOptions, given_options
from .preprocess import preprocess as preprocess
from .storage.integrity import Report
from .storage.keywords import refuse_empty, with_options

if TYPE_CHECKING:
    from .storage.dataset import Dataset

PathLike = str | os.PathLike[str]


@with_options(SourceOptions)
def download(
    dataset_id: str,
    *,
    root: PathLike | None = None,
    mirror: PathLike | None = None,
    procs: int | None = None,
    shards: str | Sequence[int] | None = None,
    codec: str = "auto",
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

    A complete dataset is not downloaded again; an interrupted download continues. If another process is downloading it, this
    one waits; ``wait=False`` raises DatasetBusyError instead. ``shards`` is a selection such as ``"0-4,7"``.
    ``engine="ray"`` converts on a Ray cluster whose nodes see the folder under the same path; its ``address`` may be
    ``"auto"``. A progress bar is shown on a terminal (stderr) and in a notebook; ``progress=False`` hides it, True shows it in
    pipes as well; a ``listener`` has callbacks instead. For the rest see `datasets.ingest.request.Request` and
    `datasets.ingest.records.ConvertOptions`.

    Options of one source (None: its default; ``rbdata download --help`` describes them):

    - Atari: ``upstream``. D4RL: ``episodes_by``, ``horizon``, ``accept_changed``. Minari: ``text``.
    - LeRobot: ``size``, ``episodes`` (``"0-9,12"``), ``cameras``, ``text``.
    - OpenML: ``target``, ``exclude``, ``missing``, ``one_hot``, ``standardize``, ``accept_changed``.
    - RLDS, Open X-Embodiment: ``last_row``, ``split``, ``leave_out``, ``max_length``, ``text``.
    - ExORL: ``task``, whose rewards the dataset has.
    - Gymnasium (recordings; `record` takes policies as objects): ``name``, ``steps``, ``episodes``, ``policy``, ``num_envs``,
      ``seed``, ``epsilon``, ``env_args``, ``text``.
    - sources of other packages: by name in ``options``.

    Raises as `datasets.acquire.download`, and UsageError for options that the source lacks.
    """
    extra = given_options(source_options)
    from .datasets.acquire import download as run
    from .datasets.workers import open_cluster

    with open_cluster(engine, procs=procs, address=address) or nullcontext() as cluster:
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
    codec: str = "auto",
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

    Without ``source``, it is recognised from the files, or UsageError is raised. ``wait`` as in `download`.

    Options of one source as in `download`; ``dataset`` is the D4RL id of the file, if its name does not state it. For arrays of
    your own, ``map`` assigns them to keys, as in `from_arrays`, and ``environment`` is their Gymnasium id. Of
    several splits (train, test), ``split`` is read.
    """
    refuse_empty(path=path)
    extra = given_options(source_options)
    from .datasets.convert import convert as run
    from .datasets.workers import open_cluster

    with open_cluster(engine, procs=procs, address=address) or nullcontext() as cluster:
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


def list_datasets(*, root: PathLike | None = None) -> list[LocalDataset]:
    """Return the datasets on this machine: id, path, state, steps, episodes, bytes."""
    from .datasets.local import list_local

    return list_local(root)


def catalogue(source: str | None = None, *, root: PathLike | None = None) -> Catalogue:
    """Return the datasets that can be downloaded or recorded, of all sources or of one, with all known facts about each.

    Works offline; counts from the last `rbdata list --refresh` are included. Raises DatasetNotFoundError for an unknown source.
    """
    from .datasets.search import known

    return known(source, root)


def search(
    words: str = "",
    *,
    source: str | None = None,
    observations: Literal["image", "vector", "discrete", "dict"] | None = None,
    actions: Literal["discrete", "continuous"] | None = None,
    max_size: str | int | None = None,
    root: PathLike | None = None,
) -> Catalogue:
    """Return the datasets that match all words (of ids, environments, kinds and tags), such as "hopper medium", the best first.

    ``max_size`` bounds the bytes to download, such as ``"2GB"``; datasets of unknown size are then left out. Raises UsageError
    for an unknown kind or a malformed size, DatasetNotFoundError for an unknown source.
    """
    from .datasets.search import find

    found = find([words], source=source, observations=observations, actions=actions, max_size=max_size, root=root)
    return found.entries


def info(dataset_id: str, *, root: PathLike | None = None) -> CatalogueEntry:
    """Return what is known about a dataset before it is downloaded, without the network.

    Raises DatasetNotFoundError, with the nearest ids, for an unknown dataset.
    """
    from .datasets.search import describe

    return describe(dataset_id, root)[0]


def verify(id_or_path: PathLike, *, root: PathLike | None = None, quick: bool = False) -> Report:
    """Check a dataset against its checksums: ``report.ok``, ``report.problems``.

    ``quick`` compares only the sizes of files. For a dataset at a URL, all files are read and compared with its manifest;
    nothing is cached. Raises as `storage.integrity.verify` for a folder that cannot be checked, and as `open_dataset`.
    """
    return opening.verify(id_or_path, root=root, quick=quick)


def audit(
    id_or_path: PathLike | Dataset | Sequence[PathLike | Dataset],
    *,
    root: PathLike | None = None,
    reward_range: tuple[float, float] | None = None,
    cache_dir: PathLike | None = None,
    cache_limit: int | str | None = None,
) -> AuditReport:
    """Say what is wrong with the data of a dataset before training: ``report.ok``, ``report.findings``.

    Rewards outside their range, values that are not finite or never vary, flags that disagree, observations that are
    repeated or lead into another episode, and more, each with its steps and what it does to a learner (docs/audit.md).
    `verify` compares bytes with checksums instead. Several datasets, such as those for training and for validation, are also
    compared with each other. ``reward_range`` is the smallest and the largest reward of the task, by default the one that the
    source states. Every row of small leaves is read once; of frames a sample is read, which ``report.datasets`` states.

    Takes ids, paths, URLs and open datasets and views. Raises UsageError for an empty range, DatasetNotFoundError for raw data,
    which are converted first, and as `open_dataset`.
    """
    from .datasets.audit.run import audit_datasets
    from .storage.dataset import Dataset

    several = [id_or_path] if isinstance(id_or_path, (str, os.PathLike, Dataset)) else list(id_or_path)
    opened = opening.opened(several, root=root, cache_dir=cache_dir, cache_limit=cache_limit)
    return audit_datasets(opened, reward_range=reward_range)


def inspect(
    id_or_path: PathLike | Dataset,
    *,
    root: PathLike | None = None,
    cache_dir: PathLike | None = None,
    cache_limit: int | str | None = None,
) -> Overview:
    """Return how the episodes of a dataset ended, its returns, lengths, rewards, actions and observations, as `rbdata inspect`.

    Beyond 65,536 steps, distributions are computed from a sample, so that it is quick for datasets of any size; those of
    observations are left out for frames, and for URLs. URLs,
    ``cache_dir`` and ``cache_limit`` as in `open_dataset`; raises as it does. Also takes an open dataset or view.
    """
    from .datasets.card.overview import overview
    from .storage.dataset import Dataset
    from .storage.remote.remote_dataset import RemoteDataset

    if isinstance(id_or_path, Dataset):
        is_here = not isinstance(id_or_path, RemoteDataset)
        return overview(
            id_or_path.path, id_or_path.manifest, id_or_path.episodes, id_or_path.rows, observations=is_here
        )
    return opening.inspect(id_or_path, root=root, cache_dir=cache_dir, cache_limit=cache_limit).overview


def export(
    id_or_path: PathLike | Dataset,
    dest: PathLike,
    to: Literal["npz", "d4rl", "minari", "parquet", "torchrl", "rlds", "lerobot"],
    *,
    root: PathLike | None = None,
    force: bool = False,
    frames: Literal["video", "image"] | None = None,
    fps: float | None = None,
) -> Path:
    """Write a dataset, given by id, path or URL, or open, as a file or folder of another library; returns its path.

    ``to`` is the format: ``"npz"`` flat arrays, ``"d4rl"`` HDF5, ``"minari"`` a folder for `minari.load_dataset` (its name ends
    with a version: ``hopper-v0``), ``"parquet"`` a row per step, ``"torchrl"`` a folder for `TensorDict.load_memmap`,
    ``"rlds"`` one for `tfds.builder_from_directory`, ``"lerobot"`` one for lerobot's `LeRobotDataset`. An `ExportWarning` says
    what the format leaves out or changes.

    Of ``"lerobot"``: ``frames`` become H.264 ``"video"``, which changes their values (the default), or PNG in the rows,
    ``"image"``; ``fps`` is the number of steps a second, by default what the dataset states, else 30.

    Raises UsageError for a dataset that the format cannot hold, DatasetExistsError for an existing target unless ``force``,
    MissingExtraError, DiskError, and as `open_dataset`.
    """
    import warnings

    from .datasets.export import write_export
    from .errors import ExportWarning
    from .storage.dataset import Dataset

    source = id_or_path if isinstance(id_or_path, Dataset) else open_dataset(id_or_path, root=root)
    done = write_export(source, dest, to, force=force, frames=frames, fps=fps)
    for note in done.notes:
        warnings.warn(f"{done.path}: {note}", ExportWarning, stacklevel=3)
    return done.path


def delete(dataset_id: str, *, root: PathLike | None = None) -> None:
    """Delete a dataset, complete or not, with all its files."""
    from .datasets.local import deletable
    from .datasets.local import delete as run

    run(deletable(dataset_id, root))
