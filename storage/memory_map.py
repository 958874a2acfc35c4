"""Private memory maps of files: writes to the arrays never reach the files."""

from __future__ import annotations

import ctypes
import mmap
import os
import shlex
import sys
import weakref
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DamagedDatasetError
from .durable import is_about_reader

if TYPE_CHECKING:
    import torch

# Linux reserves memory for all of a private writable mapping, although hardly any page is ever written: without this flag a
# dataset larger than memory cannot be opened. (The mmap module names it from Python 3.13.)
_FLAGS = mmap.MAP_PRIVATE | (getattr(mmap, "MAP_NORESERVE", 0x4000) if sys.platform == "linux" else 0)

# The kernel reads ahead around every page touched (128 KiB, on some machines 8 MiB). That warms the cache for files that fit
# into memory; for larger ones, random reads would fetch hundreds of times what they need.
_READ_AHEAD_BELOW = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // 2

VERIFY = "`rbdata verify ID` names what is damaged; download or convert it again with --force"


def verify_hint(path: Path) -> str:
    """Return the hint for damage in a file of a dataset: the command with the dataset's folder."""
    folder = next((one for one in (path, *path.parents) if (one / "rbdata.json").is_file()), None)
    return VERIFY if folder is None else VERIFY.replace("ID", shlex.quote(str(folder)), 1)


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc


class _Mapping:
    """A private, writable map of a file's first bytes, which NumPy views; unmapped with the last array.

    The mmap module keeps a descriptor for each map until Python 3.13, and a mixture of 100 datasets has 1,500 of them.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        address = _libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, _FLAGS, descriptor, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self.address, self.size = address, size
        self.__array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}
        # Not at the end of the process: threads may still read.
        weakref.finalize(self, _libc().munmap, address, size).atexit = False

    def advise(self, advice: int, start: int = 0, length: int | None = None) -> None:
        _libc().madvise(self.address + start, self.size - start if length is None else length, advice)


def map_array(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    """Return the first ``count`` items of a file; nothing is read before it is used.

    Raises DamagedDatasetError if the file is missing, too short, or no file.
    """
    size = count * dtype.itemsize
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno()).st_size
            data = _Mapping(file.fileno(), size) if size and found >= size else None
    except OSError as error:
        raise _damage(path, error) from error
    if found < size:
        raise DamagedDatasetError(f"{path} has {found} bytes instead of {size}", hint=verify_hint(path))
    if data is None:
        return np.empty(0, dtype)
    if size >= _READ_AHEAD_BELOW:
        data.advise(mmap.MADV_RANDOM)
    return np.asarray(data).view(dtype)


def read_file(path: Path) -> bytes:
    """Return the content of a file. Raises DamagedDatasetError as `map_array`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise _damage(path, error) from error


def _damage(path: Path, error: OSError) -> Exception:
    """DamagedDatasetError for system errors about the file; those about this process as they are."""
    if is_about_reader(error):
        return error
    what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
    return DamagedDatasetError(f"{path} {what}", hint=verify_hint(path))


def will_read(array: np.ndarray, start: int, stop: int) -> None:
    """Have the system prefetch bytes ``start..stop-1`` of an array of ``map_array``, which are about to be read."""
    data = _mapping(array)
    if data is not None and data.size >= _READ_AHEAD_BELOW and stop > start:
        begin = start // mmap.PAGESIZE * mmap.PAGESIZE
        data.advise(mmap.MADV_WILLNEED, begin, stop - begin)


def release_pages(array: np.ndarray) -> None:
    """Release the pages of an array of ``map_array`` that have been read, which count as memory of this process.

    They are read again on use. Writes to the array are lost.
    """
    data = _mapping(array)
    if data is not None and hasattr(mmap, "MADV_DONTNEED"):
        data.advise(mmap.MADV_DONTNEED)


def widest_word(size: int) -> tuple[int, torch.dtype]:
    """Return the widest integer, as (bytes, dtype), as which memory of multiples of ``size`` bytes can be viewed."""
    import torch  # here: processes that only write do without it

    words = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))
    return next((width, word) for width, word in words if size % width == 0)


def in_numpy(tensor: torch.Tensor) -> bool:
    """Return whether NumPy can view the tensor: in main memory, with a dtype of NumPy."""
    try:
        tensor.numpy()
    except (TypeError, RuntimeError):
        return False
    return True


def flattened(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor in one dimension, with stride 1: a single record of ``data[::2]`` is contiguous with stride 2, and
    torch then views no other dtype."""
    return tensor.as_strided((tensor.numel(),), (1,))


def element_bytes(tensor: torch.Tensor) -> np.ndarray:
    """The elements in row-major order, uint8 ``[bytes]``: a view if the tensor is contiguous in main memory, else a copy.

    Tensors that torch negates or conjugates lazily (``z.conj().imag``) are copied.
    """
    import torch

    flat = flattened(tensor.detach().cpu().resolve_conj().resolve_neg().contiguous())
    return flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)


def _mapping(array: Any) -> _Mapping | None:
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, _Mapping) else None


@cache
def keep_freed_memory() -> None:
    """Have the process keep the memory of freed batches for the next ones.

    glibc returns free memory at the top of the heap to the system, and blocks above a threshold at once. A batch of frames
    would then start with a thousand page faults, which can take longer than reading it (measured: slices of compressed frames
    5 times slower). The threshold follows the largest block ever freed, up to 32 MiB, and the limit at the top is twice that
    (mallopt(3), M_MMAP_THRESHOLD). So one such block is allocated and freed, untouched.
    """
    np.empty((32 << 20) - (64 << 10), np.uint8)
