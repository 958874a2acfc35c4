"""Whether finished work of an earlier run is still what that run wrote: by the checksums in its journal."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..errors import RbdataError
from .checksums import sum_range
from .codecs.codec import Codec

#: A disk that does not give back what was written; other errors (too many open files) say nothing about the work.
_LOST = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO}

Records = Mapping[int, Mapping[str, Any]]


def find_changed(
    folder: Path, in_parts: Sequence[Codec], in_place: Collection[str], finished: Records, merged: Records
) -> set[int]:
    """The numbers of parts whose files, or whose rows in the leaves' files, are not what was recorded of them.

    ``in_parts`` are the leaves whose parts are appended (``merged``: the entries of those that are), ``in_place`` the files in
    which every part has its place. Everything is read once, by several threads.
    """

    def is_proved(number: int) -> bool:
        try:
            return _is_in_place(folder, in_place, finished[number]) and all(
                codec.has_appended(folder, merged[number]["leaves"][codec.leaf.name])
                if number in merged
                else codec.part_is_there(folder, number, finished[number]["leaves"][codec.leaf.name], contents=True)
                for codec in in_parts
            )
        except OSError as error:
            if error.errno in _LOST:
                return False
            raise
        except (RbdataError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return False  # a record that no writer makes

    numbers = {*finished, *merged}
    counted = sorted(number for number in numbers if isinstance(number, int))
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "rbdata-proof") as pool:
        return numbers - {number for number, proved in zip(counted, pool.map(is_proved, counted)) if proved}


def _is_in_place(folder: Path, in_place: Collection[str], record: Mapping[str, Any]) -> bool:
    """Whether the rows of a part that were written at their places are those recorded."""
    records = [leaf for leaf in record["leaves"].values() if "begin" in leaf]
    if {path for leaf in records for path in leaf["ranges"]} != set(in_place):
        return False
    for leaf in records:
        for path, ranges in leaf["ranges"].items():
            begin = leaf["begin"][path]
            for length, checksum, *_ in ranges:
                if sum_range(folder / path, begin, length) != [length, checksum]:
                    return False
                begin += length
    return True
