"""Read pickles of NumPy arrays and plain values, without running anything that they name.

A pickle is a program for a stack machine (https://docs.python.org/3/library/pickletools.html), and Python's own machine calls
whatever the program names. The one here has no way to call: it knows the few instructions that `pickle` writes for
dictionaries, lists, tuples, texts, bytes, numbers, None and arrays, and the names of NumPy's that stand for arrays, dtypes and
single numbers (as NumPy 1 and 2 spell them). Anything else is an error that says what was asked for.

Memory follows the bytes that arrive. Frames that were stored as floating-point numbers become bytes while they arrive
(`Narrow`).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import CorruptSourceError
from .byte_reader import ByteReader

#: Whether an array of this dtype and shape is to be held as uint8: its values must be whole numbers from 0 to 255 then.
Narrow = Callable[[np.dtype, tuple[int, ...]], bool]

#: A dictionary of arrays takes a few hundred instructions.
_MOST_INSTRUCTIONS = 20_000
_LONGEST_TEXT, _LONGEST_NAME = 1 << 16, 1 << 8
#: Values in the result, each as often as it stands there, and how deep they may lie in each other.
_MOST_VALUES, _DEEPEST = 10_000, 20
_DTYPE = re.compile(r"[?biuf]\d{1,2}|\?|O8")
#: Bytes that are made narrow at a time: a multiple of the size of any number.
_BLOCK_BYTES = 1 << 20

_ARRAY, _NDARRAY, _DTYPE_NAME, _SCALAR, _BUFFER = "_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer"
_NAMES = {
    **{(f"numpy.{core}.multiarray", name): name for core in ("core", "_core") for name in (_ARRAY, _SCALAR)},
    **{(f"numpy.{core}.numeric", _BUFFER): _BUFFER for core in ("core", "_core")},
    **{("numpy", name): name for name in (_NDARRAY, _DTYPE_NAME)},
}


def read_pickle(
    pieces: Iterable[bytes | memoryview], name: str, most_bytes: int, narrow: Narrow = lambda dtype, shape: False
) -> Any:
    """The value that a pickle holds; ``pieces`` are all its bytes.

    ``most_bytes`` bounds what is held in memory. Raises CorruptSourceError naming ``name`` for anything but arrays of numbers
    and plain values, and for damaged pickles.
    """
    reader = ByteReader((bytes(piece) for piece in pieces), name)
    machine = _Machine(reader, most_bytes, narrow)
    try:
        value = machine.run()
    except CorruptSourceError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, StopIteration, OverflowError, struct.error) as error:
        raise machine.error(f"is a damaged pickle: {error!r}") from error
    if any(len(piece) for piece in reader.rest()):
        raise machine.error("goes on after its end")
    return value


@dataclass(frozen=True)
class _Name:
    """A name that the pickle asks for; one of `_NAMES`."""

    name: str


@dataclass
class _Dtype:
    dtype: np.dtype


@dataclass
class _Array:
    """An array whose state may not have come yet; ``value`` is the only element where it is of objects."""

    value: Any = None


@dataclass(frozen=True)
class _Narrowed:
    """The bytes of an array as numbers from 0 to 255, of which there are as many as its shape says."""

    numbers: np.ndarray


class _Mark:
    pass


class _Machine:
    """Runs one pickle."""

    def __init__(self, reader: ByteReader, most_bytes: int, narrow: Narrow) -> None:
        self._reader, self._left, self._narrow = reader, most_bytes, narrow
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._values = _MOST_VALUES

    def error(self, problem: str) -> CorruptSourceError:
        return CorruptSourceError(f"{self._reader.name} {problem}", hint=_REFETCH)

    def run(self) -> Any:
        for _ in range(_MOST_INSTRUCTIONS):
            code = self._reader.take(1)
            if code == b".":
                return self._plain(self._stack.pop(), 0)
            act = _INSTRUCTIONS.get(code)
            if act is None:
                raise self.error(f"has the instruction {code!r}, which no pickle of arrays and plain values needs")
            act(self)
        raise self.error(f"is a pickle of more than {_MOST_INSTRUCTIONS} instructions")

    def _plain(self, value: Any, depth: int) -> Any:
        """A value with arrays for what stands for them. Raises CorruptSourceError for names, and for values without end."""
        self._values -= 1
        if self._values < 0 or depth > _DEEPEST:
            raise self.error("holds too many values, or values too deep in each other")
        if isinstance(value, _Array):
            return self._plain(value.value, depth + 1)
        if isinstance(value, dict):
            return {self._key(key): self._plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._plain(item, depth + 1) for item in value)
        if isinstance(value, (_Name, _Dtype, _Mark, _Narrowed)):
            raise self.error("holds a name or a dtype where a value belongs")
        return value

    def _key(self, key: Any) -> Any:
        if not isinstance(key, (str, int)):
            raise self.error("has a dictionary whose keys are neither texts nor numbers")
        return key

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def _count(self, form: str, most: int) -> int:
        """A length that comes next. Raises CorruptSourceError for one that is larger than ``most``."""
        (count,) = struct.unpack(form, self._reader.take(struct.calcsize(form)))
        if count > most:
            raise self.error(f"states {count} bytes for one value")
        return int(count)

    def _text(self, form: str) -> None:
        self._stack.append(self._reader.take(self._count(form, _LONGEST_TEXT)).decode())

    def _bytes(self, form: str) -> None:
        """Bytes that belong to an array, whose dtype and shape are on the stack by then, may be made narrow."""
        count = self._count(form, 1 << 40)
        numbers = self._expected(count)
        self._left -= count if numbers is None else count // numbers.itemsize
        if self._left < 0:
            raise self.error("holds more than can be read at once")
        pieces = self._reader.pieces(count)
        self._stack.append(b"".join(pieces) if numbers is None else self._narrowed(pieces, count, numbers))

    def _expected(self, count: int) -> np.dtype | None:
        """The dtype of the array whose ``count`` bytes come next, if it is to be narrow."""
        if len(self._stack) < 3:
            return None
        shape, stated, fortran = self._stack[-3:]
        if not (isinstance(fortran, bool) and isinstance(stated, _Dtype) and isinstance(shape, tuple)):
            return None
        dtype = stated.dtype
        fits = dtype.kind == "f" and _size(shape) * dtype.itemsize == count
        return dtype if fits and self._narrow(dtype, shape) else None

    def _narrowed(self, pieces: Iterator[memoryview], count: int, dtype: np.dtype) -> _Narrowed:
        numbers, at = np.empty(count // dtype.itemsize, np.uint8), 0
        for block in _numbers(pieces, dtype):
            numbers[at : at + len(block)] = to_bytes(block, self._reader.name)
            at += len(block)
        return _Narrowed(numbers)

    # -- instructions ----------------------------------------------------------------------------------------------------

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _above_mark(self) -> list[Any]:
        """What lies above the last mark, which is taken away with it."""
        at = next(place for place in range(len(self._stack) - 1, -1, -1) if isinstance(self._stack[place], _Mark))
        found = self._stack[at + 1 :]
        del self._stack[at:]
        return found

    def _tuple(self, count: int) -> None:
        found = tuple(self._stack[-count:])
        if len(found) != count:
            raise IndexError("the stack is empty")
        self._stack[-count:] = [found]

    def _append(self, found: list[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise TypeError("no list")
        self._stack[-1].extend(found)

    def _set(self, found: list[Any]) -> None:
        if not isinstance(self._stack[-1], dict) or len(found) % 2:
            raise TypeError("no dictionary")
        self._stack[-1].update(zip(map(self._key, found[::2]), found[1::2]))

    def _line(self) -> str:
        data = b""
        while not data.endswith(b"\n"):
            data += self._reader.take(1)
            if len(data) > _LONGEST_NAME:
                raise self.error("has a name without an end")
        return data[:-1].decode()

    def _global(self, module: Any, name: Any) -> None:
        found = _NAMES.get((module, name)) if isinstance(module, str) and isinstance(name, str) else None
        if found is None:
            raise self.error(f"asks for {module}.{name}, which is never called: a pickle can run any code")
        self._stack.append(_Name(found))

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._global(module, name)

    def _reduce(self) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        if not (isinstance(function, _Name) and isinstance(arguments, tuple)):
            raise TypeError("a call of what is no name")
        if function.name == _ARRAY:
            self._stack.append(_Array())
        elif function.name == _DTYPE_NAME:
            self._stack.append(_Dtype(self._dtype(arguments[0])))
        elif function.name == _SCALAR:
            dtype, data = arguments
            self._stack.append(self._array(dtype, (), False, data)[()])
        elif function.name == _BUFFER:
            data, dtype, shape, order = arguments
            self._stack.append(self._array(dtype, shape, order == "F", data))
        else:
            raise TypeError(f"a call of {function.name}")

    def _dtype(self, text: Any) -> np.dtype:
        if not isinstance(text, str) or _DTYPE.fullmatch(text) is None:
            raise self.error(f"holds an array of dtype {text!r}, which is not read")
        return np.dtype(text)

    def _build(self) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        if isinstance(target, _Dtype):
            if state[1] not in ("<", ">", "|", "=") or any(part is not None for part in state[2:5]):
                raise self.error("holds an array of records, which is not read")
            target.dtype = target.dtype.newbyteorder(state[1])
        elif isinstance(target, _Array):
            _, shape, dtype, fortran, data = state
            target.value = self._array(dtype, shape, fortran, data)
        else:
            raise TypeError("a state of what has none")

    def _array(self, stated: Any, shape: Any, fortran: Any, data: Any) -> Any:
        """An array in native byte order; of objects, the only one. Raises CorruptSourceError where bytes and shape disagree."""
        dtype = stated.dtype
        if dtype.hasobject:
            if shape != () or not isinstance(data, list) or len(data) != 1:
                raise self.error("holds an array of objects, which is not read")
            return data[0]
        numbers = data.numbers if isinstance(data, _Narrowed) else None
        if numbers is None:
            if not isinstance(data, (bytes, bytearray)) or len(data) != _size(shape) * dtype.itemsize:
                raise self.error(f"holds an array of shape {shape!r} with other bytes than that takes")
            numbers = np.frombuffer(data, dtype).astype(dtype.newbyteorder("="), copy=False)
        if numbers.size != _size(shape):
            raise self.error(f"holds an array of shape {shape!r} with other bytes than that takes")
        return np.ascontiguousarray(numbers.reshape(shape, order="F" if fortran else "C")).reshape(shape)


def to_bytes(numbers: np.ndarray, name: str) -> np.ndarray:
    """Whole numbers from 0 to 255 as uint8. Raises CorruptSourceError for others."""
    with np.errstate(invalid="ignore"):
        found = numbers.astype(np.uint8)
    wrong = found != numbers
    if wrong.any():
        message = f"{name} has {numbers[wrong][0]} among the values of frames, which are whole numbers from 0 to 255"
        raise CorruptSourceError(message, hint=_REFETCH)
    return found


def _numbers(pieces: Iterator[memoryview], dtype: np.dtype) -> Iterator[np.ndarray]:
    """Numbers as they arrive, in blocks."""
    waiting = bytearray()
    for piece in pieces:
        waiting += piece
        if len(waiting) >= _BLOCK_BYTES:
            whole = len(waiting) // dtype.itemsize * dtype.itemsize
            yield np.frombuffer(bytes(waiting[:whole]), dtype)
            del waiting[:whole]
    yield np.frombuffer(bytes(waiting), dtype)


def _size(shape: Any) -> int:
    """How many numbers a shape has. Raises TypeError for what is no shape."""
    if not isinstance(shape, tuple) or not all(type(length) is int and length >= 0 for length in shape):
        raise TypeError(f"{shape!r} is no shape")
    return math.prod(shape)


def _memorise(machine: _Machine, place: int) -> None:
    machine._memo[place] = machine._stack[-1]


def _integer(machine: _Machine, form: str) -> None:
    machine._push(struct.unpack(form, machine._reader.take(struct.calcsize(form)))[0])


def _long(machine: _Machine) -> None:
    machine._push(int.from_bytes(machine._reader.take(machine._count("<B", 16)), "little", signed=True))


def _setitem(machine: _Machine) -> None:
    value, key = machine._stack.pop(), machine._stack.pop()
    machine._set([key, value])


_INSTRUCTIONS: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": lambda machine: machine._reader.skip(1),  # the protocol
    b"\x95": lambda machine: machine._reader.skip(8),  # a frame and its length
    b"(": lambda machine: machine._push(_Mark()),
    b"N": lambda machine: machine._push(None),
    b"\x88": lambda machine: machine._push(True),
    b"\x89": lambda machine: machine._push(False),
    b"J": lambda machine: _integer(machine, "<i"),
    b"K": lambda machine: _integer(machine, "<B"),
    b"M": lambda machine: _integer(machine, "<H"),
    b"G": lambda machine: _integer(machine, ">d"),
    b"\x8a": _long,
    b"X": lambda machine: machine._text("<I"),
    b"\x8c": lambda machine: machine._text("<B"),
    b"\x8d": lambda machine: machine._text("<Q"),
    b"B": lambda machine: machine._bytes("<I"),
    b"C": lambda machine: machine._bytes("<B"),
    b"\x8e": lambda machine: machine._bytes("<Q"),
    b"\x96": lambda machine: machine._bytes("<Q"),
    b")": lambda machine: machine._push(()),
    b"t": lambda machine: machine._push(tuple(machine._above_mark())),
    b"\x85": lambda machine: machine._tuple(1),
    b"\x86": lambda machine: machine._tuple(2),
    b"\x87": lambda machine: machine._tuple(3),
    b"]": lambda machine: machine._push([]),
    b"a": lambda machine: machine._append([machine._stack.pop()]),
    b"e": lambda machine: machine._append(machine._above_mark()),
    b"}": lambda machine: machine._push({}),
    b"s": _setitem,
    b"u": lambda machine: machine._set(machine._above_mark()),
    b"q": lambda machine: _memorise(machine, machine._reader.take(1)[0]),
    b"r": lambda machine: _memorise(machine, machine._count("<I", 1 << 31)),
    b"\x94": lambda machine: _memorise(machine, len(machine._memo)),
    b"h": lambda machine: machine._push(machine._memo[machine._reader.take(1)[0]]),
    b"j": lambda machine: machine._push(machine._memo[machine._count("<I", 1 << 31)]),
    b"c": lambda machine: machine._global(machine._line(), machine._line()),
    b"\x93": lambda machine: machine._stack_global(),
    b"R": lambda machine: machine._reduce(),
    b"b": lambda machine: machine._build(),
}

_REFETCH = "the copy at the source or mirror is not what the dataset's authors published; try another mirror"
