"""Headers of HDF5's objects, the types that they describe, and the trees, heaps and tables of its later format that they lead
to.

HDF5 (2.0 at least) believes what it reads there, once its checksum is right: it takes the records of one kind of tree for
those of another, writes more members of a group into a table than the tree states, follows a tree or heap whose branches meet
again as often as there are ways, takes what two objects share for that of the other, and allocates nodes of any size. So
before it opens an object, what its header leads to is looked through: it must be of the sizes that HDF5 itself writes, and
every node must be there once.

Types are proved as far as HDF5 trusts them: a type of variable length that is neither a sequence nor a text has no functions
to read it, and HDF5 calls them; an array is read as large as its dimensions say, into memory as large as its own size says.

Format: https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html (III.A, III.D, III.G, IV.A, VII)
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import CorruptSourceError

# -- types of values ---------------------------------------------------------------------------------------------------

_NUMBER, _FLOAT, _TIME, _STRING, _BITS, _OPAQUE, _COMPOUND, _REFERENCE, _ENUM, _VLEN, _ARRAY, _COMPLEX = range(12)
#: Bits that a class may set, of the 24 it has.
_BIT_FIELDS = {
    _NUMBER: 0xF,
    _FLOAT: 0xFF7F,
    _TIME: 1,
    _STRING: 0x1F,
    _BITS: 7,
    _OPAQUE: 0xF8,
    _COMPOUND: 0xFFFF,
    _REFERENCE: 0xFF,
    _ENUM: 0xFFFF,
    _VLEN: 0x131,
    _ARRAY: 0,
    _COMPLEX: 7,
}
#: Bytes of a number; HDF5 converts larger ones in a buffer of this size. Types inside each other: of each h5py keeps a copy of
#: all that are in it. Dimensions of an array.
_WIDEST, _DEEPEST, _MOST_DIMENSIONS = 64, 8, 32
#: Of texts and values of any length: in a file, and in memory.
_IN_FILE, _IN_MEMORY = (16,), (8, 16)


def read_type(data: Any, begin: int, *, in_file: bool = True) -> tuple[int, int]:
    """Bytes of a value of the type described at ``begin``, and where its description ends.

    Raises ValueError, struct.error or IndexError for a description that HDF5 does not write. ``in_file``: it is in a file, not
    what HDF5 says of a type in memory.
    """
    return _Types(data, _IN_FILE if in_file else _IN_MEMORY).read(begin, 0)


class _Types:
    def __init__(self, data: Any, references: tuple[int, ...]) -> None:
        self._data, self._references = data, references

    def _get(self, form: str, at: int) -> tuple[int, ...]:
        return struct.unpack_from("<" + form, self._data, at)

    def read(self, at: int, depth: int) -> tuple[int, int]:
        head, size = self._get("II", at)
        version, kind, bits = head >> 4 & 15, head & 15, head >> 8
        if depth > _DEEPEST:
            raise ValueError("too many types inside each other")
        known = 1 <= version <= 5 and kind <= _COMPLEX and size
        if not known or bits & ~_BIT_FIELDS[kind]:
            raise ValueError("unknown type")
        at += 8
        if kind in (_NUMBER, _BITS, _FLOAT):
            at = self._number(at, size, kind, bits)
        elif kind == _TIME:
            at += 2
        elif kind == _STRING:
            self._text(bits & 15, bits >> 4)
        elif kind == _OPAQUE:
            at += bits & 0xFF
        elif kind == _COMPOUND:
            at = self._compound(at, size, version, bits, depth)
        elif kind == _REFERENCE:
            if (bits & 15 < 2 and size != (8, 12)[bits & 15]) or bits & 15 > 4:
                raise ValueError("unknown reference")
        else:
            at = self._made_of_another(at, size, version, kind, bits, depth)
        return size, at

    def _number(self, at: int, size: int, kind: int, bits: int) -> int:
        offset, precision = self._get("HH", at)
        sound = 0 < precision <= 8 * size - offset and (size <= _WIDEST or kind == _BITS)
        if kind == _FLOAT:
            exponent, wide, mantissa, long, _ = self._get("BBBBI", at + 4)
            inside = max(bits >> 8 & 0xFF, exponent + wide - 1, mantissa + long - 1) < precision
            sound = sound and inside and wide > 0 and long > 0 and bits & 0x30 != 0x30
        if not sound:
            raise ValueError("a number of bits that its bytes do not have")
        return at + (12 if kind == _FLOAT else 4)

    @staticmethod
    def _text(padding: int, charset: int) -> None:
        if padding > 2 or charset > 1:
            raise ValueError("unknown text")

    def _compound(self, at: int, size: int, version: int, members: int, depth: int) -> int:
        spans = []
        for _ in range(members):
            at = self._name(at, version)
            width = (size.bit_length() - 1) // 8 + 1 if version > 2 else 4
            offset = int.from_bytes(self._data[at : at + width], "little")
            at, times = at + width, 1
            if version == 1:
                times = math.prod(self._get("4I", at + 12)[: self._data[at]])
                at += 28
            held, at = self.read(at, depth + 1)
            spans.append((offset, offset + times * held))
        spans.sort()
        ends = [0, *(end for _, end in spans)]
        if not spans or any(begin < end for (begin, _), end in zip(spans, ends)) or max(ends) > size:
            raise ValueError("members that overlap")
        return at

    def _name(self, at: int, version: int) -> int:
        """Where a name ends; up to version 2 its bytes are filled up to a multiple of 8."""
        length = self._data.find(b"\0", at) - at + 1
        if length < 1:
            raise ValueError("a name without end")
        return at + (length if version > 2 else length + 7 & ~7)

    def _made_of_another(self, at: int, size: int, version: int, kind: int, bits: int, depth: int) -> int:
        dims: tuple[int, ...] = (2,) if kind == _COMPLEX else ()
        if kind == _ARRAY:
            rank = self._data[at]
            at += 1 if version > 2 else 4
            dims = self._get(f"{rank}I", at)
            at += 4 * rank * (1 if version > 2 else 2)
            if not 0 < rank <= _MOST_DIMENSIONS:
                raise ValueError("an array of no dimensions")
        inside = self._data[at] & 15
        held, at = self.read(at, depth + 1)
        if kind == _VLEN:
            self._text(bits >> 4 & 15, bits >> 8)
            text = bits & 1
            if size not in self._references or (text and (inside, held) != (_NUMBER, 1)) or (not text and bits):
                raise ValueError("unknown values of any length")
        elif size != held * math.prod(dims) or (kind == _ENUM and inside != _NUMBER):
            raise ValueError("another size than that of its values")
        if kind == _ENUM:
            for _ in range(bits):
                at = self._name(at, version)
            at += bits * held
        return at


# -- headers -----------------------------------------------------------------------------------------------------------

_UNDEFINED = (1 << 64) - 1
_SPACE, _LINKS, _TYPE, _OLD_FILL, _FILL, _LAYOUT, _FILTERS = 1, 2, 3, 4, 5, 8, 11
_CONTINUED, _MEMBERS, _ATTRIBUTES = 16, 17, 21
#: Of a message: what it says is in the header of another object.
_ELSEWHERE = 2
#: Of the members of a group, and the attributes of an object: kinds of their trees by name and by order with the bytes of a
#: record, and the bytes of a place in their heap.
_DENSE = {_LINKS: ((5, 11), (6, 15), 7), _ATTRIBUTES: ((8, 17), (9, 13), 8)}
_OF_ATTRIBUTES, _HUGE = (8, 9), (1, 24)
_UNUSUAL = {15: "messages that are kept apart from their objects", 24: "an image of HDF5's cache"}
#: Percentages at which a node of a tree is split, and merged with the next.
_FILLED = 100 | 40 << 8
_LARGEST_NODE, _DEEPEST_TREE, _WIDEST_HEAP, _MOST_ROWS = 1 << 16, 16, 1 << 10, 64
#: Bytes of a block of a heap. HDF5 reads a block again for each name where it is larger than its cache.
_LARGEST_BLOCK = 1 << 16
#: Bytes of the names in one group, unless the file has eight times as many.
_MOST_NAMES = 1 << 20
#: Half of the entries of a node of an old tree; HDF5 writes 4, 16 and 32. Nodes inside each other would take gigabytes.
_MOST_ENTRIES, _ENTRIES = 512, 19
#: What HDF5 writes into every table of chunks that may grow: bits of a number, values in the index block, ...
_GROWING = bytes((32, 4, 16, 4, 10))


class Headers:
    """Looks through the objects of one file, which messages call ``name``."""

    def __init__(self, data: Any, base: int, name: str) -> None:
        self._data, self._base, self._name = data, base, name
        self._seen: set[int] = set()  # headers
        self._owned: set[int] = set()  # what one of them alone leads to
        self._held = 0  # bytes of names, and of what is too large for a heap

    @classmethod
    def of(cls, path: Path, name: str) -> Headers:
        """Of a file that `check_structure` passed."""
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        return cls(data, superblock(data) or 0, name)

    def check_root(self) -> None:
        """`check` of the root group, and that the file needs nothing that HDF5 can write and nobody asks it to.

        HDF5 refuses a file whose superblock is of no known version itself.
        """
        with self._inside(0):
            version = self._data[self._base + 8]
            extension = self._get("Q", 20)[0] if version in (2, 3) else _UNDEFINED
            entries = self._get("HH", 16) + self._get("H", 24)[: version == 1] if version < 2 else ()
            if extension != _UNDEFINED:
                for kind, begin, length, _ in self._messages(extension):
                    if kind in _UNUSUAL:
                        raise self._damaged(f"it holds {_UNUSUAL[kind]}, which is not read")
                    if kind == _ENTRIES and length:
                        entries += struct.unpack_from("<HHH", self._data, begin + 1)
            if max(entries, default=0) > _MOST_ENTRIES:
                raise self._damaged(f"its trees have nodes of {2 * max(entries)} entries, which are not read")
            if version <= 3:
                (root,) = self._get("Q", (64, 68, 36, 36)[version])
                self.check(root)

    def check(self, address: int) -> None:
        """Raise CorruptSourceError where the object at ``address`` would end or hang HDF5, or have it allocate at will."""
        if address in self._seen:
            return
        self._seen.add(address)
        with self._inside(address):
            found: dict[int, int] = {}
            width = 0
            for kind, begin, length, flags in self._messages(address):
                if kind == _TYPE and length:
                    width = self._type(begin, flags)
                elif flags & _ELSEWHERE:
                    raise self._damaged(f"it holds {_UNUSUAL[15]}, which is not read")
                elif kind in _DENSE:
                    self._dense(kind, begin)
                elif kind == _MEMBERS:
                    self._members(*struct.unpack_from("<QQ", self._data, begin))
                elif length:
                    found.setdefault(kind, begin)
            if _LAYOUT in found:
                self._chunks(found)
                for kind in (_FILL, _OLD_FILL):
                    if kind in found and self._fill(kind, found[kind])[1] not in (0, width):
                        raise self._damaged(
                            f"the object at byte {address} has values of {width} bytes, its fill value not"
                        )

    def has_fill_value(self, address: int) -> bool:
        """Whether an array states what the values are that were never written."""
        for kind, begin, length, _ in self._messages(address):
            if kind in (_FILL, _OLD_FILL) and length:
                begin, size = self._fill(kind, begin)
                if any(self._data[begin : begin + min(size, length)]):
                    return True
        return False

    def _fill(self, kind: int, at: int) -> tuple[int, int]:
        """Where a fill value begins, in the file, and how many bytes it has: 0 where none is given."""
        if kind == _FILL:
            version, flags = self._data[at], self._data[at + 1]
            at += 2 if version > 2 else 4
            if not (flags & 0x20 if version > 2 else version == 1 or self._data[at - 1]):
                return at, 0
        size = int.from_bytes(self._data[at : at + 4], "little", signed=True)
        return at + 4, max(size, 0)

    def _type(self, at: int, flags: int) -> int:
        """Bytes of a value of the type that a message is about."""
        if flags & _ELSEWHERE:
            (there,) = self._get("Q", at + (8 if self._data[at] == 1 else 2) - self._base)
            for kind, begin, _, again in self._messages(there):
                if kind == _TYPE and not again & _ELSEWHERE:
                    return self._type(begin, 0)
            raise self._damaged(f"there is no type at byte {there}")
        try:
            return read_type(self._data, at)[0]
        except ValueError as error:
            raise self._damaged(f"the type at byte {at} is damaged: {error}") from error

    @contextmanager
    def _inside(self, address: int) -> Iterator[None]:
        """Places outside of the file, and messages that are not there, become a CorruptSourceError."""
        try:
            yield
        except (struct.error, LookupError, OverflowError) as error:
            raise self._damaged(f"the object at byte {address} leads out of it, or lacks a part") from error

    def _damaged(self, what: str) -> CorruptSourceError:
        message = f"{self._name} is not a whole HDF5 file: {what}"
        return CorruptSourceError(message, hint="fetch it again, or use another mirror (--mirror)")

    def _get(self, form: str, address: int) -> tuple[int, ...]:
        return struct.unpack_from("<" + form, self._data, self._base + address)

    def _messages(self, address: int) -> Iterator[tuple[int, int, int, int]]:
        """Kind, beginning (in the file), length and flags of each message of a header."""
        data, at = self._data, self._base + address
        later = data[at : at + 4] == b"OHDR"
        if later:
            flags = data[at + 5]
            begin, width = at + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0), 1 << (flags & 3)
            length = int.from_bytes(data[begin : begin + width], "little")
            head, form, begin = (6 if flags & 4 else 4), struct.Struct("<BHB"), begin + width
        else:
            head, form, begin = 8, struct.Struct("<HHB"), at + 16
            (length,) = struct.unpack_from("<I", data, at + 8)
        spans, left = [(begin, begin + length)], len(data)
        for begin, end in spans:
            left -= max(end - begin, 8)
            if left < 0 or end > len(data):
                raise self._damaged(f"the header at byte {at} has no end")
            while begin + head <= end:
                kind, length, flags = form.unpack_from(data, begin)
                begin += head
                yield kind, begin, length, flags
                if kind == _CONTINUED:
                    there, size = struct.unpack_from("<QQ", data, begin)
                    spans.append(
                        (self._base + there + 4, self._base + there + size - 4)
                        if later
                        else (self._base + there, self._base + there + size)
                    )
                begin += length

    def _own(self, address: int) -> bool:
        """False for what is not there. Raises CorruptSourceError where two lead to the same: HDF5 takes one for the other."""
        if address in self._owned:
            raise self._damaged(f"what is at byte {self._base + address} belongs to two")
        if address != _UNDEFINED:
            self._owned.add(address)
        return address != _UNDEFINED

    def _hold(self, size: int) -> None:
        """Raise CorruptSourceError where more is stated in all than there is: HDF5 reads it again and again."""
        self._held += size
        if self._held > len(self._data):
            raise self._damaged(f"its heaps state {self._held} bytes")

    def _signed(self, address: int, head: bytes) -> None:
        """Raise CorruptSourceError unless what is at ``address`` begins with ``head``.

        HDF5 refuses it too, but keeps in its cache what led there, and cannot close the file.
        """
        at = self._base + address
        if self._data[at : at + len(head)] != head:
            raise self._damaged(f"what is at byte {at} is damaged")

    def _members(self, tree: int, heap: int) -> None:
        """A group as HDF5 has always had it: a tree, and a heap of names."""
        self._old_tree(tree, 0, 16)
        if self._own(heap):
            self._signed(heap, b"HEAP\0")
            (size,) = self._get("Q", heap + 8)
            if size > max(_MOST_NAMES, len(self._data) // 8):
                raise self._damaged(f"the names in one group take {size} bytes")
            self._hold(size)
            self._own(*self._get("Q", heap + 24))

    def _old_tree(self, root: int, kind: int, step: int) -> None:
        """``step``: bytes from child to child. Levels go down."""
        nodes = [(root, 256)]
        for node, above in nodes:
            at = self._base + node
            if not self._own(node):
                continue
            if not above:
                self._signed(node, b"SNOD\1")
                continue
            self._signed(node, b"TREE" + bytes([kind]))
            level, used = self._get("BH", node + 5)
            if level >= above or (above < 256 and level != above - 1):
                raise self._damaged(f"the tree at byte {at} is damaged")
            if level or not kind:
                places = range(node + 16 + step, node + 17 + step * used, step)
                nodes += [(self._get("Q", place)[0], level) for place in places]

    def _dense(self, kind: int, begin: int) -> None:
        """Members or attributes that are kept in a heap, and the one or two trees that list them."""
        by_name, by_order, place = _DENSE[kind]
        flags = self._data[begin + 1]
        begin += 2 - self._base + ((8 if kind == _LINKS else 2) if flags & 1 else 0)
        heap, names = self._get("QQ", begin)
        self._heap(heap, place)
        count = self._tree(names, *by_name)
        if flags & 2:
            (order,) = self._get("Q", begin + 16)
            if self._tree(order, *by_order) != count:
                raise self._damaged(f"the trees at byte {names} and {order} list different numbers of members")

    def _chunks(self, found: dict[int, int]) -> None:
        """The table of an array's chunks."""
        at = found[_LAYOUT]
        version = self._data[at]
        if self._data[at + (2 if version < 3 else 1)] != 2:
            return  # not in chunks
        if version < 4:
            rank = self._data[at + (1 if version < 3 else 2)]
            (root,) = self._get("Q", at + (8 if version < 3 else 3) - self._base)
            self._old_tree(root, 1, 16 + 8 * rank)
            return
        rank, width = self._data[at + 3], self._data[at + 4]
        sizes = [
            int.from_bytes(self._data[at + 5 + width * n : at + 5 + width * (n + 1)], "little") for n in range(rank)
        ]
        at += 5 + width * rank
        index, packed = self._data[at], _FILTERS in found and self._data[found[_FILTERS] + 1] > 0
        length = min(8, 1 + (math.prod(sizes).bit_length() + 7) // 8)
        # Its address, and with filters how many bytes there are and which filters were left out.
        value = 8 + (4 + (8 if version > 4 else length) if packed else 0)
        at += 1 - self._base
        if index == 5:
            (tree,) = self._get("Q", at + 6)
            self._tree(tree, 11 if packed else 10, value + 8 * (rank - 1))
        elif index in (3, 4):
            (table,) = self._get("Q", at + (1 if index == 3 else 5))
            if self._own(table):
                self._table(table, index == 3, packed, value, self._grid(found, sizes))

    def _grid(self, found: dict[int, int], sizes: list[int]) -> int:
        """How many chunks an array has that does not grow."""
        at = found[_SPACE]
        version, rank, flags = self._data[at : at + 3]
        at += (8 if version == 1 else 4) - self._base
        now = self._get(f"{rank}Q", at)
        most = self._get(f"{rank}Q", at + 8 * rank) if flags & 1 else now
        return math.prod(-(-max(dims) // max(size, 1)) for *dims, size in zip(now, most, sizes))

    def _table(self, address: int, fixed: bool, packed: bool, value: int, grid: int) -> None:
        at = self._base + address
        head = self._data[at : at + 12]
        self._signed(address, b"FAHD\0" if fixed else b"EAHD\0")
        (count,) = self._get("Q", address + (8 if fixed else 44))
        sound = count >= grid and head[7] == 10 if fixed else head[7:12] == _GROWING
        if head[5] != packed or head[6] != value or count > len(self._data) or not sound:
            raise self._damaged(f"the table of chunks at byte {at} is damaged")
        (block,) = self._get("Q", address + (16 if fixed else 60))
        owner = bytes((0, packed)) + struct.pack("<Q", address)
        if self._own(block):
            self._signed(block, (b"FADB" if fixed else b"EAIB") + owner)
            # In an index block, behind its values: blocks of values, and blocks that list more of them.
            places = () if fixed else self._get("31Q", block + 14 + 4 * value)
            for number, place in enumerate(places):
                if self._own(place):
                    self._signed(place, (b"EADB" if number < 6 else b"EASB") + owner)

    def _tree(self, address: int, kind: int, record: int) -> int:
        """How many records there are in a tree. Raises CorruptSourceError for one that HDF5 would not have written."""
        at = self._base + address
        if not self._own(address):
            return 0
        self._signed(address, b"BTHD\0")
        damaged = self._damaged(f"the tree at byte {at} is damaged")
        found, size, length, depth, filled, root, used, total = self._get("BIHHHQHQ", address + 5)
        sizes = length == record and 64 <= size <= _LARGEST_NODE and filled == _FILLED
        if found != kind or not sizes or depth > _DEEPEST_TREE or (root == _UNDEFINED) != (not total):
            raise damaged
        # By level: how many records fit into a node, and how many bytes a child takes behind them.
        fits, steps, widths = [(size - 10) // record], [0], [0]
        counted, every = -(-fits[0].bit_length() // 8), fits[0]
        for level in range(1, depth + 1):
            widths.append(-(-every.bit_length() // 8) if level > 1 else 0)
            steps.append(8 + counted + widths[level])
            fits.append((size - 10 - steps[level]) // (record + steps[level]))
            every = (fits[level] + 1) * every + fits[level]
        nodes = [(root, used, depth, total)] if total else []
        for node, used, level, records in nodes:  # of the whole branch
            at = self._base + node
            if not self._own(node) or used > fits[level] or (not level and used != records):
                raise damaged
            self._signed(node, (b"BTIN" if level else b"BTLF") + bytes((0, kind)))
            listed = range(node + 6, node + 6 + used * record, record)
            for place in listed if kind == _HUGE[0] else ():
                self._hold(*self._get("Q", place + 8))
            if kind in _OF_ATTRIBUTES and any(self._data[self._base + place + 8] & _ELSEWHERE for place in listed):
                raise damaged  # HDF5 takes it from a heap that the file need not have
            if not level:
                continue
            left = records - used
            for place in range(
                at + 6 + used * record, at + 6 + used * record + (used + 1) * steps[level], steps[level]
            ):
                (child,) = struct.unpack_from("<Q", self._data, place)
                place += 8
                held = inside = int.from_bytes(self._data[place : place + counted], "little")
                if level > 1:
                    inside = int.from_bytes(self._data[place + counted : place + counted + widths[level]], "little")
                nodes.append((child, held, level - 1, inside))
                left -= inside
            if left:  # HDF5 looks for a record by its number in what the counts say
                raise damaged
        return total

    def _heap(self, address: int, place: int) -> None:
        """A heap of members or attributes, whose blocks are each there once."""
        at = self._base + address
        if not self._own(address):
            return
        self._signed(address, b"FRHP\0")
        length, filters, huge = *self._get("HH", address + 5), *self._get("Q", address + 22)
        width, start, largest, bits, _, root, rows = self._get("HQQHHQH", address + 110)
        damaged = self._damaged(f"the heap at byte {at} is damaged")
        powers = all(number and not number & number - 1 for number in (width, start, largest))
        sizes = start <= largest <= _LARGEST_BLOCK and width <= _WIDEST_HEAP and rows <= _MOST_ROWS and bits <= 64
        if length != place or filters or not powers or not sizes:
            raise damaged
        self._tree(huge, *_HUGE)
        direct = largest.bit_length() - start.bit_length() + 2
        if rows > bits - (start * width).bit_length() + 2:
            raise damaged
        skip = -(-bits // 8)
        blocks = [(root, rows, 0)] if root != _UNDEFINED else []
        for block, rows, first in blocks:  # 0 rows: a block of values
            if not self._own(block):
                continue
            head = (
                (b"FHIB" if rows else b"FHDB") + bytes(1) + struct.pack("<Q", address) + first.to_bytes(skip, "little")
            )
            self._signed(block, head)  # HDF5 opens the heap that a block names
            children = self._get(f"{rows * width}Q", block + len(head))
            for row in range(rows):
                size = start << max(0, row - 1)
                inside = size.bit_length() - (start * width).bit_length() + 1 if row >= direct else 0
                if row >= direct and inside < 1:
                    raise damaged
                blocks += [(child, inside, first + n * size) for n, child in enumerate(children[row * width :][:width])]
                first += width * size


def superblock(data: Any) -> int | None:
    """Where the addresses of a file count from; None where HDF5 finds no file."""
    begin = 0
    while data[begin : begin + 8] != b"\x89HDF\r\n\x1a\n":
        begin = max(512, 2 * begin)
        if begin + 96 > len(data):
            return None
    return begin
