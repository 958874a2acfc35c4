"""HDF5 files whose headers lead to what would end HDF5 (an abort, a wrong access to memory), or hang it, or take gigabytes."""

from __future__ import annotations

import struct

import h5py
import numpy as np
import pytest
from hdf5_mutations import lookup3, sealed, tables_of_chunks, write_of_every_kind
from rbdata.datasets.formats.hdf5_checks import check_storage, check_structure
from rbdata.datasets.formats.hdf5_headers import Headers
from rbdata.errors import CorruptSourceError

LATER = {"libver": "latest", "track_order": True}
ARRAYS = {name: np.zeros((9, 3), "f4") for name in "abcdefg"}


def check(path):
    """Every object of a file, before HDF5 goes into it."""
    check_structure(path, "x")
    headers = Headers.of(path, "x")
    with h5py.File(path) as file:
        addresses = []
        file.id.links.visit(lambda _, info: addresses.append(info.u) or headers.check(info.u), info=True)
    return addresses


def every_address(path):
    """The addresses of a sound file's objects, the root's first."""
    with h5py.File(path) as file:
        found = [h5py.h5o.get_info(file.id).addr]
        file.visititems(lambda _, item: found.append(h5py.h5o.get_info(item.id).addr))
    return found


def refused(path, data, addresses, match):
    path.write_bytes(data)
    with pytest.raises(CorruptSourceError, match=match):
        headers = Headers.of(path, "x")
        headers.check_root()
        for address in addresses:
            headers.check(address)


@pytest.fixture(scope="module", params=[{}, LATER, {"track_order": True}, {"userblock_size": 1024, **LATER}], ids=str)
def sound(request, tmp_path_factory):
    return write_of_every_kind(tmp_path_factory.mktemp("sound") / "x", ARRAYS, "groups", **request.param)


@pytest.fixture(scope="module")
def later(tmp_path_factory):
    return write_of_every_kind(tmp_path_factory.mktemp("later") / "x", ARRAYS, "groups", **LATER)


def test_sound_files(sound):
    assert len(check(sound)) == len(every_address(sound)) - 1


def test_jenkins_hash(later):
    """The values of his own test, and all seals of a file that HDF5 wrote."""
    assert lookup3(b"Four score and seven years ago") == 0x17770551
    assert sealed(later.read_bytes()) == later.read_bytes()


def test_an_array_without_a_space(tmp_path):
    with h5py.File(tmp_path / "x", "w", libver="latest") as file:
        array = file.create_dataset("a", (9,), "f4", chunks=(3,), compression="gzip")
        array[:] = 1
        address = h5py.h5o.get_info(array.id).addr
    data = bytearray((tmp_path / "x").read_bytes())
    begin = next(begin for kind, begin, *_ in Headers.of(tmp_path / "x", "x")._messages(address) if kind == 1)
    data[begin - 4] = 0  # an empty message in its place
    refused(tmp_path / "y", sealed(bytes(data)), [address], "lacks a part")


def test_seals_of_tables_of_chunks(tmp_path):
    """In a file that was changed before, whose seals are not right, they are not searched for."""
    with h5py.File(tmp_path / "x", "w", libver="latest") as file:
        for name, most in (("fixed", 700), ("growing", None)):
            file.create_dataset(name, (700,), "f4", chunks=(1,), maxshape=(most,), compression="gzip")[:] = 1
    data = (tmp_path / "x").read_bytes()
    found = [data[at : at + 4] for at, _ in tables_of_chunks(data)]
    assert all(found.count(word) == data.count(word) for word in (b"FADB", b"EAIB", b"EADB", b"EASB"))
    assert found.count(b"EASB") > 1 and max(end - at for at, end in tables_of_chunks(data)) > 5000
    assert not tables_of_chunks(
        data.replace(b"ADB\0", b"ADB\1").replace(b"EAIB\0", b"EAIB\1").replace(b"EASB\0", b"EASB\1")
    )


def places(data, word):
    at = data.find(word)
    while at >= 0:
        yield at
        at = data.find(word, at + 1)


def put(data, at, form, *values):
    data = bytearray(data)
    struct.pack_into("<" + form, data, at, *values)
    return sealed(data)


