"""What the dataset classes share: get a dataset of a source, and be a buffer over it.

The keyword arguments that the dataset classes pass on, as types; see `storage.replay.buffer_options`.

Those of `rbdata.download` and `rbdata.load` mean what they mean there. None is the default of a source's own options.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from typing_extensions import TypedDict, Unpack

from ... import settings
from ...errors import UsageError
from ...storage.dataset import Dataset
from ...storage.derived_dataset import Derivation, DerivedDataset
from ...storage.folder import DatasetPlace, remove_tree
from ...storage.keywords import with_options
from ...storage.replay.buffer_options import CollateOptions, CommonOptions, EndOptions, PriorityKeyOptions
from ...storage.replay.loading import SAMPLING, make_sampler
from ...storage.replay.samplers.slices import Span, UniformOver
from ...storage.replay.storages.dataset_storage import DatasetStorage, EpisodeStorage
from ...storage.replay.storages.tensor_storage import TensorStorage
from ...storage.replay.tensordict_buffer import TensorDictReplayBuffer
from .. import acquire, catalogue, local
from ..ingest.request import make_request
from ..sources.options import AcceptChangedOption, AtariOptions, D4RLOptions, OpenMLOptions, TextOption
from .record_map import map_records


class ReplayOptions(EndOptions, PriorityKeyOptions, CommonOptions, total=False):
    """Of every class: where the data come from, and what a sampler does beside slices."""

    mirror: str | None
    shards: str | Sequence[int] | None
    codec: Literal["auto", "raw", "zstd"]
    layout: Literal["auto", "ted"]
    unknown_next: Literal["truncate", "zero"]
    pad_output: bool
    span: Span
    uniform_over: UniformOver
    drop_last: bool
    shuffle: bool
    alpha: float | None
    beta: float | None


class DrawOptions(TypedDict, total=False):
    """How all classes draw; the one of Atari declares these arguments itself."""

    procs: int | None
    num_slices: int | None
    slice_len: int | None
    strict_length: bool
    replacement: bool


class ComponentOptions(CollateOptions, total=False):
    """Of the classes that have none of them by position."""

    sampler: Any
    writer: Any
    transform: Any


class GetOption(TypedDict, total=False):
    download: bool | str


class SplitOption(TypedDict, total=False):
    """Refused by the class of OpenML: there is nothing to split."""

    split_trajs: bool


class AtariReplayOptions(ComponentOptions, ReplayOptions, SplitOption, AtariOptions, total=False):
    pass


class D4RLReplayOptions(DrawOptions, ReplayOptions, D4RLOptions, AcceptChangedOption, total=False):
    pass


class MinariReplayOptions(ComponentOptions, DrawOptions, ReplayOptions, TextOption, total=False):
    pass


class OpenMLReplayOptions(
    DrawOptions, ReplayOptions, GetOption, OpenMLOptions, SplitOption, AcceptChangedOption, total=False
):
    pass


class MapOptions(TypedDict, total=False):
    """Of `record_map.map_records`."""

    num_frames: int | None
    chunksize: int | None
    num_chunks: int | None
    generator: torch.Generator | None
    max_tasks_per_child: int | None
    worker_threads: int
    index_with_generator: bool
    pbar: bool
    mp_start_method: str | None
    pool: Any


#: Options of a class that `rbdata.download` has, beside those that the source declares.
DOWNLOAD = frozenset({"mirror", "procs", "shards", "codec", "layout", "unknown_next"})
Value = TypeVar("Value")


class ClassProperty(Generic[Value]):
    """A property of the class itself."""

    def __init__(self, get: Callable[[Any], Value]) -> None:
        self._get = get
        self.__doc__ = get.__doc__

    def __get__(self, instance: Any, owner: Any) -> Value:
        return self._get(owner)


class BaseDatasetExperienceReplay(TensorDictReplayBuffer):
    """Base of the buffers over a dataset on disk. Arguments are those of `TensorDictReplayBuffer`.

    A derived class of your own defines ``data_path``.
    """

    _root: Path | None = None

    @property
    def root(self) -> Path | None:
        """The folder of all datasets."""
        return self._root

    @root.setter
    def root(self, value: str | os.PathLike[str] | None) -> None:
        self._root = None if value is None else Path(value)

    @property
    def data_path(self) -> Path:
        """The folder of the dataset."""
        raise NotImplementedError

    @property
    def data_path_root(self) -> Path:
        """The folder of the dataset as well: variants of it (split trajectories) are not stored."""
        return self.data_path

    @with_options(MapOptions, map_records)
    def preprocess(
        self,
        fn: Callable[[Any], Any],
        dim: int = 0,
        num_workers: int | None = None,
        *,
        dest: str | os.PathLike[str],
        **options: Unpack[MapOptions],
    ) -> TensorStorage:
        """All records (or the first ``num_frames``) passed through ``fn``: a storage of files under ``dest``.

        ``options`` are those of `map_records`: ``num_frames``, ``chunksize``, ``num_chunks``, ``generator``, ``pool``,
        ``max_tasks_per_child``, ``worker_threads``, ``index_with_generator``, ``pbar``, ``mp_start_method``.
        ``fn`` is given records as they are stored, not as transforms leave them. Raises as `map_records` does.
        """
        return map_records(self._storage, fn, dest, dim=dim, num_workers=num_workers, **options)

    def delete(self) -> None:
        """Delete the dataset from the disk."""
        remove_tree(self.data_path)


class SourceExperienceReplay(BaseDatasetExperienceReplay):
    """A buffer over a dataset of one source, downloaded where it is not there.

    Beside the arguments of each class, all take those of `rbdata.load` (``frame_stack``, ``n_step``, ``seed``, ``device``,
    ``alpha``, ...), those of `rbdata.download` (``mirror``, ``shards``, ``codec``, ``layout``, ``unknown_next``) and the
    options that the source declares. ``sampler`` overrides the arguments that choose one. Whatever the ``writer``, datasets are
    read-only.

    - ``root``: the folder of all datasets; the dataset is in ``<root>/<source>/<dataset_id>``, as for `rbdata.download`.
    - ``download``: True downloads what is not there, False never, "force" replaces what is there.

    Raises DatasetNotFoundError where nothing is there and nothing may be downloaded; otherwise as `rbdata.download` and
    `rbdata.load`.
    """

    source: ClassVar[str]

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        download: bool | str = True,
        split_trajs: bool = False,
        sampler: Any = None,
        num_slices: int | None = None,
        slice_len: int | None = None,
        strict_length: bool = True,
        replacement: bool = True,
        derive: Derivation | None = None,
        **options: Any,
    ) -> None:
        self.dataset_id, self.root, self.split_trajs = dataset_id, settings.root(root), split_trajs
        declared = {option.name for option in catalogue.load_source(self.source).options}
        wanted = {name: options.pop(name) for name in list(options) if name in DOWNLOAD | declared}
        path = self._obtain(download, {name: value for name, value in wanted.items() if value is not None})
        dataset = Dataset(path) if derive is None else DerivedDataset(path, derive)
        chosen = {name: options.pop(name) for name in list(options) if name in SAMPLING}
        if sampler is None:
            if num_slices is not None or slice_len is not None:  # without slices there is nothing to be strict about
                chosen |= {"num_slices": num_slices, "slice_len": slice_len, "strict_length": strict_length}
            sampler = make_sampler(len(dataset), replacement=replacement, **chosen)
        storage = EpisodeStorage(dataset) if split_trajs else DatasetStorage(dataset)
        super().__init__(storage=storage, batch_size=batch_size, sampler=sampler, **options)

    @ClassProperty
    def available_datasets(cls) -> list[str]:
        """The names that are known without asking the network."""
        return list(catalogue.load_source(cls.source).names())

    @property
    def _place(self) -> DatasetPlace:
        assert self.root is not None
        return DatasetPlace(self.root, f"{self.source}/{self.dataset_id.removeprefix(self.source + '/')}")

    def _obtain(self, download: bool | str, wanted: dict[str, Any]) -> Path:
        """The folder of the dataset; ``wanted`` are options of the download, which what is there must have as well."""
        if not isinstance(download, bool) and download != "force":
            raise UsageError(f"download is True, False or 'force', not {download!r}")
        place = self._place
        if not download or (download is True and place.exists() and not wanted):
            return local.find(place.id, self.root)
        stated = {name: wanted[name] for name in wanted if name in DOWNLOAD}
        extra = {name: wanted[name] for name in wanted if name not in DOWNLOAD}
        request = make_request(place.id, self.root, extra, force=download == "force", wait=True, **stated)
        return acquire.download(request).path

    @property
    def data_path(self) -> Path:
        return self.dataset.path

    @cached_property
    def episodes(self) -> torch.Tensor:
        """The number of the episode of each step, int64 ``[steps]``; ``SliceSampler(trajectories=...)`` takes it."""
        return self.dataset.episode_of(torch.arange(len(self.dataset)))

    def delete(self) -> None:
        """Delete the dataset from the disk. Raises DatasetBusyError while another process writes it."""
        local.delete(self._place)
