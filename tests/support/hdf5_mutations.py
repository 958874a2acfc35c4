"""HDF5 files whose structures are changed as a stranger would: addresses, counts and sizes, with checksums that are right.

What HDF5's later format has beside rows (headers of objects, trees, heaps, tables of chunks) is sealed by Jenkins' lookup3
(https://burtleburtle.net/bob/c/lookup3.c): a byte changed at random gets no further than that. Here a few fields are changed,
often addresses into those of other structures of the kind, and every seal is computed again, as far as it can be reached.

Format: https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html
"""

from __future__ import annotations

import contextlib
import random
import re
import struct
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

_SIGNED = re.compile(rb"OHDR|OCHK|FRHP|FHDB|FHIB|BTHD|BTIN|BTLF|EAHD|EAIB|EASB|EADB|FAHD|FADB|TREE|SNOD|HEAP|GCOL")
_OLD_HEADER = re.compile(rb"\x01\0[\x01-\x40]\0[\x01-\x04]\0\0\0..\0\0\0\0\0\0", re.DOTALL)
_NUMBERS = (0, 1, 2, 3, 7, 16, 64, 255, 256, 4095, 65535, 1 << 20, 1 << 28, (1 << 31) - 1, (1 << 32) - 1, 1 << 40)
_WORD = (1 << 32) - 1


def change_structures(rng: random.Random, data: bytes) -> bytes:
    """The same file with one to four fields of its structures changed, and sealed again."""
    found, pointers = _survey(data)
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        at, kind = rng.choice(found)
        if pointers and rng.random() < 0.45:
            place, held = rng.choice(pointers)
            kind = next((one for where, one in found if where == held), kind)
            alike = [where for where, one in found if one == kind]
            below = [where for where, _ in found if where <= place]
            target = rng.choice((rng.choice(alike), rng.choice(alike), below[-1] if below else 0, rng.choice(found)[0]))
            for other in rng.choice(([place], [place], [one for one, to in pointers if to in alike])):
                out[other : other + 8] = struct.pack("<Q", target)
        elif rng.random() < 0.1:
            source = rng.choice([where for where, one in found if one == kind])
            length = rng.choice((16, 48, 160))
            out[at : at + length] = data[source : source + length]
        else:
            width = rng.choice((1, 1, 2, 2, 4, 8))
            place = at + rng.randrange(4, rng.choice((24, 64, 160, 400)))
            before = int.from_bytes(out[place : place + width], "little")
            after = rng.choice(
                (rng.choice(_NUMBERS), before + rng.choice((-1, 1, 2, 8)), before << rng.randrange(1, 9))
            )
            out[place : place + width] = (after & (1 << 8 * width) - 1).to_bytes(width, "little")
    del out[len(data) :]
    for at, end in tables_of_chunks(data):
        struct.pack_into("<I", out, end, lookup3(bytes(out[at:end])))
    return sealed(out)


@lru_cache(maxsize=32)
def _survey(data: bytes) -> tuple[list[tuple[int, bytes]], list[tuple[int, int]]]:
    """Where structures are and which, in order; and where the address of one is written, and whose."""
    found = [(0, b"superblock")] + [(one.start(), one[0]) for one in _SIGNED.finditer(data)]
    found += [(one.start(), b"old header") for one in _OLD_HEADER.finditer(data) if one.start() % 8 == 0]
    places = np.array(sorted({at for at, _ in found if at}), np.uint64)
    every = np.ndarray(len(data) - 7, "<u8", data, strides=(1,))
    pointers = [(int(at), int(every[at])) for at in np.flatnonzero(np.isin(every, places))]
    return sorted(found), pointers


