"""Part files of an interrupted run: trusted where size and checksums are what the journal says, filled again otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from rbdata.storage.codecs import codec_of
from rbdata.storage.folder import DatasetPlace
from rbdata.storage.integrity import verify
from rbdata.storage.leaf import Leaf
from rbdata.storage.parts import PARTS
from storage_tools import Recipe, Stopped, contents, make_episodes, names, write_dataset

EPISODES = make_episodes([5, 1, 9, 2, 12, 1], shape=(30,), dtype="uint8")
RECIPE = {"layout": "zstd", "parts": 3, "scrambled": True}


@pytest.fixture
def stopped(tmp_path):
    """A working folder with parts 1 and 2 finished, and waiting for part 0."""
    with pytest.raises(Stopped):
        Recipe(EPISODES, **RECIPE, order=[2, 1, 0], stop_after=2).write(tmp_path)
    return DatasetPlace(tmp_path, "my/test")


def go_on(place: DatasetPlace) -> list[int]:
    recipe = Recipe(EPISODES, **RECIPE)
    folder = recipe.write(place.root)
    whole = write_dataset(place.root / "whole", EPISODES, **RECIPE)
    assert contents(folder) == contents(whole)
    assert verify(folder).ok
    return recipe.filled


def test_sound_parts_are_kept(stopped):
    assert go_on(stopped) == [0]


@pytest.mark.parametrize("name", ["observation.1.blob", "observation.1.lengths"])
@pytest.mark.parametrize("where", [0, -1])
def test_damaged_parts_are_filled_anew(name, where, stopped):
    path = stopped.working / PARTS / name
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(data)
    assert go_on(stopped) == [0, 1]


@pytest.mark.parametrize("name", ["observation.1.blob", "observation.1.lengths"])
def test_parts_that_a_power_cut_left_as_zeros(name, stopped):
    path = stopped.working / PARTS / name
    path.write_bytes(bytes(path.stat().st_size))
    assert go_on(stopped) == [0, 1]


@pytest.mark.parametrize("name", ["observation.1.blob", "observation.1.lengths"])
def test_parts_cut_short_or_gone(name, stopped):
    path = stopped.working / PARTS / name
    path.write_bytes(path.read_bytes()[:-1])
    (stopped.working / PARTS / name.replace(".1.", ".2.")).unlink()
    assert go_on(stopped) == [0, 1, 2]


def test_unfinished_files_of_killed_workers_are_removed(stopped):
    leaf = Leaf("observation", "state", "uint8", (30,), "zstd")
    left = codec_of(leaf).open_sink(stopped.working, 0, 0, 3)
    left.write(0, np.zeros(30, np.uint8), np.zeros(1, np.int64))
    assert len(names(stopped.working / PARTS)) == 5
    with pytest.raises(Stopped):
        Recipe(EPISODES, **RECIPE, stop_after=0).write(stopped.root)
    assert names(stopped.working / PARTS) == sorted(
        f"observation.{number}.{kind}" for number in (1, 2) for kind in ("blob", "lengths")
    )


def test_sums_are_made_once(stopped, monkeypatch):
    """Parts are asked for after every part that is done: files are read again once in a run."""
    from rbdata.storage.codecs import codec

    read: list[str] = []
    inner = codec.sum_piece
    monkeypatch.setattr(codec, "sum_piece", lambda path, piece: read.append(path.name) or inner(path, piece))
    go_on(stopped)
    assert set(read) == {"observation.1.blob", "observation.2.blob"}
    assert len(read) == 4  # each in two pieces: the last row was written first
