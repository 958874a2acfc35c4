"""TorchRL's dataset classes: a buffer over a dataset of one source, which is downloaded if it is missing.

They have the arguments, keys and attributes that TorchRL documents. Arguments of `rbdata.download` and `rbdata.load` have the
same meaning as there. Signatures show the arguments that classes pass on.

`load_dataset` finds the classes by prefix: ``load_dataset("minari:D4RL/door/human-v2", batch_size=32)``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cached_property, partial
from importlib import import_module
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch

from ... import settings
from ...errors import DatasetNotFoundError, UsageError
from ...storage.codecs.codec import Rows
from ...storage.computed_rows import ComputedRows
from ...storage.dataset import Dataset
from ...storage.derived_leaves import DerivedDataset, ShiftedRows, add_episode, rename
from ...storage.folder import DatasetPlace, remove_tree
from ...storage.leaf import Leaf
from ...storage.replay.around import Around
from ...storage.replay.buffer import ReplayBuffer
from ...storage.replay.samplers.choice import choose_sampler
from ...storage.replay.samplers.sampler import SamplerWithoutReplacement
from ...storage.replay.storages.dataset_storage import DatasetStorage
from ...storage.replay.storages.episode_storage import EpisodeStorage
from ...storage.replay.tensordict_buffer import TensorDictReplayBuffer
from ...storage.tensor_specs import Composite
from .. import acquire, catalogue, local
from ..ingest.records import ConvertOptions
from ..ingest.request import make_request
from ..sources.minari.source import local_root
from ..sources.vd4rl.source import VD4RLSource, folder_of, short_name

#: Options of `load` that choose a sampler, and those of `Around`.
SAMPLING = [
    name
    for name in signature(choose_sampler).parameters
    if name not in ("dataset", "given", "end_key", "traj_key", "weights", "shares")
]
AROUND = frozenset(signature(Around).parameters)
#: Options of a class that `rbdata.download` takes beside those that the source declares.
DOWNLOAD = frozenset({"mirror", "procs", "shards", "codec", "layout", "unknown_next"})
PathLike = str | os.PathLike[str]
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

    A derived class of your own defines ``data_path``. Those of a source are `SourceExperienceReplay`.
    """

    @property
    def data_path(self) -> Path:
        """The folder of the dataset."""
        raise NotImplementedError

    @property
    def data_path_root(self) -> Path:
        """The folder of the dataset as well: variants of it (split trajectories) are not stored."""
        return self.data_path

    def delete(self) -> None:
        """Delete the dataset from the disk."""
        remove_tree(self.data_path)


