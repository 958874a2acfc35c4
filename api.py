"""The Python API: the commands as functions with the same names and defaults, and the functions that open and load datasets.

Heavy packages are imported where they are used, so that ``rbdata.search`` does not load torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from .datasets.audit.findings import AuditReport
from .datasets.card.overview import Overview
from .datasets.ingest.progress import progress_listener
from .datasets.ingest.request import Listener, make_request
from .datasets.local import LocalDataset
from .datasets.sources.catalogue_entry import Catalogue, CatalogueEntry
from .datasets.sources.options import RawFileOptions, SourceOptions, given_options
from .errors import DatasetNotFoundError, NotADatasetError, UsageError
from .preprocess.interface import preprocess as preprocess
from .storage.integrity import Report
from .storage.keywords import refuse_empty, with_options

if TYPE_CHECKING:
    import torch

    from .storage.dataset import Dataset, DatasetView
    from .storage.replay import Goals, Sampler, TensorDictReplayBuffer
    from .storage.replay.samplers.slices import Span, UniformOver

PathLike = str | os.PathLike[str]


@with_options(SourceOptions)
def download(
    dataset_id: str,
    *,
    root: PathLike | None = None,
    mirror: PathLike | None = None,
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

    A complete dataset is not downloaded again; an interrupted download continues. If another process is downloading it, this
    one waits; ``wait=False`` raises DatasetBusyError instead. ``shards`` is a selection such as ``"0-4,7"``.
    ``engine="ray"`` converts on a Ray cluster whose nodes see the folder under the same path; its ``address`` may be
    ``"auto"``. A progress bar is shown on a terminal (stderr) and in a notebook; ``progress=False`` hides it, True shows it in
    pipes as well; a ``listener`` has callbacks instead. For the rest see `datasets.ingest.request.Request` and
    `datasets.ingest.job.ConvertOptions`.

    Options of one source (None: its default; ``rbdata download --help`` describes them):

    - Atari: ``upstream``. D4RL: ``episodes_by``, ``horizon``, ``accept_changed``. Minari: ``text``.
    - LeRobot: ``size``, ``episodes`` (``"0-9,12"``), ``cameras``, ``text``.
    - OpenML: ``target``, ``exclude``, ``missing``, ``one_hot``, ``standardize``, ``format``, ``accept_changed``.
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

    Without ``source``, it is recognised from the files, or UsageError is raised. ``wait`` as in `download`.

    Options of one source as in `download`; ``dataset`` is the D4RL id of the file, if its name does not state it. For arrays of
    your own, ``map`` assigns them to keys, as in `from_arrays`, and ``environment`` is their Gymnasium id. Of
    several splits (train, test), ``split`` is read.
    """
    refuse_empty(path=path)
    extra = given_options(source_options)
    from .datasets.acquire import convert as run
    from .datasets.own_data import warn_of_order
    from .datasets.workers import open_cluster

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
            outcome = run(Path(path), source, request, events)
    warn_of_order(outcome)
    return outcome.path


def list_datasets(*, root: PathLike | None = None) -> list[LocalDataset]:
    """The datasets on this machine: id, path, state, steps, episodes, bytes."""
    from .datasets.local import list_local

    return list_local(root)