@lru_cache(maxsize=32)
def tables_of_chunks(data: bytes) -> list[tuple[int, int]]:
    """From where to where tables of chunks are sealed, whose length only their owner says: as a sound file has it.

    Few lengths are tried: of a file that was changed before, with seals that are not right, thousands would take seconds.
    """
    sealed = []
    for at, kind in _survey(data)[0]:
        if kind not in (b"EAIB", b"EASB", b"EADB", b"FADB"):
            continue
        owner = int.from_bytes(data[at + 6 : at + 14], "little")
        value, count = data[owner + 6 : owner + 7], data[owner + 8 : owner + 16]  # bytes of an entry, entries
        step, several = int.from_bytes(value, "little"), [1 << power for power in range(11)]
        lengths = {
            b"FADB": [step * int.from_bytes(count, "little")],
            b"EAIB": [4 * step + 31 * 8],
            b"EADB": [4 + step * number for number in several],
            b"EASB": [4 + 8 * number for number in several],
        }
        ends = [at + 14 + length for length in lengths[kind] if length < 1 << 15]
        sealed += [(at, end) for end in ends if data[end : end + 4] == struct.pack("<I", lookup3(data[at:end]))][:1]
    return sealed


def lookup3(data: bytes) -> int:
    """Bob Jenkins' hash of bytes, as HDF5 seals its structures."""
    if not data:
        return 0xDEADBEEF
    words = struct.unpack(f"<{-(-len(data) // 12) * 3}I", data + bytes(-len(data) % 12))
    x = y = z = 0xDEADBEEF + len(data) & _WORD  # his a, c and b
    for at in range(0, len(words), 3):
        x, z, y = x + words[at] & _WORD, z + words[at + 1] & _WORD, y + words[at + 2] & _WORD
        if at + 3 < len(words):
            for turn in (4, 6, 8, 16, 19, 4):
                x, y, z = z, (x - y & _WORD) ^ _turned(y, turn), y + z & _WORD
    x, y, z = y, z, x
    for turn in (14, 11, 25, 16, 4, 14, 24):
        x, y, z = z, (x ^ y) - _turned(y, turn) & _WORD, y
    return y


def _turned(word: int, by: int) -> int:
    return (word << by | word >> 32 - by) & _WORD


def sealed(data: bytes | bytearray) -> bytes:
    """The same file with every checksum that HDF5 would look at computed again."""
    return bytes(_Seals(bytearray(data)).data)