class SourceExperienceReplay(BaseDatasetExperienceReplay):
    """Base of the classes of a source, which download the dataset if it is missing.

    Beside the arguments of each class, they take those of `rbdata.load` (``frame_stack``, ``n_step``, ``seed``, ``device``,
    ``alpha``, ...), those of `rbdata.download` (``mirror``, ``shards``, ``codec``, ``layout``, ``unknown_next``) and options of
    the source. ``sampler`` overrides the arguments that choose one. Whatever the ``writer``, datasets are read-only.

    - ``root``: the folder of all datasets; the dataset is in ``<root>/<source>/<dataset_id>``, as for `rbdata.download`.
    - ``download``: True downloads a missing dataset, False never downloads, "force" replaces an existing dataset.
    - ``split_trajs``: records are whole episodes, see `EpisodeStorage`.

    They raise DatasetNotFoundError if the dataset is missing and may not be downloaded; otherwise as `rbdata.download` and
    `rbdata.load`.
    """

    source: ClassVar[str]
    #: Makes the leaves of its batches from the stored leaves; None: they are the same.
    _derive: Any = None

    def __init_subclass__(cls) -> None:
        """The signature shows the arguments that a class passes on."""
        super().__init_subclass__()
        cls.__signature__ = _signature(cls, cls.source)  # type: ignore[attr-defined]

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        root: PathLike | None = None,
        download: bool | str = True,
        split_trajs: bool = False,
        sampler: Any = None,
        num_slices: int | None = None,
        slice_len: int | None = None,
        strict_length: bool = True,
        replacement: bool = True,
        **options: Any,
    ) -> None:
        self.dataset_id, self.root, self.split_trajs = dataset_id, Path(settings.root(root)), split_trajs

        def taken(names: Container[str]) -> dict[str, Any]:
            return {name: options.pop(name) for name in list(options) if name in names}

        of_source = taken({option.name for option in catalogue.load_source(self.source).options})
        of_download, chosen, around = taken(DOWNLOAD), taken(SAMPLING), taken(AROUND)
        signature(TensorDictReplayBuffer).bind(**options)  # raises TypeError for a misspelt one before any download
        dataset = Dataset(self._obtain(download, of_source, of_download))
        dataset = dataset if self._derive is None else DerivedDataset(dataset, self._derive)
        if sampler is None:
            if num_slices is not None or slice_len is not None:  # without slices there is nothing to be strict about
                chosen |= {"num_slices": num_slices, "slice_len": slice_len, "strict_length": strict_length}
            sampler = choose_sampler(dataset, replacement=replacement, **chosen)
        storage = EpisodeStorage(dataset) if split_trajs else DatasetStorage(dataset)
        super().__init__(storage=storage, batch_size=batch_size, sampler=sampler, around=Around(**around), **options)

    @property
    def data_path(self) -> Path:
        return self.dataset.path

    def delete(self) -> None:
        """Delete the dataset from the disk. Raises DatasetBusyError while another process writes it."""
        local.delete(self._place)

    @ClassProperty
    def available_datasets(cls) -> list[str]:
        """Return the names that are known without asking the network."""
        return list(catalogue.load_source(cls.source).names())

    @property
    def _place(self) -> DatasetPlace:
        return DatasetPlace(self.root, f"{self.source}/{self.dataset_id.removeprefix(self.source + '/')}")

    def _obtain(self, download: bool | str, extra: Mapping[str, Any], options: Mapping[str, Any]) -> Path:
        """The folder of the dataset; an existing one must have been made with the same options."""
        if not isinstance(download, bool) and download != "force":
            raise UsageError(f"download is True, False or 'force', not {download!r}")
        extra, options = ({key: value for key, value in some.items() if value is not None} for some in (extra, options))
        place = self._place
        if not download or (download is True and place.exists() and not (extra or options)):
            return local.find(place.id, self.root)
        request = make_request(place.id, self.root, extra, force=download == "force", wait=True, **options)
        return acquire.download(request).path

    @cached_property
    def episodes(self) -> torch.Tensor:
        """The number of the episode of each step, int64 ``[steps]``; ``SliceSampler(trajectories=...)`` takes it."""
        return self.dataset.episode_of(torch.arange(len(self.dataset), device="cpu"))


def _signature(cls: Any, source: str) -> Signature:
    """The arguments of a class, of its bases, `Around`, the samplers, and of a download with the source's options."""
    convert, declared = signature(ConvertOptions).parameters, catalogue.load_source(source).options_of("download")
    shown: dict[str, Parameter] = {}
    for part in (
        cls.__init__,
        SourceExperienceReplay.__init__,
        ReplayBuffer.__init__,
        TensorDictReplayBuffer.__init__,
        Around,
    ):
        shown = {**dict(signature(part).parameters), **shown}
    shown |= {name: signature(choose_sampler).parameters[name] for name in SAMPLING if name not in shown}
    for name in [*sorted(DOWNLOAD), *(option.name for option in declared)]:
        shown.setdefault(name, convert.get(name, Parameter(name, Parameter.KEYWORD_ONLY, default=None)))
    own = [one for one in signature(cls.__init__).parameters.values() if one.kind is Parameter.POSITIONAL_OR_KEYWORD][
        1:
    ]
    hidden = {"self", "storage", "around", "dataset_id", *(one.name for one in own), "options"}
    rest = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in shown.values() if one.name not in hidden]
    return Signature([*own, *(one for one in rest if one.name != "procs" or "num_procs" not in shown)])


