"""Rows by an index as users write it: ``dataset[...]``, ``dataset.episodes[...]``, ``buffer[...]``.

An index selects from the rows 0..count-1 as in NumPy. Every other form raises UnknownKeyError.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..errors import SamplingError, UnknownKeyError, reason

RowIndex = int | slice | torch.Tensor


class NoRecordError(SamplingError, UnknownKeyError):
    """A batch, or priorities, of records that do not exist."""


def row_index(index: Any, count: int, row: str) -> RowIndex:
    """Return a number (>= 0), a slice with a positive step, or int64 numbers (>= 0) of the shape of the index.

    Takes a number, a slice, ``...``, numbers in any shape, or a mask (bool ``[count]``), alone or as a tuple of one. ``row``
    is the word for a row in errors ("record"). Raises UnknownKeyError for rows that do not exist.
    """
    if isinstance(index, tuple):
        index = of_one_dimension(index, row)
    if index is Ellipsis:
        return slice(0, count, 1)
    if isinstance(index, slice):
        return _as_slice(index, count, row)
    if isinstance(index, (bool, np.bool_)):
        raise UnknownKeyError(f"{index} is not the number of a {row}")
    if isinstance(index, (int, np.integer)):
        return _as_number(int(index), count, row)
    numbers = numbers_or_mask(index, row)
    if numbers.dtype == torch.bool:
        if numbers.shape != (count,):
            shown = len(numbers) if numbers.ndim == 1 else f"shape {list(numbers.shape)}"
            raise UnknownKeyError(f"a mask of {shown} for {count} {row}s")
        return numbers.nonzero().squeeze(1)
    if not numbers.ndim:
        return _as_number(int(numbers), count, row)
    if not numbers.numel():
        return numbers
    least, most = (int(bound) for bound in torch.aminmax(numbers))
    if least < -count or most >= count:
        raise _not_there(least if least < -count else most, count, row)
    return numbers if least >= 0 else torch.where(numbers < 0, numbers + count, numbers)


def is_part_of_all(index: Any) -> bool:
    """Return whether an index selects from all rows (a slice, ``...``, a mask) instead of listing numbers."""
    if isinstance(index, (list, tuple)):
        return len(index) > 0 and all(isinstance(one, (bool, np.bool_)) for one in index)
    return index is Ellipsis or isinstance(index, slice) or getattr(index, "dtype", None) in (torch.bool, np.bool_)


def of_one_dimension(index: tuple[Any, ...], row: str) -> Any:
    """Return the single element of a tuple index. Raises UnknownKeyError if it has more elements."""
    parts = [part for part in index if part is not Ellipsis]
    if len(parts) > 1:
        message = f"{index!s:.60} has {len(parts)} dimensions, and {row}s have one"
        raise UnknownKeyError(message, hint="[1, 2] is a list of numbers")
    return parts[0] if parts else ...


def _as_slice(index: slice, count: int, row: str) -> RowIndex:
    try:
        start, stop, step = index.indices(count)
    except (TypeError, ValueError) as error:
        raise UnknownKeyError(f"{index} is not a slice of {row}s: {reason(error)}") from error
    if step > 0:
        return slice(start, max(start, stop), step)
    return torch.tensor(range(start, stop, step), dtype=torch.int64, device="cpu")


def _as_number(number: int, count: int, row: str) -> int:
    if not -count <= number < count:
        raise _not_there(number, count, row)
    return number % count


def numbers_or_mask(index: Any, row: str) -> torch.Tensor:
    """Return numbers (int64, negative ones as they are) or a mask (bool), of any shape.

    Raises UnknownKeyError for anything else.
    """
    try:
        if isinstance(index, range):
            return torch.arange(index.start, index.stop, index.step, device="cpu")
        index = index if isinstance(index, (torch.Tensor, np.ndarray)) else np.asarray(list(index))
        numbers = torch.as_tensor(index, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnknownKeyError(f"{index!r:.60} is not an index of {row}s: {reason(error)}") from error
    if numbers.dtype == torch.bool:
        return numbers
    if numbers.numel() and (numbers.is_floating_point() or numbers.is_complex()):
        raise UnknownKeyError(f"{row}s are numbered by whole numbers, not {numbers.dtype}")
    return numbers.long()


def _not_there(number: int, count: int, row: str) -> UnknownKeyError:
    return UnknownKeyError(f"there is no {row} {number}: there are {count}")


def lookup(table: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """``table[numbers]``: rows of a table in main memory, with a dtype of NumPy, by numbers (>= 0) of any dimensions.

    By NumPy: torch splits the lookup of a few thousand numbers over threads, which wait for milliseconds if other processes
    use the CPU.
    """
    return torch.from_numpy(table.numpy().take(numbers.numpy(), 0))


def runs_of(starts: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The run that each number lies in, of runs of numbers that begin at ``starts`` (ascending); int64, shape of ``numbers``.

    By NumPy for the reason given in `lookup`.
    """
    return torch.from_numpy(np.asarray(np.searchsorted(starts.numpy(), numbers.numpy(), "right") - 1))