def test_trees_that_lead_back_to_themselves(tmp_path):
    with h5py.File(tmp_path / "sound", "w") as file:
        file["group/x"] = 1
        file.create_dataset("packed", (200, 3), "f4", chunks=(1, 3), compression="gzip")[:] = 1
    data, addresses = (tmp_path / "sound").read_bytes(), every_address(tmp_path / "sound")
    nodes = list(places(data, b"TREE"))
    assert {data[at + 4] for at in nodes} == {0, 1} and max(data[at + 5] for at in nodes) == 1
    for at in nodes:
        one = put(data, at + 5, "B", max(1, data[at + 5]))
        child = at + 24 + (8 if not data[at + 4] else 8 + 8 * 3)  # behind a key; 2 dimensions and the bytes of a value
        refused(tmp_path / "x", put(one, child, "Q", at), addresses, "belongs to two|the tree at byte")


@pytest.mark.parametrize(
    ("word", "at", "form", "value", "match"),
    [
        (b"BTHD", 6, "I", 1 << 30, "the tree at byte"),  # bytes of a node, which are allocated: 2 GB
        (b"BTHD", 10, "H", 3, "the tree at byte"),  # of a record
        (b"BTHD", 12, "H", 300, "the tree at byte"),  # levels
        (b"BTHD", 24, "H", 60000, "the tree at byte"),  # records in the root
        (b"BTHD", 26, "Q", 2, "the tree at byte"),  # records in all: of a table that HDF5 writes beyond
        (b"BTHD", 5, "B", 9, "the tree at byte"),  # another kind of record
        (b"FRHP", 5, "H", 9, "the heap at byte"),  # bytes of a place in it
        (b"FRHP", 7, "H", 20, "the heap at byte|leads out"),  # filters
        (b"FRHP", 110, "H", 1 << 15, "the heap at byte"),  # blocks in a row
        (b"FRHP", 140, "H", 2000, "the heap at byte"),  # rows
        (
            b"FRHP",
            112,
            "Q",
            1 << 17,
            "the heap at byte",
        ),  # bytes of the first block, of the largest: read for each name
        (b"FRHP", 120, "Q", 1 << 22, "the heap at byte"),
        (b"FAHD", 5, "B", 0, "the table of chunks"),  # without filters, which these chunks have
        (b"FAHD", 8, "Q", 1 << 60, "the table of chunks"),  # chunks: HDF5 goes from one to the next
        (b"FAHD", 8, "Q", 1, "the table of chunks"),  # fewer than the array has
        (b"EAHD", 5, "B", 1, "the table of chunks"),
        (b"EAHD", 6, "B", 1, "the table of chunks"),  # bytes of what it holds for a chunk
        (b"EAHD", 44, "Q", 1 << 60, "the table of chunks"),
    ],
)
def test_numbers_that_hdf5_does_not_write(later, tmp_path, word, at, form, value, match):
    data = later.read_bytes()
    first = next(places(data, word))
    refused(tmp_path / "x", put(data, first + at, form, value), every_address(later), match)


@pytest.mark.parametrize("node", [b"BTLF\0\x08", b"BTLF\0\x09"])
def test_attributes_that_are_kept_apart(later, tmp_path, node):
    """HDF5 reads them from the heap of shared messages, also where a file has none: a wrong access to memory."""
    data = later.read_bytes()
    for at in places(data, node):
        refused(tmp_path / "x", put(data, at + 14, "B", data[at + 14] | 2), every_address(later), "the tree at byte")
    assert node in data


def test_branches_that_meet_again(later, tmp_path):
    """A tree or heap of a few levels would be gone through billions of times, or written beyond the end of a table."""
    data, addresses = later.read_bytes(), every_address(later)
    for word, first, step in ((b"BTIN", 6 + 5 * 11, 9), (b"FHIB", 5 + 8 + 4, 8)):
        for node in places(data, word):
            if word == b"BTIN" and data[node + 5] != 5:
                continue
            (child,) = struct.unpack_from("<Q", data, node + first)
            if word == b"FHIB":
                continue  # blocks of rows alone: see below
            for used in range(1, 12):
                place = node + 6 + used * 11
                (child,) = struct.unpack_from("<Q", data, place)
                if data[child : child + 4] == b"BTLF":
                    refused(tmp_path / "x", put(data, place + step, "Q", child), addresses, "belongs to two|the tree")
                    break
            else:
                raise AssertionError("no child")
    heap = data.index(b"FRHP")
    (root,) = struct.unpack_from("<Q", data, heap + 132)
    deep = bytearray(data) + bytes(8192)
    ring = len(data)
    deep[ring : ring + 17] = b"FHIB" + bytes(13)
    for place in range(ring + 17, ring + 17 + 8 * 4 * 40, 8):
        struct.pack_into("<Q", deep, place, ring)
    struct.pack_into("<QH", deep, heap + 132, ring, 40)
    refused(tmp_path / "x", bytes(deep), addresses, "the heap at byte")
    assert root


