"""Headers of HDF5's objects, and the trees, heaps and tables of its later format that they lead to.

HDF5 (2.0 at least) believes what it reads there, once its checksum is right: it takes the records of one kind of tree for
those of another, writes more members of a group into a table than the tree states, follows a tree or heap whose branches meet
again as often as there are ways, takes what two objects share for that of the other, and allocates nodes of any size. So
before it opens an object, what its header leads to is looked through: it must be of the sizes that HDF5 itself writes, and
every node must be there once.

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

_UNDEFINED = (1 << 64) - 1
_SPACE, _LINKS, _OLD_FILL, _FILL, _LAYOUT, _FILTERS, _CONTINUED, _MEMBERS, _ATTRIBUTES = 1, 2, 4, 5, 8, 11, 16, 17, 21
#: Of the members of a group, and the attributes of an object: kinds of their trees by name and by order with the bytes of a
#: record, and the bytes of a place in their heap.
_DENSE = {_LINKS: ((5, 11), (6, 15), 7), _ATTRIBUTES: ((8, 17), (9, 13), 8)}
_HUGE = (1, 24)
_UNUSUAL = {15: "messages that are kept apart from their objects", 24: "an image of HDF5's cache"}
_LARGEST_NODE, _DEEPEST_TREE, _WIDEST_HEAP, _MOST_ROWS = 1 << 16, 16, 1 << 10, 64
#: What HDF5 writes into every table of chunks that may grow: bits of a number, values in the index block, ...
_GROWING = bytes((32, 4, 16, 4, 10))


class Headers:
    """Looks through the objects of one file, which messages call ``name``."""

    def __init__(self, data: Any, base: int, name: str) -> None:
        self._data, self._base, self._name = data, base, name
        self._seen: set[int] = set()  # headers
        self._owned: set[int] = set()  # what one of them alone leads to

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
            if extension != _UNDEFINED:
                for kind, _, _ in self._messages(extension):
                    if kind in _UNUSUAL:
                        raise self._damaged(f"it holds {_UNUSUAL[kind]}, which is not read")
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
            for kind, begin, length in self._messages(address):
                if kind in _DENSE:
                    self._dense(kind, begin)
                elif kind == _MEMBERS:
                    self._members(*struct.unpack_from("<QQ", self._data, begin))
                elif length:
                    found.setdefault(kind, begin)
            if _LAYOUT in found:
                self._chunks(found)

    def has_fill_value(self, address: int) -> bool:
        """Whether an array states what the values are that were never written."""
        for kind, begin, length in self._messages(address):
            if kind == _FILL and length:
                version, flags = self._data[begin], self._data[begin + 1]
                begin += 2 if version > 2 else 4
                given = flags & 0x20 if version > 2 else version == 1 or self._data[begin - 1]
                if not given:
                    continue
            if kind in (_FILL, _OLD_FILL):
                size = int.from_bytes(self._data[begin : begin + 4], "little")
                if any(self._data[begin + 4 : begin + 4 + min(size, length)]):
                    return True
        return False

    @contextmanager
    def _inside(self, address: int) -> Iterator[None]:
        """Places outside of the file become a CorruptSourceError."""
        try:
            yield
        except (struct.error, IndexError, OverflowError) as error:
            raise self._damaged(f"the object at byte {address} leads out of it") from error

    def _damaged(self, what: str) -> CorruptSourceError:
        message = f"{self._name} is not a whole HDF5 file: {what}"
        return CorruptSourceError(message, hint="fetch it again, or use another mirror (--mirror)")

    def _get(self, form: str, address: int) -> tuple[int, ...]:
        return struct.unpack_from("<" + form, self._data, self._base + address)

    def _messages(self, address: int) -> Iterator[tuple[int, int, int]]:
        """Kind, beginning (in the file) and length of each message of a header."""
        data, at = self._data, self._base + address
        later = data[at : at + 4] == b"OHDR"
        if later:
            flags = data[at + 5]
            begin, width = at + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0), 1 << (flags & 3)
            length = int.from_bytes(data[begin : begin + width], "little")
            head, form, begin = (6 if flags & 4 else 4), struct.Struct("<BH"), begin + width
        else:
            head, form, begin = 8, struct.Struct("<HH"), at + 16
            (length,) = struct.unpack_from("<I", data, at + 8)
        spans, left = [(begin, begin + length)], len(data)
        for begin, end in spans:
            left -= max(end - begin, 8)
            if left < 0 or end > len(data):
                raise self._damaged(f"the header at byte {at} has no end")
            while begin + head <= end:
                kind, length = form.unpack_from(data, begin)
                begin += head
                yield kind, begin, length
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

    def _members(self, tree: int, heap: int) -> None:
        """A group as HDF5 has always had it: a tree, and a heap of names."""
        self._old_tree(tree, 0, 16)
        if self._own(heap) and self._data[self._base + heap : self._base + heap + 4] == b"HEAP":
            self._own(*self._get("Q", heap + 24))

    def _old_tree(self, root: int, kind: int, step: int) -> None:
        """``step``: bytes from child to child. Levels go down."""
        nodes = [(root, 256)]
        for node, above in nodes:
            at = self._base + node
            if not self._own(node) or self._data[at : at + 5] != b"TREE" + bytes([kind]):
                continue
            level, used = self._get("BH", node + 5)
            if level >= above:
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
        if head[:4] != (b"FAHD" if fixed else b"EAHD"):
            return  # HDF5 refuses it
        (count,) = self._get("Q", address + (8 if fixed else 44))
        sound = count >= grid and head[7] == 10 if fixed else head[7:12] == _GROWING
        if head[5] != packed or head[6] != value or count > len(self._data) or not sound:
            raise self._damaged(f"the table of chunks at byte {at} is damaged")

    def _tree(self, address: int, kind: int, record: int) -> int:
        """How many records there are in a tree. Raises CorruptSourceError for one that HDF5 would not have written."""
        at = self._base + address
        if not self._own(address) or self._data[at : at + 4] != b"BTHD":
            return 0  # HDF5 refuses it
        damaged = self._damaged(f"the tree at byte {at} is damaged")
        found, size, length, depth, _, root, used, total = self._get("BIHHHQHQ", address + 5)
        if found != kind or length != record or depth > _DEEPEST_TREE or not 64 <= size <= _LARGEST_NODE:
            raise damaged
        # By level: how many records fit into a node, and how many bytes a child takes behind them.
        fits, steps = [(size - 10) // record], [0]
        counted, every = -(-fits[0].bit_length() // 8), fits[0]
        for level in range(1, depth + 1):
            steps.append(8 + counted + (-(-every.bit_length() // 8) if level > 1 else 0))
            fits.append((size - 10 - steps[level]) // (record + steps[level]))
            every = (fits[level] + 1) * every + fits[level]
        nodes, records = [(root, used, depth)], 0
        for node, used, level in nodes:
            if not self._own(node):
                continue
            records += used
            if used > fits[level] or records > total:
                raise damaged
            if not level or self._data[self._base + node : self._base + node + 4] != b"BTIN":
                continue
            for step in range(used + 1):
                place = self._base + node + 6 + used * record + step * steps[level]
                (child,) = struct.unpack_from("<Q", self._data, place)
                nodes.append((child, int.from_bytes(self._data[place + 8 : place + 8 + counted], "little"), level - 1))
        if records != total:
            raise damaged
        return total

    def _heap(self, address: int, place: int) -> None:
        """A heap of members or attributes, whose blocks are each there once."""
        at = self._base + address
        if not self._own(address) or self._data[at : at + 4] != b"FRHP":
            return
        length, filters, huge = *self._get("HH", address + 5), *self._get("Q", address + 22)
        width, start, largest, bits, _, root, rows = self._get("HQQHHQH", address + 110)
        damaged = self._damaged(f"the heap at byte {at} is damaged")
        powers = all(number and not number & number - 1 for number in (width, start, largest))
        if length != place or filters or not powers or width > _WIDEST_HEAP or rows > _MOST_ROWS or bits > 64:
            raise damaged
        self._tree(huge, *_HUGE)
        direct = largest.bit_length() - start.bit_length() + 2
        blocks = [(root, rows)] if rows else []
        for block, rows in blocks:
            if not self._own(block) or self._data[self._base + block : self._base + block + 4] != b"FHIB":
                continue
            children = self._get(f"{rows * width}Q", block + 13 + -(-bits // 8))
            for row in range(direct, rows):
                inside = max(0, (start << row - 1).bit_length() - (start * width).bit_length() + 1)
                blocks += [(child, inside) for child in children[row * width : (row + 1) * width]]


def superblock(data: Any) -> int | None:
    """Where the addresses of a file count from; None where HDF5 finds no file."""
    begin = 0
    while data[begin : begin + 8] != b"\x89HDF\r\n\x1a\n":
        begin = max(512, 2 * begin)
        if begin + 96 > len(data):
            return None
    return begin