class AtariDQNExperienceReplay(SourceExperienceReplay):
    """The DQN Replay dataset of a game and run, such as ``"Pong/5"``; see docs/sources/atari.md.

    A batch has ``observation`` and ``("next", "observation")`` (uint8 ``[84, 84]``), ``action``, reward and flags under
    ``next``. After a termination the next observation is zeros.

    - ``num_slices`` or ``slice_len``: slices of consecutive steps, ``strict_len`` (``strict_length``) and ``replacement`` as in
      `rbdata.load`.
    - ``num_procs``: processes that download and convert; 0 leaves it to the settings. ``mp_start_method`` has no effect: rbdata
      starts them in its own way.

    See `SourceExperienceReplay` for all else.
    """

    source = "atari"

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        num_procs: int = 0,
        strict_len: bool = True,
        strict_length: bool = True,
        mp_start_method: str = "fork",
        **options: Any,
    ) -> None:
        strict_length = strict_len and strict_length
        super().__init__(dataset_id, batch_size, procs=num_procs or None, strict_length=strict_length, **options)

    @property
    def dataset_path(self) -> Any:
        """The folder of the dataset."""
        return self.data_path


class D4RLExperienceReplay(SourceExperienceReplay):
    """A D4RL dataset, such as ``"hopper-medium-v2"``; see docs/sources/d4rl.md. The package d4rl is not needed.

    Beside TED, a batch has ``info``, ``("next", "info")`` and ``reward`` (of the step before), within the episode; where an
    episode has no further step they are zeros.

    - ``split_trajs``: records are whole episodes, see `EpisodeStorage`.
    - ``use_truncated_as_done``: False: ``("next", "done")`` is ``("next", "terminated")``.
    - ``terminate_on_end``: True keeps the last step of an episode whose next observation is not in the file (zeros are given
      for it), False leaves it out, which is the default. As ``unknown_next`` of a download: an existing dataset that was made
      otherwise is refused.
    - ``from_env`` and ``direct_download`` have no effect: the file is always read directly, with all its keys.

    Next observations are those of the file, also at time-outs, where TorchRL gives zeros. See
    `SourceExperienceReplay` for all else.
    """

    source = "d4rl"

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        from_env: bool = False,
        use_truncated_as_done: bool = True,
        direct_download: bool | None = None,
        terminate_on_end: bool | None = None,
        **options: Any,
    ) -> None:
        self.use_truncated_as_done, self.from_env = use_truncated_as_done, from_env
        if terminate_on_end is not None:
            options["unknown_next"] = "zero" if terminate_on_end else "truncate"
        self._derive = partial(_d4rl_leaves, truncated_is_done=use_truncated_as_done)
        super().__init__(dataset_id, batch_size, **options)

    @property
    def specs(self) -> Composite:
        """The specs of the data, see `Dataset.make_spec`."""
        return self.dataset.spec

    @property
    def metadata(self) -> dict[str, Any]:
        """What the file states under ``metadata``."""
        return dict(self.dataset.manifest.source.get("metadata", {}))


def _d4rl_leaves(dataset: Dataset, truncated_is_done: bool) -> dict[str, Rows]:
    rows = dict(dataset.rows)
    if not truncated_is_done:
        rows["next/done"] = rename(rows["next/terminated"], "next/done")
    for name in dataset.rows:
        if name.startswith("info/") and "next/" + name not in rows:
            rows["next/" + name] = ShiftedRows(dataset, name, "next/" + name, 1)
    rows.setdefault("reward", ShiftedRows(dataset, "next/reward", "reward", -1))
    return rows


class MinariExperienceReplay(SourceExperienceReplay):
    """A Minari dataset, such as ``"D4RL/door/human-v2"``; see docs/sources/minari.md.

    Beside TED, a batch has ``episode`` (int64, the number of the episode) and the infos.

    - ``split_trajs``: records are whole episodes, see `EpisodeStorage`.
    - ``load_from_local_minari``: read Minari's own folder on this machine (``MINARI_DATASETS_PATH``, else
      ``~/.minari/datasets``) each time, and nothing else. Raises ObjectNotFoundError, which is a FileNotFoundError.

    ``available_datasets`` are the names known without asking the network. See `SourceExperienceReplay` for all else.
    """

    source = "minari"
    _derive = staticmethod(add_episode)

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        download: bool | str = True,
        load_from_local_minari: bool = False,
        **options: Any,
    ) -> None:
        self.download, self.load_from_local_minari = download, load_from_local_minari
        if load_from_local_minari:
            download, options["mirror"] = "force", str(local_root())
        super().__init__(dataset_id, batch_size, download=download, **options)

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """What Minari states of the dataset; ``observation_space`` and ``action_space`` are specs, see `Dataset.make_spec`."""
        manifest = self.dataset.manifest
        namespace, _, rest = self.dataset_id.rpartition("/")
        name, _, version = rest.rpartition("-v")
        spec = self.dataset.spec
        return {
            **manifest.source.get("metadata", {}),
            "dataset_id": self.dataset_id,
            "namespace": namespace,
            "dataset_name": name,
            "version": int(version) if version.isdecimal() else None,
            "env_spec": manifest.source.get("environment"),
            "total_episodes": manifest.episodes,
            "total_steps": manifest.steps,
            "data_path": str(self.data_path),
            "observation_space": spec["observation"],
            "action_space": spec["action"],
        }


