"""Keys, leaves and schemas; the manifest that holds them."""

from __future__ import annotations

import json
import threading

import pytest
import torch
from rbdata.errors import DamagedDatasetError, DatasetNotFoundError, SchemaError
from rbdata.storage import durable
from rbdata.storage import manifest as manifests
from rbdata.storage.durable import write_atomically
from rbdata.storage.leaf import DTYPES, check_key
from rbdata.storage.manifest import FILENAME, Manifest, read_manifest, write_manifest
from rbdata.storage.schema import Leaf, Schema, clean_keys, ted_flags
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict

# -- keys -----------------------------------------------------------------------------------------------------------


LEGAL = ["a", "observation", "next/reward", "A_1/b2/c__", "0", "info/index", "meta", "parts/x", "k" * 200]


@pytest.mark.parametrize("key", LEGAL)
def test_legal_keys(key):
    check_key(key)


@pytest.mark.parametrize(
    "key",
    [
        *(
            "",
            "/",
            "a/",
            "/a",
            "a//b",
            ".",
            "..",
            "../a",
            "a/../b",
            "a.b",
            "a b",
            "%",
            "a%2Fb",
            "é",
            "a\n",
            "a\0",
            "-",
            "~",
        ),
        *(
            "index",
            "mask",
            "episodes",
            "episodes/start",
            "shape",
            "device",
            "_type",
            "a/shape",
            "device/a",
            "next/_type",
            "meta.json",
            "a/meta.json",
            "a/meta.json/b",
            "k\ud800",
            "k" * 201,
            "/".join(["k" * 67] * 3),
        ),
    ],
)
def test_illegal_keys(key):
    with pytest.raises(SchemaError):
        check_key(key)
    with pytest.raises(SchemaError):
        Leaf(key, "step", "int64", ())


def test_clean_keys_maps_to_legal_keys():
    names = ["a.b", "a b/c%d", "%", "", "x//y", "ok", "shape", "info/device", "index", "mask", "meta"]
    for name in names:
        check_key(clean_keys([name])[name])
    assert clean_keys(["a.b", "shape", "x//y"]) == {"a.b": "a_b", "shape": "shape_", "x//y": "x/_/y"}
    assert clean_keys(["info/device", "index/a"]) == {"info/device": "info/device_", "index/a": "index_/a"}


@pytest.mark.parametrize("names", [["a.b", "a_b"], ["a b", "a.b"], ["%", ""], ["a", "a"], ["shape", "shape_"]])
def test_clean_keys_refuses_collisions_naming_both(names):
    with pytest.raises(SchemaError) as caught:
        clean_keys(names)
    assert all(repr(name) in str(caught.value) for name in names)


@pytest.mark.parametrize("name", ["..", ".", "../../etc/passwd", "a/../b", "a/."])
def test_clean_keys_refuses_to_leave_the_folder(name):
    with pytest.raises(SchemaError, match="leave its folder"):
        clean_keys([name])


def test_names_that_differ_in_case_alone_become_different_files():
    """On many disks they would be one."""
    assert clean_keys(["Pos", "pos", "POS"]) == {"Pos": "Pos", "pos": "pos_", "POS": "POS__"}
    assert clean_keys(["A/x", "a/y", "A/X"]) == {"A/x": "A/x", "a/y": "a_/y", "A/X": "A/X_"}
    for names in (["info/a", "info/A"], ["info/a", "INFO/b"]):
        with pytest.raises(SchemaError, match="case"):
            Schema(tuple(Leaf(name, "step", "float32", (1,)) for name in names))


def test_cleaned_keys_open_in_tensordict(tmp_path):
    """The point of the rules: whatever the provider's names, plain tensordict sees every leaf."""
    names = ["a.b", "c d/e%f", "%g", "shape", "info/device", "info/_type", "UPPER", "0"]
    cleaned = clean_keys(names)
    episodes = make_episodes([2, 3], **{key.replace("/", "__"): ((2,), "float32") for key in cleaned.values()})
    loaded = TensorDict.load_memmap(write_dataset(tmp_path, episodes))
    for key in cleaned.values():
        assert loaded[tuple(key.split("/"))].shape == (5, 2)


