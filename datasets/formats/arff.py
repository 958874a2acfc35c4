"""ARFF, dense and sparse, as OpenML's files have it: a header of typed attributes, then one row a line.

https://waikato.github.io/weka-wiki/formats_and_processing/arff_stable/

    % a comment: a separate line; '%' inside a row is an ordinary character
    @relation name
    @attribute 'a name' numeric          also real, integer
    @attribute b {red, 'dark blue', 3}   nominal: codes follow this order
    @attribute c string                  also date
    @data
    5.1, red, 'it\\'s'                   values between commas, spaces around them do not count
    ?, ?, 'text'                         an unquoted question mark is a missing value
    {0 5.1, 1 3}                         sparse: index and value; what is left out is 0, or the first nominal value

Anything else is refused with its line number: a table that is misread is worse than one that is not read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np

from ...errors import CorruptSourceError

Kind = Literal["numeric", "nominal", "string"]

#: OpenML's widest table has 100,001.
_MOST_ATTRIBUTES = 1 << 18
#: Values of a block, so that rows of many columns come in smaller ones.
_BLOCK_VALUES = 1 << 22
#: Names may be as long as the file.
_LONGEST_MESSAGE = 200

_NUMERIC = ("numeric", "real", "integer")
#: Every part begins with what the one before it cannot end with: a run of spaces is never tried twice.
_QUOTED = r"""'([^'\\]*(?:\\.[^'\\]*)*)'\s*|"([^"\\]*(?:\\.[^"\\]*)*)"\s*"""
_ATTRIBUTE = re.compile(rf"""@attribute\s+(?:{_QUOTED}|([^\s'"{{][^\s{{]*)\s*)([^\s].*)""", re.I)
#: One value and what ends it. A quoted one may not be followed by anything but spaces.
_VALUE = re.compile(rf"""\s*(?:{_QUOTED}|([^\s,'"][^,]*|))(?:,|$)""")
_SPARSE = re.compile(rf"""\s*([0-9]{{1,9}})\s+(?:{_QUOTED}|([^\s,'"][^,]*))(?:,|$)""")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.S)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass(frozen=True)
class Attribute:
    """One column; ``values`` are those of a nominal one, in the order declared."""

    name: str
    kind: Kind
    values: tuple[str, ...] = ()


#: A column of some rows: float64 with NaN for missing values, int64 codes with -1 for them, or None for text.
ColumnValues = np.ndarray | None


class ArffTable:
    """A file's attributes, and its rows in blocks. ``lines`` are the file's, with or without line ends."""

    def __init__(self, lines: Iterable[str], name: str) -> None:
        self._lines, self._name = enumerate(lines, 1), name
        self.attributes = self._header()
        #: The values of a sparse row at the indices that it leaves out.
        self._left_out: list[str | None] = [
            attribute.values[0] if attribute.values else ("0" if attribute.kind == "numeric" else "")
            for attribute in self.attributes
        ]
        self._codes = [_codes(attribute.values) for attribute in self.attributes]

    def blocks(self, rows: int = 4096) -> Iterator[list[ColumnValues]]:
        """Up to ``rows`` rows at a time, one column for each attribute. Raises CorruptSourceError, naming the line."""
        rows = max(1, min(rows, _BLOCK_VALUES // len(self.attributes)))
        while True:
            block = list(islice(self._rows(), rows))
            if not block:
                return
            numbers = [number for number, _ in block]
            yield [self._column(index, values, numbers) for index, values in enumerate(zip(*(row for _, row in block)))]

    # -- header ----------------------------------------------------------------------------------------------------

    def _header(self) -> tuple[Attribute, ...]:
        attributes: list[Attribute] = []
        for number, line in self._lines:
            text = line.strip()
            if not text or text.startswith("%"):
                continue
            word = text.split(None, 1)[0].lower()
            if word == "@attribute":
                attributes.append(self._attribute(text, number))
            elif word == "@data":
                break
            elif word != "@relation":
                raise self._error(number, f"{text[:40]!r} is not an ARFF declaration")
        else:
            raise CorruptSourceError(f"{self._name} is not an ARFF file: it has no @data")
        if not 0 < len(attributes) <= _MOST_ATTRIBUTES:
            declares = f"{len(attributes)} attributes, more than {_MOST_ATTRIBUTES}" if attributes else "no attributes"
            raise CorruptSourceError(f"{self._name} declares {declares}")
        ((most, times),) = Counter(attribute.name for attribute in attributes).most_common(1)
        if times > 1:
            raise CorruptSourceError(f"{self._name} declares {most[:40]!r} twice")
        return tuple(attributes)

    def _attribute(self, text: str, number: int) -> Attribute:
        match = _ATTRIBUTE.fullmatch(text)
        if match is None:
            raise self._error(number, "an @attribute without a name and a type")
        name = _first_text(match.groups()[:3])
        kind = match[4].strip()
        if kind.startswith("{"):
            if not kind.endswith("}"):
                raise self._error(number, f"the values of {name!r} do not end with a brace")
            values = tuple(value or "" for value in self._split(kind[1:-1], number, missing="?"))
            if len(set(values)) != len(values):
                raise self._error(number, f"{name!r} declares a value twice")
            return Attribute(name, "nominal", values)
        word = kind.split(None, 1)[0].lower()
        if word not in (*_NUMERIC, "string", "date"):
            raise self._error(number, f"{name!r} has the type {kind[:40]!r}, which is not known")
        return Attribute(name, "numeric" if word in _NUMERIC else "string")

    # -- rows ------------------------------------------------------------------------------------------------------

    def _rows(self) -> Iterator[tuple[int, Sequence[str | None]]]:
        """Rows with their line numbers; None for missing values."""
        width = len(self.attributes)
        for number, line in self._lines:
            text = line.strip()
            if not text or text[0] == "%":
                continue
            row: Sequence[str | None]
            if text[0] == "{":
                row = self._sparse(text, number)
            elif "'" in text or '"' in text:
                row = self._split(text, number)
            else:
                plain = text.split(",")
                row = [value.strip() for value in plain] if " " in text or "\t" in text else plain
                if "?" in text:
                    row = [None if value == "?" else value for value in row]
            if len(row) != width:
                raise self._error(number, f"{len(row)} values for {width} attributes")
            yield number, row

    def _split(self, text: str, number: int, missing: str | None = None) -> list[str | None]:
        """Values between commas; an unquoted question mark becomes ``missing``."""
        values: list[str | None] = []
        at = 0
        while True:
            match = _VALUE.match(text, at)
            if match is None:
                raise self._error(number, f"a quote is out of place near {text[at : at + 30]!r}")
            value = _first_text(match.groups())
            values.append(missing if value == "?" and match[3] else value)
            at = match.end()
            if not match[0].endswith(","):
                return values

    def _sparse(self, text: str, number: int) -> list[str | None]:
        if not text.endswith("}"):
            raise self._error(number, "a sparse row does not end with a brace")
        row = self._left_out.copy()
        body, at, last = text[1:-1].strip(), 0, -1
        while at < len(body):
            match = _SPARSE.match(body, at)
            if match is None:
                raise self._error(number, f"not an index and a value near {body[at : at + 30]!r}")
            index = int(match[1])
            if not last < index < len(row):
                raise self._error(number, f"the index {index} is out of order or out of range")
            value = _first_text(match.groups()[1:])
            row[index] = None if value == "?" and match[4] else value
            at, last = match.end(), index
        return row

    def _column(self, index: int, values: Sequence[str | None], numbers: Sequence[int]) -> ColumnValues:
        attribute, codes = self.attributes[index], self._codes[index]
        if attribute.kind == "string":
            return None
        if attribute.kind == "nominal":
            with suppress(KeyError):
                return np.array([codes[value] for value in values], np.int64)
            wrong = next(row for row, value in enumerate(values) if value not in codes)
            what = f"{str(values[wrong])[:40]!r} is not among the declared values of {attribute.name!r}"
            raise self._error(numbers[wrong], what)
        texts = ["nan" if value is None or value == "?" else value for value in values]
        if (found := _to_numbers(texts)) is not None:
            return np.array(found, np.float64)
        wrong = next(row for row, text in enumerate(texts) if _to_numbers([text]) is None)
        raise self._error(numbers[wrong], f"{attribute.name!r} is numeric, {texts[wrong][:40]!r} is not a number")

    def _error(self, number: int, what: str) -> CorruptSourceError:
        return CorruptSourceError(f"{self._name}, line {number}: {what[:_LONGEST_MESSAGE]}")


def _codes(values: Sequence[str]) -> dict[str | None, int]:
    """The codes of nominal values; a missing one is an unquoted question mark, or a quoted one that is not declared."""
    return {None: -1, "?": -1, **{value: code for code, value in enumerate(values)}}


def _to_numbers(texts: Sequence[str]) -> list[float] | None:
    """Texts as numbers, None if one is not: Python accepts other digits, and 1_000."""
    text = "".join(texts)
    with suppress(ValueError):
        return list(map(float, texts)) if text.isascii() and "_" not in text else None
    return None


def _first_text(groups: Sequence[Any]) -> str:
    """The value of whichever of (single-quoted, double-quoted, plain) matched."""
    single, double, plain = groups
    if plain is not None:
        return plain.rstrip()

    def unescaped(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPED.get(code, code)

    return _ESCAPE.sub(unescaped, single if single is not None else double)
