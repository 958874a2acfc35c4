"""Minari's HDF5 format: one file, a group for each episode.

    episode_<k>                      attributes id, total_steps, seed
      observations                   [n + 1, ...], or a group: Dict by key, Tuple by _index_<i>
      actions                        [n, ...], in the same way
      rewards                        float64 [n]
      terminations, truncations      bool [n]
      infos/<name>                   [n + 1, ...] or [n, ...], nested; may be empty or missing

Groups are listed by name, ``episode_10`` before ``episode_2``; their order is that of the numbers. Texts are UTF-8 strings,
pictures rows of JPEG bytes (of variable length, or uint8 ``[n, bytes]`` where all happen to be of one length).

The file is not trusted: links out of it, values kept in other files, and shapes that its bytes cannot hold are refused.
"""

from __future__ import annotations

import math
import re
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np

from ....errors import CorruptSourceError
from ...formats.hdf5 import DEEPEST, ChunkedRows, attributes, check_storage, damage_reported, plain_bools
from ...formats.limits import check_row_bytes
from ...formats.pictures import frame_shape, is_jpeg
from ...ingest.spaces import Json
from .files import DataFiles, Field, Kind, LeafPath, Metadata, metadata_from

FILE = "main_data.hdf5"
_EPISODE = re.compile(r"episode_(0|[1-9]\d{0,17})")
_CHUNK_CACHE, _METADATA_CACHE = 4 << 20, 2 << 20
#: Texts and pictures read at a time, and bytes where their size is fixed: each may be as long as the file.
_AT_ONCE, _BYTES_AT_ONCE = 8, 8 << 20
#: Bytes of all that one call reads, unless the file is larger.
_MOST_VALUES = 64 << 20