# -- leaves and schemas ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "row"},
        {"dtype": "bfloat16"},
        {"dtype": ">f4"},
        {"codec": "gzip"},
        {"shape": (0,)},
        {"shape": (3, -1)},
        {"constant": "no"},
        {"constant": 1 << 63},
        {"constant": 0.5},
        {"constant": float("nan")},
        {"constant": 2, "dtype": "bool"},
        {"constant": -1, "dtype": "uint8"},
        {"constant": 10**400, "dtype": "float32"},
        {"name": "next/x", "kind": "state"},
    ],
)
def test_bad_leaves(change):
    with pytest.raises(SchemaError):
        Schema((Leaf(**{"name": "x", "kind": "step", "dtype": "int64", "shape": (), **change}),))


@pytest.mark.parametrize("dtype", DTYPES)
def test_leaf_round_trip(dtype):
    for shape in ((), (1,), (2, 3, 5)):
        for leaf in (Leaf("a/b", "step", dtype, shape), Leaf("a", "state", dtype, shape, "zstd")):
            assert Leaf.from_json(json.loads(json.dumps(leaf.to_json()))) == leaf
            assert leaf.row_bytes == torch.empty(shape, dtype=getattr(torch, dtype)).nbytes


@pytest.mark.parametrize("constant", [False, True, 0, 3, 0.5])
def test_constant_round_trip(constant):
    leaf = Leaf("a", "step", "float32", (1,), constant=constant)
    again = Leaf.from_json(json.loads(json.dumps(leaf.to_json())))
    assert again == leaf
    assert type(again.constant) is type(constant)


GOOD = Leaf("x", "step", "int64", (2,)).to_json()


@pytest.mark.parametrize(
    "record",
    [
        *(None, 3, "leaf", [], {}),
        *(
            {**GOOD, "shape": "no"},
            {**GOOD, "shape": ["a"]},
            {**GOOD, "shape": None},
            {**GOOD, "shape": [2, True]},
            {**GOOD, "kind": []},
        ),
        *({**GOOD, "dtype": None}, {**GOOD, "name": "../x"}, {**GOOD, "constant": []}),
    ],
)
def test_malformed_leaf_records(record):
    with pytest.raises(SchemaError):
        Leaf.from_json(record)


def leaf(name: str, kind: str = "step") -> Leaf:
    return Leaf(name, kind, "int64", ())


@pytest.mark.parametrize(
    "leaves",
    [
        [leaf("a"), leaf("a")],
        [leaf("a"), leaf("a", "state")],
        [leaf("a"), leaf("a/b")],
        [leaf("a/b/c"), leaf("a/b")],
        [leaf("a", "state"), leaf("next/a")],
        [leaf("a", "state"), leaf("next/a/b")],
        [leaf("a/b", "state"), leaf("next/a")],
        [leaf("a/b", "state"), leaf("next")],
    ],
)
def test_schemas_with_keys_in_each_others_way(leaves):
    with pytest.raises(SchemaError):
        Schema(tuple(leaves))


# -- manifest -------------------------------------------------------------------------------------------------------


def example() -> Manifest:
    return Manifest(
        id="my/test",
        schema=Schema((leaf("a", "state"), *ted_flags())),
        steps=2**40,
        episodes=3,
        source={"name": "test", "objects": [{"name": "é", "size": 1}]},
        counts={"by_length": {3: 1, 10: 2}, "ratio": 0.1 + 0.2},
        returns={"mean": float("nan"), "std": 0.0, "min": float("-inf"), "max": float("inf")},
        files={"a.memmap": [[8, "00000000"]]},
        notes=["ünï"],
    )


