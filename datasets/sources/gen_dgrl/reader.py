"""Gen-DGRL's archives: a tar (mostly ``.tar.xz``) of episodes, one file each, read as a stream.

A file ``<game>/<time>_<n>_<steps>_<level seed>_<return>.npy`` is a pickled dictionary, or an ``.npz`` of the same arrays (the
project's writer makes these): what it is, its first bytes tell.

    observations  [T + 1, 3, 64, 64]  float32, whole numbers from 0 to 255 (here uint8, a quarter)
    actions       [T, 1]              int64
    rewards       [T, 1]              float32
    dones         [T]                 1 in the last row

The last observation is the first frame of the worker's *next* episode, so no episode has a final state. The last step is
kept all the same, terminated, its successor zeros: most rewards of Procgen are on it. ``dones`` do not tell time limits apart:
an episode as long as the game's limit is truncated, and its last step, whose successor is unknown, is given up.

Source: facebookresearch/gen_dgrl, procgen/online/datasets/storage.py, procgen/offline/dataloader.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import numpy as np

from ....errors import CorruptSourceError
from ...formats.byte_reader import ByteReader
from ...formats.npz import NpzArchive
from ...formats.numpy_pickle import read_pickle, to_bytes
from ...formats.tar import TarMember, tar_members
from ...formats.xz import MAGIC as XZ
from ...formats.xz import unxz
from ...ingest.episode_files import Episode, EpisodeReader, RawInput, Rows
from ...ingest.spaces import LossyCastError, cast
from .names import GAMES, time_limit

_NAME = re.compile(r"(?:.*/)?\d{8}T\d{6}_\d+_(?P<steps>\d+)_(?P<seed>-?\d{1,18})_(?P<total>-?\d+\.\d+)\.np[yz]")
_KEYS = ("observations", "actions", "rewards", "dones")
#: Bytes of an episode in memory (the longest one of Procgen takes 74 MB), and of an ``.npz`` in the archive.
_MOST_BYTES, _MOST_PACKED = 256 << 20, 64 << 20
_ZIP, _NPY = b"PK\x03\x04", b"\x93NUMPY"
#: How far a return may be from what a file's name states: two decimals, of a sum of float32.
_ROUNDING = 0.02


@dataclass(frozen=True)
class GenDgrlReader(EpisodeReader):
    """``game``: whose episodes are taken of an archive of all games; None: the archive has those of one."""

    whole: ClassVar[bool] = False
    game: str | None = None
    keep_last: bool = False

    def episodes(self, raw: RawInput) -> Iterator[Episode]:
        assert raw.stream is not None
        found: str | None = None
        for member in tar_members(_unpacked(raw.stream, raw.name), raw.name):
            match = _NAME.fullmatch(member.path)
            if match is None:
                raw.counts["other_files"] += 1
                continue
            game = _game_of(member.path)
            if self.game is None:
                found = found or game
                if game is None or game != found:
                    message = (
                        f"{raw.name}: {member.path} is of {game or 'an unknown game'}, not of {found or 'a known one'}"
                    )
                    raise CorruptSourceError(message, hint="name the dataset with --dataset, such as chaser-1M_E")
            elif game not in (None, self.game):
                continue
            where = f"{raw.name}: {member.path}"
            arrays = _check(_arrays(member, where), where)
            if (
                len(arrays["actions"]) != int(match["steps"])
                or abs(arrays["rewards"].sum() - float(match["total"])) > _ROUNDING
            ):
                raw.counts["other_names"] += 1
            yield self._episode(arrays, match, time_limit(self.game or game or ""), raw)

    def _episode(self, arrays: dict[str, np.ndarray], match: re.Match[str], limit: int, raw: RawInput) -> Episode:
        observations, steps = arrays["observations"], len(arrays["actions"])
        done = bool(arrays["dones"][-1])
        by_clock = done and steps >= limit
        if by_clock and not self.keep_last:
            raw.counts["given_up_steps"] += 1
            steps -= 1
        elif done:
            raw.counts["unknown_next_steps" if by_clock else "blank_successors"] += 1
            observations[steps] = 0
        constant: dict[str, Rows] = {
            "info/level_seed": np.full(steps, int(match["seed"]), np.int64),
            "info/stated_return": np.full(steps, float(match["total"]), np.float32),
        }
        return Episode(
            {"observation": observations[: steps + 1]},
            {"action": arrays["actions"][:steps], **constant},
            arrays["rewards"][:steps],
            terminated=done and not by_clock,
            truncated=by_clock,
        )


def _unpacked(stream: Iterable[bytes], name: str) -> Iterator[bytes]:
    """The bytes of the tar, whether it is packed or not."""
    pieces = iter(stream)
    head = b""
    while len(head) < len(XZ) and (piece := next(pieces, b"")):
        head += piece
    whole = chain([head], pieces)
    return unxz(whole, name) if head.startswith(XZ) else whole


def _game_of(path: str) -> str | None:
    """The innermost folder that is named as a game."""
    return next((folder for folder in reversed(path.split("/")[:-1]) if folder in GAMES), None)


def _arrays(member: TarMember, where: str) -> dict[str, np.ndarray]:
    """The arrays of a file by name; observations are uint8."""
    reader = ByteReader((bytes(piece) for piece in member), where)
    head = reader.take(min(member.size, 12))
    if head.startswith(_ZIP):
        if member.size > _MOST_PACKED:
            raise CorruptSourceError(f"{where} has {member.size} bytes: too many for one episode")
        return _unzipped(head + reader.take(member.size - len(head)), where)
    if not head.startswith(_NPY) or len(head) < 12:
        raise CorruptSourceError(
            f"{where} is neither a pickled dictionary (.npy) nor an .npz: it begins with {head[:8]!r}"
        )
    length = int.from_bytes(head[8:10], "little") if head[6] == 1 else int.from_bytes(head[8:12], "little")
    header = head[10:] + reader.take(min(length, 1 << 12) - 2) if head[6] == 1 else reader.take(min(length, 1 << 12))
    if b"'|O'" not in header:
        raise CorruptSourceError(f"{where} holds one array, not a dictionary of them")
    found = read_pickle(reader.rest(), where, _MOST_BYTES, _is_frames)
    if not isinstance(found, dict):
        raise CorruptSourceError(f"{where} holds a {type(found).__name__}, not a dictionary of arrays")
    return {key: value for key, value in found.items() if isinstance(value, np.ndarray)}


def _unzipped(data: bytes, where: str) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    with NpzArchive(data, where) as archive:
        for key in (key for key in _KEYS if key in archive.keys):
            dtype, shape = archive.head(key)
            size = int(np.prod(shape, dtype=np.float64)) * (1 if _is_frames(dtype, shape) else dtype.itemsize)
            if size > _MOST_BYTES:
                raise CorruptSourceError(f"{where}: {key} has the shape {list(shape)}: too much for one episode")
            blocks = archive.blocks(key)
            found[key] = np.concatenate(
                [to_bytes(block, where) if _is_frames(dtype, shape) else block for block in blocks]
            )
    return found


def _is_frames(dtype: np.dtype, shape: tuple[int, ...]) -> bool:
    return dtype.kind == "f" and len(shape) == 4


def _check(arrays: dict[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
    """The arrays as they are used: one number a step, flags bool. Raises CorruptSourceError where they do not fit together."""
    missing = [key for key in _KEYS if key not in arrays]
    if missing:
        raise CorruptSourceError(f"{where} has no {', '.join(missing)}")
    shapes = {key: arrays[key].shape for key in _KEYS}
    steps = arrays["actions"].size
    observations = arrays["observations"]
    if _is_frames(observations.dtype, observations.shape):  # a pickle that has the bytes before it says what they are
        observations = to_bytes(observations, where)
    lengths = [shapes["observations"][:1] == (steps + 1,)]
    lengths += [shapes[key] in ((steps,), (steps, 1)) for key in _KEYS[1:]]
    if not steps or not all(lengths) or observations.ndim != 4:
        listed = ", ".join(f"{key} {list(shape)}" for key, shape in shapes.items())
        raise CorruptSourceError(f"{where}: the shapes do not fit together: {listed}")
    if observations.dtype != np.uint8 or arrays["actions"].dtype.kind not in "iu":
        message = f"{where} has observations of {observations.dtype} and actions of {arrays['actions'].dtype}"
        raise CorruptSourceError(message)
    try:
        dones = cast(arrays["dones"].reshape(-1), bool)
        actions = cast(arrays["actions"].reshape(-1), np.int64)
    except LossyCastError as error:
        raise CorruptSourceError(f"{where}: row {error.row} is {error.value}, which {error}") from error
    if dones[:-1].any():
        raise CorruptSourceError(
            f"{where}: row {int(dones.argmax())} of {steps} is done, which only the last one can be"
        )
    rewards = arrays["rewards"].reshape(-1)
    writable = observations if observations.flags.writeable else observations.copy()
    return {"observations": writable, "actions": actions, "rewards": rewards, "dones": dones}