def catalogue(source: str | None = None, *, root: PathLike | None = None) -> Catalogue:
    """The datasets that can be downloaded or recorded, of all sources or of one, with all known facts about each.

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
    """The datasets that match all words (of ids, environments, kinds and tags), such as "hopper medium", the best first.

    ``max_size`` bounds the bytes to download, such as ``"2GB"``; datasets of unknown size are then left out. Raises UsageError
    for an unknown kind or a malformed size, DatasetNotFoundError for an unknown source.
    """
    from .datasets.search import find

    found = find([words], source=source, observations=observations, actions=actions, max_size=max_size, root=root)
    return found.entries


def info(dataset_id: str, *, root: PathLike | None = None) -> CatalogueEntry:
    """What is known about a dataset before it is downloaded, without the network.

    Raises DatasetNotFoundError, with the nearest ids, for an unknown dataset.
    """
    from .datasets.search import describe

    return describe(dataset_id, root)[0]


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
    from .datasets import local
    from .datasets.fetch.location import is_remote
    from .datasets.remote import open_remote

    if is_remote(id_or_path):
        return open_remote(id_or_path, cache_dir=cache_dir, cache_limit=cache_limit, root=root)
    if cache_dir is not None or cache_limit is not None:
        raise UsageError(f"cache_dir and cache_limit are for URLs, not for {os.fspath(id_or_path)}")
    return local.open_dataset(id_or_path, root)


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
    normalize: str | Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
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
    device: str | int | torch.device | None = None,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    rank: int = 0,
    world_size: int = 1,
) -> TensorDictReplayBuffer:
    """A replay buffer over a dataset, given by id, path or URL, or already open: ``buffer.sample()`` is a TED TensorDict.

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
      ``{"observation": (-1, 0), "action": (0, 15)}``; such a leaf is ``[batch_size, rows, ...]``, and nothing else is read.
      ``padding`` fills rows outside the episode ("repeat": with its nearest row, or "zero"); ``batch["mask", key]`` is False
      there. See docs/windows.md.
    - ``extra``: leaves computed when they are read, ``[*batch, 1]``: "is_first" (bool), "step" (int64, of the episode),
      "return_to_go" (float32, undiscounted), "discount" (float32, 1 - terminated).
    - ``normalize``: a key or keys, such as "observation": ``(x - mean) / (std + eps)`` of these leaves and their successors,
      before transforms; mean and std over the whole dataset are computed once and stored beside its folder, with ``eps`` 1e-3,
      or given as ``{"observation": {"mean": ..., "std": ..., "eps": 0.0}}``. ``buffer.statistics`` has the values used.
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
    - ``sampler``: your own sampler instead of these options. ``end_key``, ``traj_key``: see `ReplayBuffer`.
    - ``seed`` or ``generator``: the same seed gives the same batches. ``rank``, ``world_size``: data-parallel training.

    How it comes:

    - ``transform``: a function or module that changes batches; ``collate_fn``: makes one of the records.
    - ``prefetch``: the number of batches made in advance, each in a thread. ``pin_memory``, ``device``: the memory of batches.

    Raises UsageError for options that contradict each other or have no effect, with their names, and as `open_dataset` does.
    """
    options = {name: value for name, value in locals().items() if name not in _WHERE}
    from .storage.dataset import Dataset, concat
    from .storage.replay.loading import load_buffer

    where: dict[str, Any] = {"root": root, "cache_dir": cache_dir, "cache_limit": cache_limit}
    if isinstance(id_or_path, Dataset):
        _check_are_open(**where, download=download is not False)
        return load_buffer(id_or_path, **options)
    if not isinstance(id_or_path, (str, os.PathLike)):
        if download is not False:
            raise UsageError("download is for a single id")
        return load_buffer(concat(_opened(id_or_path, **where), marked=True), **options)
    if download is not False:
        id_or_path, where["root"] = _downloaded(id_or_path, root, download), None
    return load_buffer(open_dataset(id_or_path, **where), **options)


#: Arguments of `load` that say where the data are.
_WHERE = ("id_or_path", "root", "cache_dir", "cache_limit", "download")


def concat(
    datasets: Sequence[PathLike | Dataset],
    *,
    keys: Literal["all", "common"] = "all",
    root: PathLike | None = None,
) -> DatasetView:
    """A view of all episodes of several datasets, one after the other, given as for `open_dataset` or already open.

    It can be used like a dataset: `load`, `preprocess`, `export` and `Dataset.select` take it, ``save`` writes it. ``members``
    are the datasets. Raises UsageError, naming them, for leaves that differ; with ``keys`` "common" these are left out.
    """
    from .storage.dataset import concat

    return concat(_opened(datasets, root=root), keys)


def _opened(datasets: Any, **options: Any) -> list[Dataset]:
    from .storage.dataset import Dataset

    if not isinstance(datasets, Sequence) or isinstance(datasets, (str, bytes)):
        raise UsageError(f"a sequence of datasets is needed, not a {type(datasets).__name__}")
    if datasets and all(isinstance(one, Dataset) for one in datasets):
        _check_are_open(**options)
    return [one if isinstance(one, Dataset) else open_dataset(one, **options) for one in datasets]


def _check_are_open(**given: Any) -> None:
    """Raise UsageError for options that say where a dataset is, beside datasets that are open already."""
    for name, value in given.items():
        if value is not None and value is not False:
            message = f"{name} is for ids, paths and URLs, not for a dataset that is already open"
            raise UsageError(message, hint="give them to `load` together with its id, path or URL")


def _downloaded(dataset_id: PathLike, root: PathLike | None, options: bool | Mapping[str, Any]) -> Path:
    """The folder of a dataset, which is downloaded if it is not there, or if ``options`` of `download` are given."""
    from .datasets.fetch.location import is_remote
    from .datasets.local import find_place

    if is_remote(dataset_id):
        raise UsageError("download is for ids", hint="a dataset at a URL is read in place, or pulled as a whole")
    if options is True:
        with suppress(DatasetNotFoundError, NotADatasetError):  # known only to its mirror
            if (place := find_place(dataset_id, root)).exists():
                return place.path
    return download(os.fspath(dataset_id), root=root, **({} if options is True else options))  # type: ignore[arg-type]


def verify(id_or_path: PathLike, *, root: PathLike | None = None, quick: bool = False) -> Report:
    """Check a dataset against its checksums and the rules of TED: ``report.ok``, ``report.problems``.

    ``quick`` compares only the sizes of files. For a dataset at a URL, all files are read and compared with its manifest;
    nothing is cached. Raises as `storage.integrity.verify` for a folder that cannot be checked, and as `open_dataset`.
    """
    from .datasets.fetch.location import is_remote
    from .datasets.local import find
    from .datasets.remote import verify_remote
    from .storage.integrity import verify as run

    if is_remote(id_or_path):
        return verify_remote(id_or_path, quick=quick)
    return run(find(id_or_path, root), quick=quick)


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

    Takes ids, paths, URLs and open datasets and views. Raises UsageError for an empty range, NotADatasetError for raw data,
    which are converted first, and as `open_dataset`.
    """
    from .datasets.audit.run import audit_datasets, open_for_audit
    from .storage.dataset import Dataset

    several = [id_or_path] if isinstance(id_or_path, (str, os.PathLike, Dataset)) else list(id_or_path)
    opened = [
        one if isinstance(one, Dataset) else open_for_audit(one, root, cache_dir=cache_dir, cache_limit=cache_limit)
        for one in several
    ]
    return audit_datasets(opened, reward_range=reward_range)