class GenDGRLExperienceReplay(SourceExperienceReplay):
    """A Gen-DGRL dataset of a game and a set, such as ``"bigfish-1M_E"``; see docs/sources/gen_dgrl.md.

    A batch has ``observation`` and ``("next", "observation")`` (uint8 ``[3, 64, 64]``), ``action`` (int64), reward and flags
    under ``next``, and ``("info", "level_seed")``. The next observation of a terminated step is zeros: where TorchRL has one,
    it is the first frame of another episode. See `SourceExperienceReplay` for all else.
    """

    source = "gen_dgrl"


def _renamed(rows: Mapping[str, Rows], named: Callable[[str], str]) -> dict[str, Rows]:
    names = {key: named(key) for key in rows}
    return {name: rows[key] if name == key else rename(rows[key], name) for key, name in names.items()}


def _table(dataset: Dataset) -> dict[str, Rows]:
    return {"X": rename(dataset.rows["observation"], "X"), "y": rename(dataset.rows["action"], "y")}


class OpenMLExperienceReplay(SourceExperienceReplay):
    """An OpenML table: ``adult_num``, ``adult_onehot``, ``mushroom_num``, ``mushroom_onehot``, ``covertype``, ``shuttle`` and
    ``magic``, or any other by name or number; see docs/sources/openml.md. Neither scikit-learn nor pandas is needed.

    A batch has ``X`` (float32 ``[width]``), ``y`` (the label's code, int64; a numeric target float32) and ``index``. Without a
    ``sampler`` every row is drawn once per pass. See `SourceExperienceReplay` for all else.
    """

    source = "openml"
    _derive = staticmethod(_table)

    def __init__(
        self,
        name: str,
        batch_size: int | None = None,
        root: PathLike | None = None,
        *,
        sampler: Any = None,
        **options: Any,
    ) -> None:
        if "split_trajs" in options:
            raise UsageError("every row of a table is an episode: there is nothing to split")
        super().__init__(name, batch_size, root=root, sampler=sampler or SamplerWithoutReplacement(), **options)

    @property
    def max_outcome_val(self) -> Any:
        """The largest label."""
        return self.dataset["y"].max().item()


def _openx_leaves(dataset: Dataset) -> dict[str, Rows]:
    """The leaves by TorchRL's names: features of steps are at the top, unless another leaf has the name."""
    rows = add_episode(dataset)
    tops = {key.partition("/")[0] for key in rows}

    def named(key: str) -> str:
        name = key.removeprefix("info/")
        return key if name.partition("/")[0] in tops else name

    return _renamed(rows, named)


class OpenXExperienceReplay(SourceExperienceReplay):
    """A dataset of Open X-Embodiment, such as ``"cmu_stretch"``; see docs/sources/openx.md. TensorFlow is not needed.

    A batch has what the data have of each step (``language_instruction``, ``discount``) beside the keys of TED, and
    ``episode``, the number of the episode. Texts are UTF-8 bytes, zero-padded.

    - ``streaming`` has no effect: the dataset is downloaded.
    - ``pad``: True for ``pad_output``, slices that are padded with zeros.

    Without a batch size, iteration gives whole episodes, in the order of the data. See `SourceExperienceReplay` for all
    else.
    """

    source = "openx"
    _derive = staticmethod(_openx_leaves)

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        download: bool | str | None = None,
        streaming: bool | None = None,
        pad: bool | None = None,
        **options: Any,
    ) -> None:
        self.download, self.streaming = download, streaming
        if pad:
            options["pad_output"] = True
        super().__init__(
            dataset_id, batch_size, download=True if streaming or download is None else download, **options
        )

    def __iter__(self) -> Iterator[Any]:
        if self.batch_size is not None:
            yield from super().__iter__()
            return
        episodes = self.dataset.episodes
        for start, length in zip(episodes.starts.tolist(), episodes.lengths.tolist()):
            yield self[start : start + length]