class Hdf5Files:
    """A `MinariFiles` of ``main_data.hdf5``. Uses HDF5's own calls: a file has thousands of small arrays."""

    def __init__(self, data: DataFiles) -> None:
        import h5py

        self._h5py = h5py
        self._name = data.name
        path = data.files[FILE]
        self._size, self._stored = path.stat().st_size, 0
        with self._sound():
            self._file = h5py.File(h5py.h5f.open(bytes(path), h5py.h5f.ACC_RDONLY, self._access()))
            try:
                self._checked = data.checked
                if not self._checked:
                    self._check_links()
                numbers = (_EPISODE.fullmatch(name) for name in self._file)
                self.episodes = sorted(int(match[1]) for match in numbers if match)
            except BaseException:
                self.close()
                raise
        #: The group (as "") and the arrays of one episode that are open, and that episode; packed arrays as `ChunkedRows`.
        self._open: dict[str, Any] = {}
        self._packed: dict[str, ChunkedRows] = {}
        self._current = -1

    def _access(self) -> Any:
        """How the file is opened: without locks, and with small caches (HDF5's own keep 60 KB for each episode seen)."""
        access = self._h5py.h5p.create(self._h5py.h5p.FILE_ACCESS)
        access.set_file_locking(False, True)
        access.set_cache(0, 521, _CHUNK_CACHE, 0.75)
        kept = access.get_mdc_config()
        kept.set_initial_size, kept.initial_size, kept.min_size, kept.max_size = True, 1 << 20, 1 << 20, _METADATA_CACHE
        access.set_mdc_config(kept)
        return access

    def close(self) -> None:
        """Raises nothing: a file that HDF5 cannot close is damaged, which was reported when it was read. h5py would print it
        later."""
        self._open, self._packed = {}, {}
        with suppress(OSError, RuntimeError):
            self._file.close()

    def attributes(self) -> Metadata:
        """Metadata as they were stored before Minari 0.5."""
        with self._sound():
            return metadata_from(attributes(self._file), self._name)

    def steps(self, episode: int) -> int:
        with self._sound():
            return self._array(episode, ("rewards",)).shape[0]

    def field(self, episode: int, place: LeafPath, shape: tuple[int, ...]) -> Field:
        with self._sound():
            return self._describe(self._array(episode, place), shape, _path(episode, place))

    def infos(self, episode: int) -> dict[LeafPath, Field]:
        with self._sound():
            top = _path(episode, ("infos",))
            if top not in self._file:
                return {}
            item = self._file[top]
            if not isinstance(item, self._h5py.Group):
                return {("infos",): Field(0, "other", np.dtype("O"), (), "infos are an array, not a group")}
            names: list[str] = []
            item.id.links.visit(lambda name: names.append(name.decode()))  # returns None, so that the visit continues
            found: dict[LeafPath, Field] = {}
            for name in sorted(names):
                if self._h5py.h5o.get_info(item.id, name.encode()).type == self._h5py.h5o.TYPE_DATASET:
                    place: LeafPath = ("infos", *name.split("/"))
                    found[place] = _numbers(self._array(episode, place))  # infos have no space: only numbers are used
            return found

    def read(self, episode: int, place: LeafPath, low: int, high: int, kind: Kind) -> Any:
        with self._sound():
            array = self._array(episode, place)
            if kind in ("text", "jpeg"):
                return self._values(array, low, high, kind)
            high = min(high, array.shape[0])
            out = np.empty((max(0, high - low), *array.shape[1:]), array.dtype.newbyteorder("="))
            if high <= low:
                return out
            if array.get_create_plist().get_nfilters():
                path = _path(episode, place)
                if path not in self._packed:
                    self._packed[path] = ChunkedRows(self._h5py.Dataset(array), None, 0, self._name)
                return self._packed[path].read(low, high).astype(out.dtype, copy=False)
            every = self._h5py.h5s.ALL
            if high - low == array.shape[0]:
                array.read(every, every, out)
            else:
                chosen = array.get_space()
                chosen.select_hyperslab((low, *(0,) * (out.ndim - 1)), out.shape)
                array.read(self._h5py.h5s.create_simple(out.shape), chosen, out)
            return plain_bools(out)

    def _values(self, array: Any, low: int, high: int, kind: Kind) -> list[bytes]:
        """Texts or pictures, a few at a time: a file may have one for every row that is as long as itself."""
        dataset, values, total = self._h5py.Dataset(array), list[bytes](), 0
        width = math.prod(array.shape[1:]) * array.dtype.itemsize
        size = _AT_ONCE if array.dtype.hasobject else max(1, _BYTES_AT_ONCE // width)
        for first in range(low, high, size):
            rows = dataset[first : min(first + size, high)]
            read = [row.tobytes() if kind == "jpeg" else _text(row) for row in rows]
            values += read
            total += sum(map(len, read))
            if total > max(_MOST_VALUES, self._size):
                raise CorruptSourceError(f"{self._name}: {dataset.name} lists the same long values again and again")
        return values

    def space(self, place: LeafPath) -> Json:
        with self._sound():
            return self._guess(place, 0)

    # -- finding -------------------------------------------------------------------------------------------------------

    def _check_links(self) -> None:
        """Refuse links to anywhere, and second ones to the same object: a small file could list a million episodes."""
        hard, seen = self._h5py.h5l.TYPE_HARD, {self._h5py.h5o.get_info(self._file.id).addr}

        def look(name: bytes, info: Any) -> bytes | None:
            if info.type != hard or name.count(b"/") > DEEPEST or info.u in seen:
                return name
            seen.add(info.u)
            return None

        found = self._file.id.links.visit(look, info=True)
        if found is not None:
            where = f"{self._name}: {found.decode(errors='replace')}"
            message = f"{where} is a link to somewhere else, which is not followed"
            raise CorruptSourceError(message, hint="put the data together with Minari itself (minari combine)")

    def _array(self, episode: int, place: LeafPath) -> Any:
        """The array at a place, looked over when it is opened."""
        path = _path(episode, place)
        if episode != self._current:
            self._open, self._packed, self._current = {}, {}, episode
        array = self._open.get(path)
        if array is None:
            try:
                if "" not in self._open:
                    self._open[""] = self._h5py.h5o.open(self._file.id, f"episode_{episode}".encode())
                array = self._h5py.h5o.open(self._open[""], path.partition("/")[2].encode())
            except (KeyError, ValueError) as error:
                message = f"{self._name}: {path} is missing"
                raise CorruptSourceError(message, hint="the file does not hold what its spaces say") from error
            if not isinstance(array, self._h5py.h5d.DatasetID):
                raise CorruptSourceError(f"{self._name}: {path} is a group, its space says an array")
            if not self._checked:
                self._stored += check_storage(array, f"{self._name}: {path}", least=1 << 16, size=self._size)
                if self._stored > _MOST_VALUES + 2 * self._size:
                    raise CorruptSourceError(f"{self._name}: arrays share their bytes ({path})")
                if not array.shape and place[0] != "infos":
                    raise CorruptSourceError(f"{self._name}: {path} has shape {array.shape}, not one row a step")
            self._open[path] = array
        return array

    # -- describing ----------------------------------------------------------------------------------------------------

    def _describe(self, array: Any, shape: tuple[int, ...], path: str) -> Field:
        rows, *found = array.shape
        dtype = array.dtype.newbyteorder("=")
        if self._h5py.check_string_dtype(array.dtype) is not None and not found:
            return Field(rows, "text", dtype, ())
        vlen = None if found else self._h5py.check_vlen_dtype(array.dtype)
        if vlen is not None or (dtype == np.uint8 and len(found) == 1 and tuple(found) != shape):
            check_row_bytes(math.prod(found), f"{self._name}: {path}")
            first = self._values(array, 0, 1, "jpeg")[0] if rows and vlen in (None, np.uint8) else b""
            if is_jpeg(first):
                return Field(rows, "jpeg", np.dtype("uint8"), frame_shape(first, f"{self._name}: {path}"))
        return _numbers(array)

    def _guess(self, place: LeafPath, depth: int) -> Json:
        if not self.episodes or depth > DEEPEST:
            raise CorruptSourceError(f"{self._name} holds no episodes, and does not say what its spaces are")
        first = self.episodes[0]
        path = _path(first, place)
        item = self._file.get(path)
        if isinstance(item, self._h5py.Group):
            names = list(item)
            if names and all(re.fullmatch(r"_index_\d+", name) for name in names):
                spaces = [self._guess((*place, index), depth + 1) for index in range(len(names))]
                return {"type": "Tuple", "spaces": spaces}
            return {"type": "Dict", "spaces": {name: self._guess((*place, name), depth + 1) for name in names}}
        field = self._describe(self._array(first, place), (), path)
        if field.kind == "text":
            every = (self.read(one, place, 0, self._array(one, place).shape[0], "text") for one in self.episodes)
            longest = max((len(text) for texts in every for text in texts), default=1)
            return {"type": "Text", "min_length": 0, "max_length": max(1, longest), "charset": ""}
        return {"type": "Box", "dtype": str(field.dtype), "shape": list(field.shape), "low": None, "high": None}

    def _sound(self) -> AbstractContextManager[None]:
        return damage_reported(self._name)


def _numbers(array: Any) -> Field:
    """The field of an array of numbers; an array of anything else cannot be used."""
    if not array.shape:
        return Field(0, "other", np.dtype("O"), (), f"its shape is {array.shape}, not one row a step")
    dtype, (rows, *shape) = array.dtype.newbyteorder("="), array.shape
    if dtype.kind in "biuf":
        return Field(rows, "numbers", dtype, tuple(shape))
    return Field(rows, "other", dtype, tuple(shape), f"its dtype is {array.dtype}")


def _text(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _path(episode: int, place: LeafPath) -> str:
    """Where an array is in the file."""
    return "/".join([f"episode_{episode}", *(f"_index_{step}" if isinstance(step, int) else step for step in place)])
