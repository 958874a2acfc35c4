"""Read pickled dictionaries of NumPy arrays and plain values; no function that the file names is called.

A pickle is a program (https://docs.python.org/3/library/pickletools.html) that calls what it names. The names that are
admitted here are those by which NumPy 1 and 2 pickle arrays, dtypes and single numbers. Each leads to a stand-in that only
keeps what it is given: NumPy's own functions trust a state that says which bytes are pointers.
"""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Callable
from typing import IO, Any, ClassVar

import numpy as np

from ...errors import CorruptSourceError

_MODULE = re.compile(r"numpy|numpy\.(_core|core)\.(multiarray|numeric)")
_NUMBERS = re.compile(r"[?biuf]\d{0,2}")
#: Limit of the nesting of values: a pickle may contain itself.
_DEEPEST = 8


class _Dtype:
    """A dtype: its letter and size, then a state with the byte order."""

    def __init__(self, text: str, *_: object) -> None:
        if not isinstance(text, str) or not (_NUMBERS.fullmatch(text) or text == "O8"):
            raise pickle.UnpicklingError(f"has values of the type {text!r}, which are no numbers")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])

    def array(self, data: Any, shape: Any, order: str) -> np.ndarray:
        """The array of these bytes; of an object dtype, of a list with one object."""
        if not isinstance(shape, tuple) or not all(type(length) is int and length >= 0 for length in shape):
            raise pickle.UnpicklingError(f"has an array of the shape {shape!r}")
        if self.dtype != object:
            return np.frombuffer(data, self.dtype).reshape(shape, order=order)  # type: ignore[call-overload]
        if shape != () or not isinstance(data, list) or len(data) != 1:
            raise pickle.UnpicklingError("holds an array of objects")
        return np.array(data, object).reshape(1)


class _Array:
    """An array: created empty, then filled from a state."""

    value: np.ndarray

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, is_fortran, data = state
        self.value = dtype.array(data, shape, "F" if is_fortran else "C")


_NAMES: dict[str, Any] = {
    "_reconstruct": lambda *_: _Array(),
    "_frombuffer": lambda data, dtype, shape, order, *_: dtype.array(data, shape, order),
    "scalar": lambda dtype, data: dtype.array(data, (1,), "C")[0],
    "ndarray": object,  # only its name is needed
    "dtype": _Dtype,
}


class _ArrayUnpickler(pickle._Unpickler):
    """Python's own unpickler: the one in C allocates as many slots for values as a damaged pickle states."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {**pickle._Unpickler.dispatch}

    def find_class(self, module: str, name: str) -> Any:
        if _MODULE.fullmatch(module) is None or name not in _NAMES:
            raise pickle.UnpicklingError(f"asks for {module}.{name}, which is never called")
        return _NAMES[name]

    def load_bytearray8(self) -> None:
        """Reads the bytes that exist; the original allocates the stated length."""
        (length,) = struct.unpack("<Q", self.read(8))  # type: ignore[attr-defined]
        self.append(bytearray(self.read(length)))  # type: ignore[attr-defined]

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8


def read_pickle(file: IO[bytes], name: str) -> Any:
    """The value that a pickle holds: arrays of numbers, numbers, texts, None, and lists, tuples and dictionaries of these.

    Arrays are read-only. Raises CorruptSourceError naming ``name`` for anything else, and for damaged pickles. Memory follows
    the bytes of ``file``, which the caller bounds.
    """
    try:
        return _plain(_ArrayUnpickler(file).load(), _DEEPEST)
    except CorruptSourceError:
        raise  # an error of the source of ``file``
    # A damaged pickle may raise anything: it calls the stand-ins with arguments of any kind.
    except Exception as error:
        raise CorruptSourceError(f"{name} is a damaged pickle, or one of other things: {error}") from error


def _plain(value: Any, deepest: int) -> Any:
    """A value with the arrays that stand-ins hold. Raises UnpicklingError for values of other types."""
    if not deepest:
        raise pickle.UnpicklingError(f"values lie more than {_DEEPEST} deep in each other")
    if isinstance(value, _Array):
        value = value.value
    if isinstance(value, np.ndarray):
        return _plain(value[0], deepest - 1) if value.dtype == object else value
    if isinstance(value, dict):
        return {_plain(key, 1): _plain(one, deepest - 1) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(one, deepest - 1) for one in value)
    if not isinstance(value, (np.bool_, np.number, str, bytes, bytearray, int, float, type(None))):
        raise pickle.UnpicklingError(f"it holds a {type(value).__name__}, which is not read")
    return value
