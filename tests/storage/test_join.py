"""Parts are joined: the same bytes whatever the parts are, checksums of ranges and blocks, and joins that are killed."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import torch
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import DamagedDatasetError, RbdataError
from rbdata.storage import join as joining
from rbdata.storage.checksums import BLOCK, CELL, Cells, crc32c, cut_file, join_cuts, place_cells, sum_cells
from rbdata.storage.dataset import Dataset
from rbdata.storage.folder import DatasetPlace
from rbdata.storage.integrity import verify
from rbdata.storage.join import _join_file
from rbdata.storage.leaf import Leaf
from rbdata.storage.manifest import FILENAME, read_manifest
from rbdata.storage.work import JOIN
from storage_tools import LAYOUTS, Recipe, Stopped, columns, contents, make_episodes, names, write_dataset

LENGTHS = [0, 1, CELL - 1, CELL, CELL + 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + CELL // 3, 3 * BLOCK + 5]


def noise(size: int, seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def test_cells_of_pieces_and_of_a_whole(tmp_path: Path) -> None:
    data = noise(2 * CELL + 9, 1)
    (tmp_path / "x").write_bytes(b"before" + data + b"after")
    cells = Cells()
    for low, high in ((0, 0), (0, 7), (7, CELL + 1), (CELL + 1, len(data))):
        cells.update(np.frombuffer(data, np.uint8)[low:high])
    assert cells.record == sum_cells(tmp_path / "x", 6, len(data))
    assert (cells.record[0], len(cells.record[1])) == (len(data), 3 * 8)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_blocks_of_a_file_follow_from_the_cells_of_its_pieces(seed: int, tmp_path: Path) -> None:
    """Whatever the lengths of the pieces are, and wherever they lie in their own files."""
    chance = random.Random(seed)
    cuts, whole = [], b""
    for number in range(6):
        data, skipped = noise(chance.choice(LENGTHS), number), chance.choice([0, 3, CELL])
        path = tmp_path / str(number)
        path.write_bytes(bytes(skipped) + data + b"more")
        length, cells = sum_cells(path, skipped, len(data))
        cuts += place_cells(path, skipped, length, cells, len(whole))
        whole += data
    (tmp_path / "whole").write_bytes(whole)
    (blocks,) = cut_file(tmp_path / "whole", [len(whole)])
    assert join_cuts(cuts) == blocks
    assert blocks == [(len(one), crc32c(one)) for at in range(0, len(whole), BLOCK) if (one := whole[at : at + BLOCK])]


def make_parts(folder: Path, chance: random.Random) -> tuple[list[tuple[Path, int, int]], bytes]:
    """Sources of a join: whole files, several ranges of one file that alternate with others, and a file of another folder."""
    folder.mkdir()
    (folder.parent / "old").write_bytes(noise(999, 0))
    sources, whole = [(folder.parent / "old", 100, 500)] if chance.random() < 0.5 else [], b""
    for number in range(5):
        (folder / f"{number}.rows").write_bytes(noise(chance.randrange(1, 3000), number))
        sources.append((folder / f"{number}.rows", 0, (folder / f"{number}.rows").stat().st_size))
    (folder / "twice.rows").write_bytes(noise(2000, 9))
    sources.insert(chance.randrange(len(sources)), (folder / "twice.rows", 1200, 800))
    sources.append((folder / "twice.rows", 0, 1200))
    for path, offset, length in sources:
        whole += path.read_bytes()[offset : offset + length]
    return sources, whole


class Killed(BaseException):
    pass


@pytest.mark.parametrize("seed", range(4))
def test_a_join_that_is_killed_goes_on(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every removal, before and after it, and in the middle of every copy."""
    chance = random.Random(seed)
    monkeypatch.setattr(joining, "_TOGETHER", chance.choice([1, 1500, 1 << 20]))
    copy, unlink = joining._copy_range, Path.unlink
    for at in range(40):
        touches = iter(range(1000))
        folder = tmp_path / str(at) / "parts"
        folder.parent.mkdir()
        sources, whole = make_parts(folder, random.Random(seed))

        def touch(at: int = at, touches=touches) -> None:
            if next(touches) == at:
                raise Killed

        def copying(path: Path, offset: int, length: int, file, touch=touch) -> None:
            copy(path, offset, length // 2, file)
            touch()
            copy(path, offset + length // 2, length - length // 2, file)

        def unlinking(path: Path, missing_ok: bool = False, touch=touch) -> None:
            touch()
            unlink(path, missing_ok=missing_ok)
            touch()

        target = folder.parent / "leaf"
        with monkeypatch.context() as patched:
            patched.setattr(joining, "_copy_range", copying)
            patched.setattr(Path, "unlink", unlinking)
            try:
                _join_file(target, sources, folder)
                killed = False
            except Killed:
                killed = True
        if killed:
            _join_file(target, sources, folder)
        assert target.read_bytes() == whole
        assert not list(folder.iterdir()) and (folder.parent / "old").is_file()
        if not killed:
            return
    raise AssertionError("it was never left alone")


def test_ranges_are_copied_where_the_system_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(18, "another device")

    monkeypatch.setattr("os.copy_file_range", refuse)
    sources, whole = make_parts(tmp_path / "parts", random.Random(1))
    _join_file(tmp_path / "leaf", sources, tmp_path / "parts")
    assert (tmp_path / "leaf").read_bytes() == whole


def test_a_file_that_is_too_short_is_an_error(tmp_path: Path) -> None:
    sources, _ = make_parts(tmp_path / "parts", random.Random(2))
    path = tmp_path / "parts" / "3.rows"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedDatasetError, match=r"3\.rows is too short"):
        _join_file(tmp_path / "leaf", sources, tmp_path / "parts")


# -- whole datasets ----------------------------------------------------------------------------------------------------

EPISODES = make_episodes([5, 1, 9, 2, 12, 1], shape=(30,), dtype="uint8")


@pytest.fixture(scope="module")
def truth(tmp_path_factory) -> dict[str, dict[str, bytes]]:
    """For every layout the data of the dataset, written at once."""
    return {layout: data_of(write_dataset(tmp_path_factory.mktemp(layout), EPISODES, layout)) for layout in LAYOUTS}


def data_of(folder: Path) -> dict[str, bytes]:
    """The files without the manifest, which tells in what pieces they were written."""
    return {path: data for path, data in contents(folder).items() if path != FILENAME}


@settings(max_examples=examples(40), deadline=None)
@given(layout=st.sampled_from(LAYOUTS[1:]), data=st.data())
def test_same_bytes_for_any_parts_order_threads_and_interruptions(layout, data, truth, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        states = sum(len(episode) + 1 for episode in EPISODES)
        cuts = sorted(data.draw(st.lists(st.integers(0, states), max_size=5), label="cuts"))
        count = len(cuts) + 1
        root = tmp_path_factory.mktemp("root")
        one_run = Recipe(EPISODES, layout, cuts=cuts).write(root / "one")
        orders = [data.draw(st.permutations(range(count)), label="order") for _ in range(2)]
        stop, block = data.draw(st.integers(0, count), label="stop"), data.draw(st.integers(1, 40), label="block")
        base = Recipe(EPISODES, layout, cuts=cuts, block=block, threads=data.draw(st.integers(1, 3), label="threads"))
        with pytest.raises(Stopped):
            replace(base, order=orders[0], stop_after=stop, filled=[]).write(root / "two")
        resumed = replace(base, order=orders[1], filled=[])
        folder = resumed.write(root / "two")
        assert contents(folder) == contents(one_run)  # manifest included
        assert data_of(folder) == truth[layout]
        assert sorted(resumed.filled) == sorted(set(range(count)) - set(orders[0][:stop]))  # nothing is done twice
        assert verify(folder).ok
        assert names(folder.parent) == ["test"]
        shutil.rmtree(root)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_and_checksums(layout, tmp_path):
    """Ranges tile every file, and every file is in the manifest."""
    folder = write_dataset(tmp_path, EPISODES, layout, parts=4, order=[2, 0, 3, 1])
    manifest = read_manifest(folder)
    sizes = {path: len(data) for path, data in contents(folder).items() if path != FILENAME}
    assert {path: sum(length for length, _ in ranges) for path, ranges in manifest.files.items()} == sizes
    assert manifest.bytes == sum(sizes.values())
    assert verify(folder).problems == []


def test_several_bulk_leaves_of_different_kinds(tmp_path):
    episodes = make_episodes(
        [4, 7, 2],
        frames=((40,), "uint8"),
        deep__depth=((3, 2), "float32"),
        plain=((9,), "int16"),
        low=((2,), "float64"),
    )
    layout = {"frames": "zstd", "deep/depth": "zstd", "plain": "raw", "low": "ted"}
    folder = write_dataset(tmp_path, episodes, layout, parts=3, order=[1, 2, 0])
    assert verify(folder).problems == []
    loaded = Dataset(folder).to_tensordict()
    for name, array in columns(episodes).items():
        assert torch.equal(loaded[tuple(name.split("/"))], torch.from_numpy(array)), name


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_a_commit_without_a_part_is_refused(layout, tmp_path):
    recipe = Recipe(EPISODES, layout, parts=3, order=[1])
    with pytest.raises(RbdataError, match=r"key (next/)?observation has \d+ rows, the dataset \d+"):
        recipe.write(tmp_path)
    assert not DatasetPlace(tmp_path, "my/test").exists()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_everything_is_synced_before_the_folder_is_the_dataset(layout, tmp_path, monkeypatch):
    synced: set[int] = set()
    fsync, install = os.fsync, DatasetPlace.install

    def note(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def check(place: DatasetPlace, names: Iterable[str]) -> None:
        files = [place.working / path for path in (FILENAME, *names)]
        assert set(names) == read_manifest(place.working).files.keys()
        assert {path.stat().st_ino for path in (*files, *(path.parent for path in files))} <= synced
        install(place, names)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(DatasetPlace, "install", check)
    write_dataset(tmp_path, EPISODES, layout, parts=2)


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_a_power_cut_loses_no_rows(layout, tmp_path, monkeypatch):
    """Rows of parts are synced before the join relies on them, and joined rows before their parts are removed."""
    synced: set[int] = set()
    targets: dict[Path, int] = {}
    fsync, write, copy, unlink = os.fsync, joining.write_atomically, joining._copy_range, Path.unlink
    begun, removed = [], []

    def note(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def writing(path: Path, data: bytes) -> None:
        if path.name == JOIN:
            parts = [path.parent / name for some in json.loads(data).values() for name, _, length in some if length]
            begun.extend(parts)
            assert {one.stat().st_ino for part in parts for one in (part, part.parent)} <= synced
        write(path, data)

    def copying(path: Path, offset: int, length: int, file: BinaryIO) -> None:
        targets[path] = os.fstat(file.fileno()).st_ino
        synced.discard(targets[path])
        copy(path, offset, length, file)

    def unlinking(path: Path, missing_ok: bool = False) -> None:
        if path in targets:
            assert targets[path] in synced
            removed.append(path)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(joining, "write_atomically", writing)
    monkeypatch.setattr(joining, "_copy_range", copying)
    monkeypatch.setattr(Path, "unlink", unlinking)
    write_dataset(tmp_path, EPISODES, layout, parts=3)
    assert begun and removed


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_another_program_appended_to_the_files_goes(layout, truth, tmp_path, monkeypatch):
    """After the commit has begun."""
    place, inner = DatasetPlace(tmp_path, "my/test"), joining.sync_files

    def append(folder: Path, files: list[str]) -> None:
        monkeypatch.setattr(joining, "sync_files", inner)
        inner(folder, files)
        for path in files:
            with (folder / path).open("ab") as file:
                file.write(b"more")

    monkeypatch.setattr(joining, "sync_files", append)
    assert data_of(Recipe(EPISODES, layout, parts=2).write(tmp_path)) == truth[layout]
    assert verify(place.path).ok


@pytest.mark.parametrize(
    ("dtype", "shape", "constant"),
    [("bool", (1,), False), ("bool", (1,), True), ("int16", (3,), -2), ("float64", (), 0.5), ("float32", (5, 1), 0)],
)
def test_constants(tmp_path, monkeypatch, dtype, shape, constant):
    monkeypatch.setattr(joining, "_BLOCK", 64)
    path = joining._write_constant(tmp_path, Leaf("c/x", "step", dtype, shape, constant=constant), 101)
    data = np.full((101, *shape), constant, dtype).tobytes()
    assert path == "c/x.memmap" and (tmp_path / path).read_bytes() == data