def test_nodes_of_old_trees(tmp_path):
    """Where one is of megabytes, 250 inside each other take a gigabyte, though they share their bytes."""
    with h5py.File(tmp_path / "sound", "w", libver="earliest") as file:
        file["group/x"] = 1
    data = (tmp_path / "sound").read_bytes()
    for at in (16, 18):
        refused(tmp_path / "x", put(data, at, "H", 1000), [], "its trees have nodes of 2000 entries")
    refused(tmp_path / "x", put(put(data, 24, "H", 1000), 8, "B", 1), [], "its trees have nodes of 2000 entries")
    data = with_extension(tmp_path / "sound").read_bytes()
    at = data.index(b"\x17", *struct.unpack_from("<Q", data, 20))
    for place in range(3):
        sizes = [1000 if one == place else 16 for one in range(3)]
        one = put(put(data, at, "B", 19), at + 4, "BHHH", 0, *sizes)
        refused(tmp_path / "x", one, [], "its trees have nodes of 2000 entries")


def test_heaps_that_share_their_bytes(tmp_path):
    """HDF5 reads the names of a group whenever it looks for one, and a large attribute: megabytes for each of thousands."""
    with h5py.File(tmp_path / "sound", "w", libver="earliest") as file:
        file["one/x"], file["two/x"] = 1, 2
    data, addresses = (tmp_path / "sound").read_bytes(), every_address(tmp_path / "sound")
    for heap in list(places(data, b"HEAP"))[1:]:
        data = put(data, heap + 8, "Q", len(data) // 2)
    refused(tmp_path / "x", data, addresses, "its heaps state")
    data = put(data, data.rindex(b"HEAP") + 8, "Q", 2 << 20)
    refused(tmp_path / "x", data + bytes(2 << 20), addresses, "the names in one group take 2097152 bytes")
    with h5py.File(tmp_path / "sound", "w", libver="latest") as file:
        for number in range(3):
            file.attrs[f"{number}"] = np.zeros(9000 + number)
    check(tmp_path / "sound")
    data = (tmp_path / "sound").read_bytes()
    leaf = data.index(b"BTLF\0\1")
    for record in range(leaf + 6, leaf + 6 + 3 * 24, 24):
        data = put(data, record + 8, "Q", len(data) // 2)
    refused(tmp_path / "x", data, every_address(tmp_path / "sound"), "its heaps state")


def test_what_two_objects_share(tmp_path):
    """HDF5 keeps what it has read for the first of them, and takes it for that of the second."""
    with h5py.File(tmp_path / "sound", "w") as file:
        file["one/x"], file["two/x"] = 1, 2
    data, addresses = (tmp_path / "sound").read_bytes(), every_address(tmp_path / "sound")
    root, first, second = places(data, b"HEAP")
    segment = data[root + 24 : root + 32]
    refused(tmp_path / "x", data[: first + 24] + segment + data[first + 32 :], addresses[1:], "belongs to two")
    segment = data[first + 24 : first + 32]
    refused(
        tmp_path / "x",
        data[: second + 24] + segment + data[second + 32 :],
        addresses,
        "belongs to two|the tree at byte",
    )


def test_headers_without_end(tmp_path):
    with h5py.File(tmp_path / "sound", "w", libver="latest") as file:
        group = file.create_group("group")
        group.attrs["a"] = 1
        file.create_group("behind")
        file.flush()
        for number in range(7):
            group.attrs[f"{number}"] = "a" * 40
    data, addresses = bytearray((tmp_path / "sound").read_bytes()), every_address(tmp_path / "sound")
    rest = data.index(b"OCHK")
    data[rest + 4 : rest + 8] = b"\x10\x10\0\0"
    struct.pack_into("<QQ", data, rest + 8, rest, 64)
    refused(tmp_path / "x", bytes(data), addresses, "has no end|kept apart")
    struct.pack_into("<QQ", data, rest + 8, 1 << 63, 64)
    refused(tmp_path / "x", bytes(data), addresses, "has no end|leads out of it|kept apart")


def with_extension(path):
    """A file that says how its free space is kept."""
    properties = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    properties.set_file_space_strategy(h5py.h5f.FSPACE_STRATEGY_PAGE, True, 1)
    with h5py.File(h5py.h5f.create(bytes(path), fcpl=properties)) as file:
        file["x"] = np.zeros((3, 70000), "u1")
    return path


@pytest.mark.parametrize("kind", [15, 24])
def test_what_nobody_asks_hdf5_to_write(tmp_path, kind):
    """Messages that objects share may be of any length; an image of the cache is read in place of what is in the file."""
    check(with_extension(tmp_path / "sound"))
    data = (tmp_path / "sound").read_bytes()
    (extension,) = struct.unpack_from("<Q", data, 20)
    (tmp_path / "x").write_bytes(put(data, data.index(b"\x17", extension), "B", kind))
    with pytest.raises(CorruptSourceError, match="which is not read"):
        check(tmp_path / "x")


def test_files_that_end_in_their_superblock(sound, tmp_path):
    for length in range(16, 120, 4):
        (tmp_path / "x").write_bytes(sound.read_bytes()[:length])
        with pytest.raises((CorruptSourceError, OSError), match=r"leads out of it|has no end|open"):
            check_structure(tmp_path / "x", "x")
            h5py.File(tmp_path / "x")


@pytest.mark.parametrize(
    ("word", "at", "form", "value", "match"),
    [
        (b"BTHD", 14, "B", 50, "the tree at byte"),  # percents of a node that is split
        (b"FRHP", 22, "Q", 1 << 40, "what is at byte"),  # HDF5 refuses it, and cannot close the file then
        (b"FHDB", 5, "Q", 48, "what is at byte"),  # the block of a heap that names another
        (b"FHDB", 13, "B", 9, "what is at byte"),  # and another place in it
        (b"FHIB", 13, "B", 9, "what is at byte"),
        (b"BTLF", 5, "B", 6, "what is at byte"),
        (b"EAIB", 6, "Q", 48, "what is at byte"),  # tables of chunks: the block of another
        (b"EADB", 6, "Q", 48, "what is at byte"),
        (b"FADB", 6, "Q", 48, "what is at byte"),
    ],
)
def test_what_pins_an_entry_of_the_cache(later, tmp_path, word, at, form, value, match):
    data = later.read_bytes()
    if word == b"FHIB" and word not in data:
        pytest.skip("all in one block")
    refused(tmp_path / "x", put(data, data.index(word) + at, form, value), every_address(later), match)


def test_counts_of_branches(tmp_path):
    """HDF5 looks for a record by its number, and beyond the last branch where the counts are too low."""
    with h5py.File(tmp_path / "sound", "w", **LATER) as file:
        for number in range(1200):
            file.create_group(f"group-{number}")
    data, root = (tmp_path / "sound").read_bytes(), every_address(tmp_path / "sound")[:1]
    check(tmp_path / "sound")
    tree = data.index(b"BTHD")
    record, depth, node, used = *struct.unpack_from("<HH", data, tree + 10), *struct.unpack_from("<QH", data, tree + 16)
    assert depth == 2
    place = node + 6 + used * record + 8 + 1
    (held,) = struct.unpack_from("<H", data, place)
    refused(tmp_path / "x", put(data, place, "H", held - 1), root, "the tree at byte")


def test_fill_values_of_another_size(tmp_path):
    """HDF5 copies as many bytes as a value has."""
    with h5py.File(tmp_path / "sound", "w") as file:
        file.create_dataset("x", (3,), "f8", fillvalue=1.5)
    data, addresses = (tmp_path / "sound").read_bytes(), every_address(tmp_path / "sound")
    at = data.index(struct.pack("<Id", 8, 1.5))
    refused(tmp_path / "x", put(data, at, "I", 4), addresses, "its fill value not")


def test_types_of_objects(tmp_path):
    """Values of any length that are neither a text nor a sequence: HDF5 calls a function that is not there."""
    with h5py.File(tmp_path / "sound", "w") as file:
        file.create_dataset("x", (3,), h5py.vlen_dtype("u1"))
        file["type"] = np.dtype([("a", "i4"), ("b", "f8", (2,))])
        file.create_dataset("y", (3,), file["type"])
    data, addresses = (tmp_path / "sound").read_bytes(), every_address(tmp_path / "sound")
    check(tmp_path / "sound")
    for bits in (2, 8):
        at = data.index(struct.pack("<BBBBI", 0x19, 0, 0, 0, 16))
        refused(tmp_path / "x", put(data, at + 1, "B", bits), addresses, "the type at byte")
        with h5py.File(tmp_path / "x") as file, pytest.raises(CorruptSourceError, match="a type that is not read"):
            check_storage(file["x"].id, Headers.of(tmp_path / "x", "x"), "x", least=1 << 16, size=1 << 20)
