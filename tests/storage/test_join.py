"""Parts are joined: checksums of ranges and blocks, and joins that are killed."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from rbdata.errors import DamagedDatasetError
from rbdata.storage import join as joining
from rbdata.storage.checksums import BLOCK, CELL, Cells, cut_ranges, place_cells, sum_blocks, sum_cells
from rbdata.storage.join import _join_file

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


@pytest.mark.parametrize("seed", range(6))
def test_the_blocks_of_a_file_follow_from_the_cells_of_its_pieces(seed: int, tmp_path: Path) -> None:
    """Whatever the lengths of the pieces are, and wherever they lie in their own files."""
    chance = random.Random(seed)
    records, whole = [], b""
    for number in range(6):
        data, skipped = noise(chance.choice(LENGTHS), number), chance.choice([0, 3, CELL])
        path = tmp_path / str(number)
        path.write_bytes(bytes(skipped) + data + b"more")
        length, cells = sum_cells(path, skipped, len(data))
        records.append(place_cells(path, skipped, length, cells, len(whole)))
        whole += data
    (tmp_path / "whole").write_bytes(whole)
    assert cut_ranges(records) == sum_blocks(tmp_path / "whole")


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


@pytest.mark.parametrize("seed", range(8))
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