def test_manifest_round_trip(tmp_path):
    manifest = example()
    write_manifest(tmp_path, manifest)
    again = read_manifest(tmp_path)
    assert again.to_json()["checksum"] == manifest.to_json()["checksum"]
    assert again.schema == manifest.schema and again.steps == 2**40
    assert again.counts["ratio"] == 0.1 + 0.2
    write_manifest(tmp_path / ".", again)
    assert read_manifest(tmp_path).to_json()["checksum"] == manifest.to_json()["checksum"]


def test_unknown_keys_are_ignored(tmp_path):
    record = example().to_json()
    record["from_the_future"] = 1
    record["checksum"] = manifests._checksum(record)
    (tmp_path / FILENAME).write_text(json.dumps(record))
    assert read_manifest(tmp_path).id == "my/test"


def test_newer_version(tmp_path):
    record = example().to_json()
    record["format_version"] = manifests.FORMAT_VERSION + 1
    (tmp_path / FILENAME).write_text(json.dumps(record))
    with pytest.raises(DatasetNotFoundError, match=f"format version {manifests.FORMAT_VERSION + 1}") as caught:
        read_manifest(tmp_path)
    assert "upgrade" in (caught.value.hint or "")


@pytest.mark.parametrize("version", [None, "1", 1.0, []])
def test_version_of_another_kind(tmp_path, version):
    record = {**example().to_json(), "format_version": version}
    (tmp_path / FILENAME).write_text(json.dumps(record))
    with pytest.raises(DatasetNotFoundError):
        read_manifest(tmp_path)


def test_every_edited_byte_is_noticed(tmp_path):
    """Whatever byte is changed: an error of ours, or (white space) the same content."""
    write_manifest(tmp_path, example())
    path = tmp_path / FILENAME
    good = path.read_bytes()
    want = example().to_json()["checksum"]
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        try:
            found = read_manifest(tmp_path)
        except (DatasetNotFoundError, DamagedDatasetError):
            continue
        assert found.to_json()["checksum"] == want, at


def test_truncated_anywhere(tmp_path):
    write_manifest(tmp_path, example())
    path = tmp_path / FILENAME
    good = path.read_bytes()
    for length in range(0, len(good) - 2, 5):
        path.write_bytes(good[:length])
        with pytest.raises(DamagedDatasetError):
            read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"", DamagedDatasetError),
        (b"\xff\xfe", DamagedDatasetError),
        (b"[" * 100_000, DamagedDatasetError),
        (b"1" * 5_000, DamagedDatasetError),
        (b"[]", DatasetNotFoundError),
        (b"3", DatasetNotFoundError),
        (b'{"format": "other"}', DatasetNotFoundError),
        (b'{"format": "rbdata", "format_version": 1}', DamagedDatasetError),
    ],
)
def test_other_contents(tmp_path, text, error):
    (tmp_path / FILENAME).write_bytes(text)
    with pytest.raises(error):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": -1},
        {"steps": "2"},
        {"episodes": None},
        {"files": []},
        {"leaves": None},
        {"leaves": [3]},
    ],
)
def test_well_signed_nonsense(tmp_path, change):
    record = {**example().to_json(), **change}
    record["checksum"] = manifests._checksum(record)
    (tmp_path / FILENAME).write_text(json.dumps(record))
    with pytest.raises(DamagedDatasetError):
        read_manifest(tmp_path)


def test_missing_manifest(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for folder in (tmp_path, tmp_path / "nothing", file):
        with pytest.raises(DatasetNotFoundError):
            read_manifest(folder)


def test_atomic_write_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "x"
    write_atomically(path, b"old")

    def broken(_):
        raise OSError("disk full")

    monkeypatch.setattr(durable.os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_atomic_write_is_never_seen_half_done(tmp_path):
    path = tmp_path / "x"
    contents = [b"a" * 200_000, b"b" * 100_000]
    write_atomically(path, contents[0])
    stop = threading.Event()
    seen = []

    def look():
        while not stop.is_set():
            seen.append(path.read_bytes() in contents)

    watcher = threading.Thread(target=look)
    watcher.start()
    for number in range(100):
        write_atomically(path, contents[number % 2])
    stop.set()
    watcher.join()
    assert seen and all(seen)
