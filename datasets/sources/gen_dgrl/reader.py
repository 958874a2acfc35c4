"""Gen-DGRL's archives: a tar (mostly ``.tar.xz``) of episodes, one file each, read in order without unpacking it to a disk.

A file ``<game>/<time>_<n>_<steps>_<level seed>_<return>.npy`` is a pickled dictionary, or an ``.npz`` of the same arrays (the
project's writer makes these): its first bytes tell which.

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

import io
import lzma
import re
import tarfile
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from ....errors import CorruptSourceError
from ...formats.limits import REFETCH
from ...formats.npy import NpzArchive, read_header
from ...formats.numpy_pickle import read_pickle
from ...formats.packed import StreamFile
from ...ingest.episode_files import Episode, EpisodeFiles, EpisodeReader, RawInput, Rows, check_keys
from ...ingest.spaces import cast_rows
from ...ingest.trajectories import to_flags

_NAME = re.compile(r"(?:.*/)?\d{8}T\d{6}_\d+_(?P<steps>\d+)_(?P<seed>-?\d{1,18})_(?P<total>-?\d+\.\d+)\.np[yz]")
_KEYS = ("observations", "actions", "rewards", "dones")
#: Bytes of an episode's file (the longest episode of Procgen takes 295 MB as float32), and of an ``.npz`` in the archive.
_MOST_BYTES, _MOST_PACKED = 512 << 20, 64 << 20
_XZ, _ZIP = b"\xfd7zXZ\0", b"PK\x03\x04"
#: How far a return may be from what a file's name states: two decimals, of a sum of float32.
_ROUNDING = 0.02


class GenDgrlReader(EpisodeFiles):
    """The archive is one unit."""

    source, converter = "gen_dgrl", "gen_dgrl 1"
    licence = "CC-BY-NC-4.0"
    citation = (
        "Ishita Mediratta, Qingfei You, Minqi Jiang, Roberta Raileanu. The Generalization Gap in Offline Reinforcement "
        "Learning. ICLR 2024. arXiv:2312.05742"
    )
    sentences: Mapping[str, str] = {
        "given_up_steps": (
            "Dropped: the last step of {n:episode that is|episodes that are} as long as the game's time limit. "
            "What follows is not in "
            "the data; the observation of such a step is the final one of the step before it."
        ),
        "unknown_next_steps": "{n:last step} at the time limit: kept, truncated, with a next observation of zeros.",
        "other_names": "{n:file} with another length or return than the name states, which info/stated_return holds.",
        "other_files": "{n:file} of the archive without an episode: left out.",
    }


@dataclass(frozen=True)
class GenDgrlEpisodes(EpisodeReader):
    """``limits``: the time limit of each game there is. ``game``: the game whose episodes are read from an archive of all
    games; None: the archive holds one game."""

    whole: ClassVar[bool] = False
    limits: Mapping[str, int]
    game: str | None = None
    keep_last: bool = False

    def episodes(self, raw: RawInput) -> Iterator[Episode]:
        assert raw.stream is not None
        tar = StreamFile(_unpacked(raw.stream, raw.name))
        try:
            with tarfile.open(fileobj=tar, mode="r|", bufsize=1 << 20) as archive:
                yield from self._episodes(archive, raw)
        except tarfile.TarError as error:
            raise CorruptSourceError(f"{raw.name} is a damaged archive: {error}", hint=REFETCH) from error

    def _episodes(self, archive: tarfile.TarFile, raw: RawInput) -> Iterator[Episode]:
        found: str | None = None
        for member in _files(archive, raw.name):
            if (match := _NAME.fullmatch(member.name)) is None:
                raw.counts["other_files"] += 1
                continue
            game = game_of(member.name, self.limits)
            found = self.game or found or game
            if self.game is None and (game is None or game != found):
                one, other = game or "an unknown game", found or "a known one"
                message = f"{raw.name}: {member.name} is of {one}, not of {other}"
                raise CorruptSourceError(message, hint="name the dataset with --dataset, such as chaser-1M_E")
            if game in (None, found):
                file, where = archive.extractfile(member), f"{raw.name}: {member.name}"
                yield self._episode(file, member.size, match, self.limits[found or ""], raw, where)

    def _episode(self, file: Any, size: int, match: re.Match[str], limit: int, raw: RawInput, where: str) -> Episode:
        arrays = _check(_arrays(file, size, where), where)
        observations, rewards, steps = arrays["observations"], arrays["rewards"], len(arrays["actions"])
        missed = abs(float(rewards.sum()) - float(match["total"]))
        raw.counts["other_names"] += steps != int(match["steps"]) or missed > _ROUNDING
        done = bool(arrays["dones"][-1])
        by_clock, is_blank = done and steps >= limit, False
        if by_clock and not self.keep_last:
            raw.counts["given_up_steps"] += 1
            steps -= 1
        elif done:
            raw.counts["unknown_next_steps" if by_clock else "blank_successors"] += 1
            observations, is_blank = observations[:steps], True
        columns: dict[str, Rows] = {
            "action": arrays["actions"][:steps],
            "info/level_seed": np.full(steps, int(match["seed"]), np.int64),
            "info/stated_return": np.full(steps, float(match["total"]), np.float32),
        }
        states = {"observation": observations[: steps + 1]}
        return Episode(states, columns, rewards[:steps], done and not by_clock, by_clock, is_blank)


class GenDgrlEpisode(GenDgrlEpisodes):
    """The same for the files of an archive that was unpacked: one is an episode of ``game``."""

    whole: ClassVar[bool] = True

    def episodes(self, raw: RawInput) -> Iterator[Episode]:
        match = _NAME.fullmatch(raw.name)
        assert match is not None
        with raw.file.open("rb") as file:
            yield self._episode(file, raw.file.stat().st_size, match, self.limits[self.game or ""], raw, raw.name)


def is_episode(path: str) -> bool:
    """Whether the path of a file is one of an episode."""
    return _NAME.fullmatch(path) is not None


def game_of(path: str, games: Container[str]) -> str | None:
    """The innermost folder of a file that has the name of a game."""
    return next((folder for folder in reversed(path.split("/")[:-1]) if folder in games), None)


def _unpacked(stream: Iterator[bytes], name: str) -> Iterator[bytes]:
    """The bytes of a tar, which may be packed. Raises CorruptSourceError."""
    head = b""
    while len(head) < len(_XZ) and (piece := next(stream, b"")):
        head += piece
    pieces = chain([head], stream)
    if not head.startswith(_XZ):
        yield from pieces
        return
    try:
        with lzma.open(io.BufferedReader(StreamFile(pieces), 1 << 20)) as file:
            while piece := file.read(1 << 18):
                yield piece
    except EOFError as error:
        raise CorruptSourceError(f"{name} is cut short", hint=REFETCH) from error
    except lzma.LZMAError as error:
        raise CorruptSourceError(f"{name} is damaged: {error}", hint=REFETCH) from error


def _files(archive: tarfile.TarFile, name: str) -> Iterator[tarfile.TarInfo]:
    """The files of an archive. Raises CorruptSourceError for anything but files and folders, for names that lead out of the
    archive, and where it has no end."""
    for member in archive:
        if member.name.startswith("/") or ".." in member.name.split("/"):
            raise CorruptSourceError(f"{name} has a member whose path leads out of it: {member.name[:200]!r}")
        if member.isreg() and not member.issparse():
            yield member
        elif not member.isdir():
            raise CorruptSourceError(f"{name}: {member.name} is neither a file nor a folder")
        archive.members = []  # type: ignore[attr-defined]  # it keeps every member
    stream: Any = archive.fileobj
    # A tar ends with two blocks of zeros; tarfile takes the end of the file for its end as well.
    rest = stream.read(1 << 20)
    if not rest or rest.strip(b"\0"):
        raise CorruptSourceError(f"{name} is cut short, or goes on after its end", hint=REFETCH)
    while stream.read(1 << 20):
        pass  # the checksums of xz are at its end


def _arrays(file: Any, size: int, where: str) -> dict[str, np.ndarray]:
    """The arrays of a file by name; those of an ``.npz`` have observations of uint8."""
    is_packed = file.peek(4)[:4] == _ZIP
    if size > (_MOST_PACKED if is_packed else _MOST_BYTES):
        raise CorruptSourceError(f"{where} has {size} bytes: too many for one episode")
    if is_packed:
        return _unzipped(file.read(), where)
    if not read_header(file, where)[2].hasobject:
        raise CorruptSourceError(f"{where} holds one array, not a dictionary of them")
    found = read_pickle(file, where)
    if not isinstance(found, dict):
        raise CorruptSourceError(f"{where} holds a {type(found).__name__}, not a dictionary of arrays")
    return {key: array for key, array in found.items() if isinstance(array, np.ndarray)}


def _unzipped(data: bytes, where: str) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    with NpzArchive(data, where) as archive:
        for key in (key for key in _KEYS if key in archive.keys):
            _, shape = archive.head(key)
            if int(np.prod(shape, dtype=np.float64)) > _MOST_BYTES:
                raise CorruptSourceError(f"{where}: {key} has the shape {list(shape)}: too much for one episode")
            found[key] = np.concatenate([_to_bytes(block, where) for block in archive.blocks(key)])
    return found


def _to_bytes(rows: np.ndarray, where: str) -> np.ndarray:
    """Frames of floating-point numbers as uint8, other rows as they are. Raises CorruptSourceError for frames of anything but
    whole numbers from 0 to 255."""
    if rows.dtype.kind != "f" or rows.ndim != 4:
        return rows
    with np.errstate(invalid="ignore"):
        found = rows.astype(np.uint8)
    if (found != rows).any():
        odd = rows[found != rows][0]
        message = f"{where} has {odd} among the values of frames, which are whole numbers from 0 to 255"
        raise CorruptSourceError(message, hint=REFETCH)
    return found


def _check(arrays: dict[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
    """The arrays as they are used: one number a step, flags bool. Raises CorruptSourceError where they do not fit together."""
    check_keys(_KEYS, where, arrays)
    observations, *others = (arrays[key] for key in _KEYS)
    steps, observations = others[0].size, _to_bytes(observations, where)
    fit = steps and observations.ndim == 4 and len(observations) == steps + 1
    if not fit or any(one.shape not in ((steps,), (steps, 1)) for one in others):
        shapes = ", ".join(f"{key} {list(arrays[key].shape)}" for key in _KEYS)
        raise CorruptSourceError(f"{where}: the shapes do not fit together: {shapes}")
    actions, rewards, dones = (one.reshape(-1) for one in others)
    if observations.dtype != np.uint8 or actions.dtype.kind not in "iu":
        raise CorruptSourceError(f"{where} has observations of {observations.dtype} and actions of {actions.dtype}")
    actions, dones = cast_rows(actions, np.int64, f"{where}: actions"), to_flags(dones, f"{where}: dones")
    if dones[:-1].any():
        message = f"{where}: row {int(dones.argmax())} of {steps} is done, which only the last one can be"
        raise CorruptSourceError(message)
    return {"observations": observations, "actions": actions, "rewards": rewards, "dones": dones}