def _lerobot_leaves(dataset: Dataset) -> dict[str, Rows]:
    def named(key: str) -> str:
        return "language_instruction" if key == "task" else key.replace("observation/images/", "observation/image/")

    return _renamed(add_episode(dataset), named)


class LeRobotExperienceReplay(SourceExperienceReplay):
    """A LeRobotDataset, such as ``"lerobot/pusht"``; see docs/sources/lerobot.md. The package lerobot is not needed.

    A batch has TorchRL's keys beside those of TED: ``("observation", "image", camera)``, ``episode`` and
    ``language_instruction`` (UTF-8 bytes, zero-padded). Next observations are always there.

    - ``repo_id``: the repository at the Hub.
    - ``decode_video``, ``rehydrate`` have no effect: frames were decoded at the download, and successors are stored.

    See `SourceExperienceReplay` for all else.
    """

    source = "lerobot"
    _derive = staticmethod(_lerobot_leaves)

    def __init__(
        self,
        repo_id: str,
        batch_size: int | None = None,
        *,
        decode_video: bool = True,
        rehydrate: bool = True,
        **options: Any,
    ) -> None:
        self.repo_id = repo_id
        super().__init__(repo_id, batch_size, **options)


class _InitRows(ComputedRows):
    """Whether a step is the first of its episode, bool ``[]``."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(Leaf("is_init", "step", "bool", ()), len(dataset))
        self._dataset = dataset

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return self._dataset.episode_starts[self._dataset.episode_of(index)] == index


def _vd4rl_leaves(dataset: Dataset) -> dict[str, Rows]:
    return {**_renamed(dataset.rows, _vd4rl_name), "is_init": _InitRows(dataset)}


def _vd4rl_name(key: str) -> str:
    if key.startswith("next/"):
        return f"next/{_vd4rl_name(key.removeprefix('next/'))}"
    if key in ("observation", "observation/image"):
        return "pixels"
    return "discount" if key == "info/discount" else key.replace("observation/", "state/").replace("info/", "state/")


class VD4RLExperienceReplay(SourceExperienceReplay):
    """A V-D4RL dataset, such as ``"main/walker_walk/random/64px"`` (or ``"walker_walk-random"``); see docs/sources/vd4rl.md.

    A batch has ``pixels`` and ``("next", "pixels")``, ``action``, ``discount``, ``is_init`` (bool ``[]``: the first step of an
    episode), reward and flags, and under ``state`` all other arrays of the data. Action and reward are those that lead from
    ``pixels`` to ``("next", "pixels")``.

    - ``totensor``: frames come as float32 from 0 to 1, channels first (after a ``transform``); False: as stored.
    - ``image_size``: their height and width, or one number for both; frames are resized (bilinear, with antialiasing).
    - ``split_trajs``: records are whole episodes, see `EpisodeStorage`.
    - ``num_workers`` has no effect: ``procs`` are the processes that download.
    - ``dataset_id`` becomes rbdata's name.

    See `SourceExperienceReplay` for all else.
    """

    source = "vd4rl"
    _derive = staticmethod(_vd4rl_leaves)

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        totensor: bool = True,
        image_size: int | Sequence[int] | None = None,
        num_workers: int = 0,
        **options: Any,
    ) -> None:
        size = (image_size, image_size) if isinstance(image_size, int) else image_size and tuple(image_size)
        if size is not None and (len(size) != 2 or not all(isinstance(one, int) and one > 0 for one in size)):
            raise UsageError(f"image_size is a number of pixels, or height and width, not {image_size!r}")
        super().__init__(short_name(dataset_id), batch_size, **options)
        if totensor or size is not None:
            self.append_transform(FrameTransform(totensor, size))

    @ClassProperty
    def available_datasets(cls) -> list[str]:
        """Return the names that are known without asking the network, as TorchRL writes them."""
        return [folder_of(name) for name in VD4RLSource().names()]


class FrameTransform:
    """Frames of a batch as floating-point numbers, channels first, and of another size."""

    def __init__(self, to_tensor: bool, size: Sequence[int] | None) -> None:
        self._to_tensor, self._size = to_tensor, size

    def __call__(self, batch: Any) -> Any:
        for key in ("pixels", ("next", "pixels")):
            frames = batch.get(key, None)
            if frames is not None:
                batch.set(key, self._changed(frames))
        return batch

    def _changed(self, frames: torch.Tensor) -> torch.Tensor:
        is_last = frames.shape[-1] in (1, 3) and frames.shape[-3] not in (1, 3)
        found = frames.movedim(-1, -3) if is_last else frames
        if self._to_tensor:
            found = found.to(torch.float32) / 255
        if self._size is not None:
            flat = found.reshape(-1, *found.shape[-3:]).to(torch.float32)
            resized = torch.nn.functional.interpolate(flat, self._size, mode="bilinear", antialias=True)
            resized = resized.reshape(*found.shape[:-2], *self._size)
            found = resized if found.is_floating_point() else resized.round().to(found.dtype)
        return found.movedim(-3, -1) if is_last and not self._to_tensor else found


class RobosetExperienceReplay(SourceExperienceReplay):
    """A RoboSet dataset, such as ``"FK1-v4(expert)/FK1_MicroOpenRandom_v2d-v4"``; see docs/sources/roboset.md.

    A batch has ``observation``, ``action``, ``time``, ``info`` and ``("next", "info")``, reward and flags, and ``seed`` and
    ``episode``: the numbers of the file and of the trial. Reward and flags are those of the step: what row t + 1 of a log says.

    - ``split_trajs``: records are whole episodes, see `EpisodeStorage`.

    See `SourceExperienceReplay` for all else.
    """

    source = "roboset"


#: A class or function called as ``factory(dataset_id, **options)``, or where to import it from: ``"module:name"``.
Factory = Callable[..., Any] | str

_REGISTRY: dict[str, Factory] = {
    "atari": AtariDQNExperienceReplay,
    "atari_dqn": AtariDQNExperienceReplay,
    "d4rl": D4RLExperienceReplay,
    "gen_dgrl": GenDGRLExperienceReplay,
    "lerobot": LeRobotExperienceReplay,
    "minari": MinariExperienceReplay,
    "openml": OpenMLExperienceReplay,
    "openx": OpenXExperienceReplay,
    "roboset": RobosetExperienceReplay,
    "vd4rl": VD4RLExperienceReplay,
}


def register_dataset(prefix: str, dataset: Factory, *, replace: bool = False) -> None:
    """Have ``load_dataset("<prefix>:<id>", **options)`` return ``dataset("<id>", **options)``.

    ``dataset`` is a class, a function, or ``"module:name"``, which is imported on first use. Prefixes are case-insensitive.
    Raises UsageError for a prefix that is empty, has a colon, or is taken (unless ``replace``), and for anything else as
    ``dataset``.
    """
    prefix = prefix.lower().strip()
    if (
        not prefix
        or ":" in prefix
        or not (all(dataset.partition(":")) if isinstance(dataset, str) else callable(dataset))
    ):
        hint = "a prefix is a name without a colon; a dataset is a class, a function or 'module:name'"
        raise UsageError(f"{prefix!r} cannot be registered for {dataset!r}", hint=hint)
    if prefix in _REGISTRY and not replace:
        raise UsageError(f"the prefix {prefix!r} is taken by {_REGISTRY[prefix]}", hint="replace it with replace=True")
    _REGISTRY[prefix] = dataset


def load_dataset(dataset_id: str, **options: Any) -> Any:
    """Return the buffer over a dataset that is named with a prefix, ``"d4rl:hopper-medium-v2"``.

    Built in are ``atari`` (and ``atari_dqn``), ``d4rl``, ``gen_dgrl``, ``lerobot``, ``minari``, ``openml``, ``openx``,
    ``roboset`` and ``vd4rl``; `register_dataset` adds others. ``options`` are those of the class. Raises DatasetNotFoundError
    for an unknown prefix, or none.
    """
    prefix, colon, name = dataset_id.partition(":")
    factory = _REGISTRY.get(prefix.lower().strip()) if colon else None
    if factory is None:
        what = f"no datasets are registered for the prefix {prefix!r}" if colon else f"{dataset_id!r} has no prefix"
        raise DatasetNotFoundError(what, hint=f"prefixes: {', '.join(sorted(_REGISTRY))}")
    if isinstance(factory, str):
        module, _, attribute = factory.partition(":")
        factory = getattr(import_module(module), attribute)
    return factory(name, **options)