class _Seals:
    """One pass over the structures of a file, each of which says how long it is or who knows."""

    def __init__(self, data: bytearray) -> None:
        self.data = data
        if len(data) > 48 and data[8] >= 2:
            self._seal(0, 44)
        ways: dict[bytes, Callable[[int], None]] = {b"OHDR": self._header, b"FRHP": self._heap, b"BTHD": self._tree}
        ways |= {b"FAHD": lambda at: self._seal(at, at + 24), b"EAHD": lambda at: self._seal(at, at + 68)}
        for one in list(_SIGNED.finditer(bytes(data))):
            if one[0] in ways:
                with contextlib.suppress(struct.error, IndexError):
                    ways[one[0]](one.start())

    def _seal(self, at: int, end: int) -> None:
        if 0 <= at < end <= min(len(self.data) - 4, at + (1 << 17)):
            struct.pack_into("<I", self.data, end, lookup3(bytes(self.data[at:end])))

    def _get(self, form: str, at: int) -> tuple[int, ...]:
        return struct.unpack_from("<" + form, self.data, at)

    def _header(self, at: int) -> None:
        flags = self.data[at + 5]
        begin = at + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width, head = 1 << (flags & 3), 6 if flags & 4 else 4
        length = int.from_bytes(self.data[begin : begin + width], "little")
        self._seal(at, begin + width + length)
        spans = [(begin + width, begin + width + length)]
        for begin, end in spans:
            while begin + head <= min(end, len(self.data)):
                kind, length = self._get("BH", begin)
                if kind == 0x10:  # the rest of the header is elsewhere
                    there, size = self._get("QQ", begin + head)
                    self._seal(there, there + size - 4)
                    if (there + 4, there + size - 4) not in spans and len(spans) < 50:
                        spans.append((there + 4, there + size - 4))
                begin += head + length

    def _heap(self, at: int) -> None:
        (filters,) = self._get("H", at + 7)
        self._seal(at, at + 142 + (filters + 12 if filters else 0))
        width, start, largest, bits, _, root, rows = self._get("HQQHHQH", at + 110)
        direct, seen, checked = _log(largest) - _log(start) + 2, set[tuple[int, int]](), self.data[at + 9] & 2

        def block(begin: int, size: int) -> None:
            place = begin + 13 + -(-bits // 8)
            if checked and self.data[begin : begin + 4] == b"FHDB" and size < 1 << 17:
                self.data[place : place + 4] = bytes(4)
                struct.pack_into("<I", self.data, place, lookup3(bytes(self.data[begin : begin + size])))

        def inner(begin: int, rows: int) -> None:
            if (begin, rows) in seen or rows > 64 or self.data[begin : begin + 4] != b"FHIB":
                return
            seen.add((begin, rows))
            place = begin + 13 + -(-bits // 8)
            for row in range(rows):
                size = start << max(0, row - 1)
                for child in self._get(f"{width}Q", place):
                    if row < direct:
                        block(child, size)
                    else:
                        inner(child, _log(size) - _log(start * width) + 1)
                place += 8 * width
            self._seal(begin, place)

        if rows:
            inner(root, rows)
        else:
            block(root, start)

    def _tree(self, at: int) -> None:
        size, record, depth, _, root, used = self._get("IHHHQH", at + 6)
        self._seal(at, at + 34)
        most = (size - 10) // max(record, 1)
        counted = -(-most.bit_length() // 8)
        steps, every, seen = [0], most, set[tuple[int, int, int]]()
        for level in range(1, min(depth, 8) + 1):
            step = 8 + counted + (-(-every.bit_length() // 8) if level > 1 else 0)
            most = max(0, (size - 10 - step) // (record + step))
            steps, every = [*steps, step], (most + 1) * every + most

        def node(begin: int, used: int, level: int) -> None:
            if (begin, used, level) in seen or level >= len(steps) or begin > len(self.data):
                return
            seen.add((begin, used, level))
            end = begin + 6 + used * record
            if level and self.data[begin : begin + 4] == b"BTIN":
                for _ in range(used + 1):
                    (child,) = self._get("Q", end)
                    node(child, int.from_bytes(self.data[end + 8 : end + 8 + counted], "little"), level - 1)
                    end += steps[level]
                self._seal(begin, end)
            elif not level and self.data[begin : begin + 4] == b"BTLF":
                self._seal(begin, end)

        node(root, used, depth)


def _log(number: int) -> int:
    return max(0, number.bit_length() - 1)


def write_of_every_kind(path: Path, arrays: dict[str, Any], groups: str, **how: Any) -> Path:
    """A file of ``arrays``, each with another table of chunks, of many attributes, and of many groups in ``groups``."""
    import h5py

    with h5py.File(path, "w", **how) as file:
        for number, (name, values) in enumerate(arrays.items()):
            values = np.asarray(values)
            chunks = (max(1, len(values) // 3), *values.shape[1:])
            ways: list[dict[str, Any]] = [
                {},
                {"chunks": chunks, "compression": "gzip"},
                {"chunks": chunks, "maxshape": (None, *values.shape[1:])},
                {"chunks": chunks, "maxshape": (None,) * values.ndim},
                {"chunks": values.shape},
                {"chunks": chunks},
                {"chunks": (1, *values.shape[1:]), "compression": "gzip", "maxshape": (None, *values.shape[1:])},
            ]
            file.create_dataset(name, data=values, **ways[number % len(ways)])
        for number in range(60):
            file.create_group(f"{groups}/group-{number}")
        for owner in (file, file[groups]):
            for number in range(14):
                owner.attrs[f"text-{number}"] = "some text" * number
            owner.attrs["number"] = np.arange(5)
    return path
