"""TorchRL's classes of V-D4RL and RoboSet, with its keys; what is stored, and which step it belongs to, is in docs/sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from typing_extensions import Unpack

from ...errors import UsageError
from ...storage.codecs.codec import Rows
from ...storage.dataset import Dataset, rename
from ...storage.keywords import with_options
from ...storage.leaf import Leaf
from ...storage.view import ComputedRows
from ..sources.vd4rl.source import VD4RLSource, folder_of, short_name
from .dataset_classes import (
    _ORIGINS,
    BaseDatasetExperienceReplay,
    ClassProperty,
    ComponentOptions,
    DrawOptions,
    PathLike,
    ReplayOptions,
)


class EpisodeReplayOptions(ComponentOptions, DrawOptions, ReplayOptions, total=False):
    """Of both classes."""


class VD4RLExperienceReplay(BaseDatasetExperienceReplay):
    """A V-D4RL dataset, such as ``"main/walker_walk/random/64px"`` (or ``"walker_walk-random"``); see docs/sources/vd4rl.md.

    A batch has ``pixels`` and ``("next", "pixels")``, ``action``, ``discount``, ``is_init`` (bool ``[]``: the first step of an
    episode), reward and flags, and under ``state`` what else the data hold. Action and reward are those that lead from
    ``pixels`` to ``("next", "pixels")``.

    - ``totensor``: frames come as float32 from 0 to 1, channels first (after a ``transform``); False: as stored.
    - ``image_size``: their height and width, or one number for both; frames are resized (bilinear, with antialiasing).
    - ``split_trajs``: records are whole episodes, see `EpisodeStorage`.
    - ``num_workers`` has no effect: ``procs`` are the processes that download.
    - ``dataset_id`` becomes rbdata's name.

    See `BaseDatasetExperienceReplay` for all else.
    """

    source = "vd4rl"

    @with_options(EpisodeReplayOptions, *_ORIGINS)
    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        root: PathLike | None = None,
        download: bool | str = True,
        split_trajs: bool = False,
        totensor: bool = True,
        image_size: int | Sequence[int] | None = None,
        num_workers: int = 0,
        **options: Unpack[EpisodeReplayOptions],
    ) -> None:
        size = _checked_size(image_size)
        self._open(
            short_name(dataset_id),
            batch_size,
            root=root,
            download=download,
            split_trajs=split_trajs,
            derive=_vd4rl_leaves,
            **options,
        )
        if totensor or size is not None:
            self.append_transform(FrameTransform(totensor, size))

    @ClassProperty
    def available_datasets(cls) -> list[str]:
        """The names that are known without asking the network, as TorchRL writes them."""
        return [folder_of(name) for name in VD4RLSource().names()]


class FrameTransform:
    """Frames of a batch as floating-point numbers, channels first, and of another size."""

    def __init__(self, to_tensor: bool, size: tuple[int, int] | None) -> None:
        self._to_tensor, self._size = to_tensor, size

    def __call__(self, batch: Any) -> Any:
        for key in ("pixels", ("next", "pixels")):
            frames = batch.get(key, None)
            if frames is not None:
                batch.set(key, self._changed(frames))
        return batch

    def _changed(self, frames: torch.Tensor) -> torch.Tensor:
        is_last = frames.shape[-1] in (1, 3) and frames.shape[-3] not in (1, 3)
        if self._to_tensor:
            frames = (frames.movedim(-1, -3) if is_last else frames).to(torch.float32) / 255
            is_last = False
        if self._size is None:
            return frames
        found = frames.movedim(-1, -3) if is_last else frames
        flat = found.reshape(-1, *found.shape[-3:]).to(torch.float32)
        resized = torch.nn.functional.interpolate(flat, self._size, mode="bilinear", antialias=True)
        resized = resized.reshape(*found.shape[:-2], *self._size)
        resized = resized if found.is_floating_point() else resized.round().to(found.dtype)
        return resized.movedim(-3, -1) if is_last else resized


def _checked_size(given: int | Sequence[int] | None) -> tuple[int, int] | None:
    if given is None:
        return None
    size = (given, given) if isinstance(given, int) else tuple(given)
    if len(size) != 2 or not all(isinstance(one, int) and one > 0 for one in size):
        raise UsageError(f"image_size is a number of pixels, or height and width, not {given!r}")
    return size[0], size[1]


class _InitRows(ComputedRows):
    """Whether a step is the first of its episode, bool ``[]``."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(Leaf("is_init", "step", "bool", ()), len(dataset))
        self._dataset = dataset

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return self._dataset.episode_starts[self._dataset.episode_of(index)] == index


def _vd4rl_leaves(dataset: Dataset) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for key, rows in dataset.rows.items():
        name = _vd4rl_name(key)
        found[name] = rename(rows, name)
    found["is_init"] = _InitRows(dataset)
    return found


def _vd4rl_name(key: str) -> str:
    if key.startswith("next/"):
        return f"next/{_vd4rl_name(key.removeprefix('next/'))}"
    if key in ("observation", "observation/image"):
        return "pixels"
    return "discount" if key == "info/discount" else key.replace("observation/", "state/").replace("info/", "state/")


class RobosetExperienceReplay(BaseDatasetExperienceReplay):
    """A RoboSet dataset, such as ``"FK1-v4(expert)/FK1_MicroOpenRandom_v2d-v4"``; see docs/sources/roboset.md.

    A batch has ``observation``, ``action``, ``time``, ``info`` and ``("next", "info")``, reward and flags, and ``seed`` and
    ``episode``: the numbers of the file and of the trial. Reward and flags are those of the step: what row t + 1 of a log says.

    - ``split_trajs``: records are whole episodes, see `EpisodeStorage`.

    See `BaseDatasetExperienceReplay` for all else.
    """

    source = "roboset"

    @with_options(EpisodeReplayOptions, *_ORIGINS)
    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        root: PathLike | None = None,
        download: bool | str = True,
        split_trajs: bool = False,
        **options: Unpack[EpisodeReplayOptions],
    ) -> None:
        self._open(dataset_id, batch_size, root=root, download=download, split_trajs=split_trajs, **options)