def inspect(
    id_or_path: PathLike | Dataset,
    *,
    root: PathLike | None = None,
    cache_dir: PathLike | None = None,
    cache_limit: int | str | None = None,
) -> Overview:
    """How the episodes of a dataset ended, and its returns, lengths, rewards and actions, as `rbdata inspect` shows them.

    Beyond 65,536 steps, distributions are computed from a sample, so that it is quick for datasets of any size. URLs,
    ``cache_dir`` and ``cache_limit`` as in `open_dataset`; raises as it does. Also takes an open dataset or view.
    """
    from .datasets.card.overview import overview
    from .datasets.fetch.location import is_remote
    from .datasets.local import find
    from .datasets.remote import open_remote
    from .storage.dataset import Dataset
    from .storage.episodes import open_episodes
    from .storage.snapshot import read_snapshot

    if isinstance(id_or_path, Dataset):
        return overview(id_or_path.path, id_or_path.manifest, id_or_path.episodes, id_or_path.rows)
    if is_remote(id_or_path):
        remote = open_remote(id_or_path, cache_dir=cache_dir, cache_limit=cache_limit, root=root)
        return overview(remote.path, remote.manifest, remote.episodes, remote.rows)
    path = find(id_or_path, root)
    return read_snapshot(path, lambda held: overview(path, held, open_episodes(path, held.episodes, held.steps)))


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
