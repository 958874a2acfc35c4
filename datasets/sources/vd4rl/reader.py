"""V-D4RL's files: 64px, an npz for each episode; 84px, HDF5 shards of whole episodes. Both are in dm_env's order.

64px    image [n + 1, 64, 64, 3], action, reward; perhaps discount, is_first, is_last, is_terminal, and simulator states
        (height, orientations, velocity, ...). `hdf5_to_npz.py` wrote its flags as constants of 501 rows, so
        that an episode of 500 rows has 501 flags: the rows of ``image`` count (conglu1997/v-d4rl, issue 13).
84px    observation [n + 1, 3, 84, 84], action, reward, discount, step_type: 0 first, 1 inside, 2 last (float64 in some
        shards), episodes one after the other. A shard may begin or end inside one (`split_hdf5_shards.py` cuts by rows).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import CorruptSourceError
from ...formats.hdf5 import ChunkedRows, arrays_below, check_array, has_rows, open_file
from ...formats.limits import check_rows
from ...formats.npy import NpzArchive
from ...ingest.block import LazyRows
from ...ingest.episode_files import (
    DM_ENV_SENTENCES,
    Episode,
    EpisodeFiles,
    EpisodeReader,
    RawInput,
    Rows,
    check_keys,
    check_lengths,
    dm_env_episode,
    state_rows,
)

if TYPE_CHECKING:
    import h5py

_FLAGS = ("is_first", "is_last", "is_terminal")
_FIRST, _LAST = 0, 2


class VD4RLReader(EpisodeFiles):
    """The npz files (64px), or the HDF5 shards (84px), of a folder."""

    source, converter, licence = "vd4rl", "vd4rl 1", "MIT"
    citation = (
        "Cong Lu, Philip J. Ball, Tim G. J. Rudner, Jack Parker-Holder, Michael A. Osborne, Yee Whye Teh. Challenges and "
        "Opportunities in Offline Reinforcement Learning from Visual Observations. TMLR 2023. arXiv:2206.04779"
    )
    sentences: Mapping[str, str] = {
        **DM_ENV_SENTENCES,
        "files_with_more_flags": "{n:file has|files have} more flags than images: the images count (V-D4RL issue 13).",
        "cut_beginnings": (
            "{n:shard begins|shards begin} inside an episode: the rows there are a separate episode, and the "
            "step across the cut is lost."
        ),
    }

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "folder": self.groups[0].objects[0].path.rpartition("/")[0]}


class NpzEpisode(EpisodeReader):
    """Reads an npz, which is one episode."""

    def episodes(self, raw: RawInput) -> Iterator[Episode]:
        with NpzArchive(raw.file, raw.name) as archive:
            check_keys(("image", "action", "reward"), raw.name, archive.keys)
            dtype, shape = archive.head("image")
            _check_frames(dtype, shape, f"{raw.name}: image")
            rows, arrays = shape[0], {key: archive.array(key) for key in archive.keys if key != "image"}
            flags = {key: np.atleast_1d(arrays.pop(key)) for key in _FLAGS if key in arrays}
            raw.counts["files_with_more_flags"] += any(len(one) > rows for one in flags.values())
            flags = {key: one[:rows] for key, one in flags.items()}
            check_lengths({key: one.shape for key, one in {**arrays, **flags}.items()}, rows, raw.name)
            terminal = np.asarray(flags.get("is_terminal", np.zeros(rows, bool)).reshape(rows, -1).any(1))
            action, reward, discount = arrays.pop("action"), arrays.pop("reward"), arrays.pop("discount", ~terminal)
            states: dict[str, Rows] = {"observation/image": LazyRows(dtype.name, shape[1:], archive.blocks("image"))}
            states |= {f"observation/{key}": state_rows(arrays[key]) for key in sorted(arrays)}
            discount = discount.astype(np.float32)
            yield dm_env_episode(states, action, reward, discount, raw.counts, raw.name, terminal=terminal)


class Hdf5Shard(EpisodeReader):
    """Reads an HDF5 shard of episodes."""

    native_libraries = ("h5py",)

    def episodes(self, raw: RawInput) -> Iterator[Episode]:
        with open_file(raw.file, raw.name) as file:
            found = _arrays_of_shard(file, raw)
            frames = found.pop("observation")
            shape, images = tuple(frames.shape[1:]), ChunkedRows(frames, raw.name)
            arrays = {key: ChunkedRows(one, raw.name).all() for key, one in found.items()}
            types = arrays.pop("step_type")
            unknown = ~np.isin(types, (_FIRST, 1, _LAST))
            if types.ndim != 1 or unknown.any():
                what = (
                    f"{types[unknown][0]} in row {int(unknown.argmax())}" if types.ndim == 1 else "more than one number"
                )
                raise CorruptSourceError(f"{raw.name}: step_type is 0, 1 or 2 for each row, here it is {what}")
            edges = {0, *np.flatnonzero(types == _FIRST), *(np.flatnonzero(types == _LAST) + 1), len(types)}
            for low, high in pairwise(map(int, sorted(edges))):
                raw.counts["cut_beginnings"] += bool(types[low] != _FIRST)
                here = {key: values[low:high] for key, values in arrays.items()}
                action, reward, discount = here.pop("action"), here.pop("reward"), here.pop("discount")
                states: dict[str, Rows] = {"observation": LazyRows("uint8", shape, images.blocks(low, high))}
                states |= {f"info/{key}": state_rows(here[key]) for key in sorted(here)}
                whole, discount = bool(types[high - 1] == _LAST), discount.astype(np.float32)
                yield dm_env_episode(states, action, reward, discount, raw.counts, raw.name, whole=whole)


def _arrays_of_shard(file: h5py.File, raw: RawInput) -> dict[str, h5py.Dataset]:
    """The arrays of a shard, none of them read. Raises CorruptSourceError."""
    found = dict(arrays_below(file, raw.name))
    check_keys(("observation", "action", "reward", "discount", "step_type"), raw.name, sorted(found))
    for key, one in found.items():
        if not has_rows(one) or not len(one):
            message = f"{raw.name}: {key} holds {one.dtype} {list(one.shape or ())}, not rows of numbers"
            raise CorruptSourceError(message)
        check_array(one, f"{raw.name}: {key}")
    frames = found["observation"]
    _check_frames(frames.dtype, frames.shape, f"{raw.name}: observation")
    rows = check_rows(len(frames), raw.file.stat().st_size, raw.name)
    check_lengths({key: one.shape for key, one in found.items()}, rows, raw.name)
    return found


def _check_frames(dtype: np.dtype, shape: tuple[int, ...], where: str) -> None:
    if dtype != np.uint8 or len(shape) != 4:
        raise CorruptSourceError(f"{where} holds {dtype} {list(shape)}, not frames (uint8, four dimensions)")
