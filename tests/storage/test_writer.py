"""Writing: columns, parts, journal, merge, commit; the same bytes whatever happened on the way."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import DatasetExistsError, RbdataError, SchemaError
from rbdata.storage.checksums import Crc32c
from rbdata.storage.codecs import load_codec
from rbdata.storage.dataset import Dataset
from rbdata.storage.durable import preallocate
from rbdata.storage.episodes import EpisodeBuilder, EpisodeTable
from rbdata.storage.folder import JOURNAL, DatasetPlace
from rbdata.storage.integrity import verify
from rbdata.storage.journal import Journal, seal
from rbdata.storage.leaf import DTYPES
from rbdata.storage.manifest import FILENAME, read_manifest
from rbdata.storage.parts import PARTS, RowsInPlace, TedSink
from rbdata.storage.schema import Leaf, Schema, ted_flags
from rbdata.storage.writer import ColumnWriter, DatasetWriter
from storage_tools import LAYOUTS, Recipe, Stopped, columns, contents, make_episodes, names, table, write_dataset

EPISODES = make_episodes([5, 1, 9, 2, 12, 1], shape=(30,), dtype="uint8")
BULK = ("raw", "zstd", "ted")


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


def data_of(folder: Path) -> dict[str, bytes]:
    """The files without the manifest, which tells in what pieces they were written."""
    return {path: data for path, data in contents(folder).items() if path != FILENAME}


# -- the same bytes -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    """For every layout the data of the dataset, written at once."""
    return {layout: data_of(write_dataset(tmp_path_factory.mktemp(layout), EPISODES, layout)) for layout in LAYOUTS}


@pytest.mark.parametrize("layout", BULK)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_same_bytes_for_any_parts_order_threads_and_interruptions(layout, data, truth, tmp_path_factory):
    states = sum(len(episode) + 1 for episode in EPISODES)
    cuts = sorted(data.draw(st.lists(st.integers(0, states), max_size=5), label="cuts"))
    count = len(cuts) + 1
    base = {"layout": layout, "cuts": cuts, "scrambled": data.draw(st.booleans(), label="scrambled")}
    base["block"] = data.draw(st.integers(1, 40), label="block")
    root = tmp_path_factory.mktemp("root")
    one_run = Recipe(EPISODES, **base).write(root / "one")
    orders = [data.draw(st.permutations(range(count)), label="order") for _ in range(2)]
    stop = data.draw(st.integers(0, count), label="stop")
    threads, column_block = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 40))
    with pytest.raises(Stopped):
        Recipe(EPISODES, **base, order=orders[0], stop_after=stop).write(root / "two")
    resumed = Recipe(EPISODES, **base, order=orders[1], threads=threads, column_block=column_block)
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
    folder = write_dataset(tmp_path, EPISODES, layout, parts=4, order=[2, 0, 3, 1], scrambled=True)
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
    folder = write_dataset(tmp_path, episodes, layout, parts=3, order=[1, 2, 0], scrambled=True)
    assert verify(folder).problems == []
    loaded = Dataset(folder).to_tensordict()
    for name, array in columns(episodes).items():
        assert torch.equal(loaded[tuple(name.split("/"))], torch.from_numpy(array)), name


def test_blob_grows_while_later_parts_are_on_their_way(tmp_path):
    place = DatasetPlace(tmp_path, "my/test")
    with pytest.raises(Stopped):
        Recipe(EPISODES, "zstd", parts=4, order=[2, 0, 1, 3], stop_after=2).write(tmp_path)
    assert names(place.working / PARTS) == ["observation.2.blob", "observation.2.lengths"]
    first = (place.working / "observation" / "blob").stat().st_size
    assert first > 0
    with pytest.raises(Stopped):
        Recipe(EPISODES, "zstd", parts=4, order=[1, 3], stop_after=1).write(tmp_path)
    assert names(place.working / PARTS) == []
    assert (place.working / "observation" / "blob").stat().st_size > first


# -- interruption ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", BULK)
def test_journal_cut_at_every_line_and_inside_lines(layout, tmp_path):
    """The journal cut short: also where the files are further than it says, the rerun ends with the same bytes."""
    recipe = {"layout": layout, "parts": 3, "order": [1, 0, 2], "scrambled": True}
    truth = contents(Recipe(EPISODES, **recipe).write(tmp_path / "truth"))
    place = DatasetPlace(tmp_path / "root", "my/test")
    with pytest.raises(Stopped):
        Recipe(EPISODES, **recipe, stop_after=3).write(place.root)
    shutil.move(place.working, tmp_path / "stopped")
    journal = (tmp_path / "stopped" / JOURNAL).read_bytes()
    ends = [0, *(at + 1 for at, byte in enumerate(journal) if byte == 10)]
    cuts = {end + shift for end in ends for shift in (-5, -1, 0, 1, 30)}
    assert len(ends) >= 1 + 2 + 3
    for at in sorted(cut for cut in cuts if 0 <= cut <= len(journal)):
        for rest in (b"", b"\0" * 10, b'{"kind": "part"\n'):
            shutil.copytree(tmp_path / "stopped", place.working)
            (place.working / JOURNAL).write_bytes(journal[:at] + rest)
            folder = Recipe(EPISODES, **{**recipe, "order": None}).write(place.root)
            assert contents(folder) == truth, (at, rest)
            shutil.rmtree(folder)


def test_lost_part_files_are_filled_again(tmp_path):
    """After a power cut a part's file may be gone, or short, although the journal has its line."""
    truth = contents(write_dataset(tmp_path / "truth", EPISODES, "zstd", parts=3))
    for number, suffix in enumerate((".blob", ".lengths")):
        for damage in (Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])):
            place = DatasetPlace(tmp_path / str(number), "my/test")
            with pytest.raises(Stopped):
                Recipe(EPISODES, "zstd", parts=3, order=[2], stop_after=1).write(place.root)
            damage(place.working / PARTS / ("observation.2" + suffix))
            again = Recipe(EPISODES, "zstd", parts=3)
            assert contents(again.write(place.root)) == truth
            assert again.filled == [0, 1, 2]
            shutil.rmtree(place.root)


def test_half_filled_part_is_written_anew(tmp_path):
    """Rows of a part that was never finished lie in the files: they are overwritten."""
    truth = contents(write_dataset(tmp_path / "truth", EPISODES, "zstd", parts=2))
    place = DatasetPlace(tmp_path / "root", "my/test")
    with pytest.raises(Stopped):
        Recipe(EPISODES, "zstd", parts=2, stop_after=1).write(place.root)
    (place.working / PARTS / "observation.1.blob").write_bytes(b"rubbish" * 1000)
    with (place.working / "observation" / "blob").open("ab") as blob:
        blob.write(b"half an append" * 1000)
    assert contents(write_dataset(place.root, EPISODES, "zstd", parts=2)) == truth


def test_other_fingerprint(tmp_path):
    place = DatasetPlace(tmp_path, "my/test")
    with pytest.raises(Stopped):
        Recipe(EPISODES, "raw", parts=2, stop_after=1).write(tmp_path)
    before = contents(place.working)
    with pytest.raises(DatasetExistsError, match="started with other options") as caught:
        Recipe(EPISODES, "raw", parts=2, fingerprint="another").write(tmp_path)
    assert "--force" in (caught.value.hint or "")
    assert contents(place.working) == before
    again = Recipe(EPISODES, "raw", parts=2, fingerprint="another", restart=True)
    assert verify(again.write(tmp_path)).ok
    assert again.filled == [0, 1]


def test_restart_with_the_same_fingerprint(tmp_path):
    with pytest.raises(Stopped):
        Recipe(EPISODES, "zstd", parts=2, stop_after=1).write(tmp_path)
    again = Recipe(EPISODES, "zstd", parts=2, restart=True)
    again.write(tmp_path)
    assert again.filled == [0, 1]


def test_forced_runs_go_on_where_a_forced_run_stopped(tmp_path):
    with pytest.raises(Stopped):
        Recipe(EPISODES, "zstd", parts=3, restart=True, stop_after=2).write(tmp_path)
    again = Recipe(EPISODES, "zstd", parts=3, restart=True)
    assert verify(again.write(tmp_path)).ok
    assert again.filled == [2]


@pytest.mark.parametrize("layout", BULK)
def test_lost_rows_are_filled_again(layout, tmp_path):
    """A file that finished parts were written to is gone, or shorter than the journal says."""
    truth = contents(write_dataset(tmp_path / "truth", EPISODES, layout, parts=3))
    place = DatasetPlace(tmp_path / "root", "my/test")
    names = ("observation/blob", "observation/offsets") if layout == "zstd" else ("observation.memmap",)
    for name in names:
        for damage in (Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-9])):
            with pytest.raises(Stopped):
                Recipe(EPISODES, layout, parts=3, stop_after=2).write(place.root)
            damage(place.working / name)
            again = Recipe(EPISODES, layout, parts=3)
            assert contents(again.write(place.root)) == truth
            assert again.filled == ([0, 1, 2] if damage is Path.unlink else [1, 2] if layout == "zstd" else [2])
            shutil.rmtree(place.root)


def test_another_dictionary_makes_finished_rows_useless(tmp_path):
    episodes = make_episodes([100, 30], shape=(300,), dtype="uint8")
    for first, second in ((True, False), (False, True)):
        truth = contents(write_dataset(tmp_path / f"truth{second}", episodes, "zstd", parts=3, dictionary=second))
        root = tmp_path / f"root{second}"
        with pytest.raises(Stopped):
            Recipe(episodes, "zstd", parts=3, dictionary=first, stop_after=2).write(root)
        again = Recipe(episodes, "zstd", parts=3, dictionary=second)
        assert contents(again.write(root)) == truth
        assert again.filled == [0, 1, 2]


def test_source_that_changed_under_unfinished_work(tmp_path):
    place = DatasetPlace(tmp_path, "my/test")
    schema = Schema((LEAF, *ted_flags()))

    def plan(digest: str, *, done: bool = False) -> None:
        writer = DatasetWriter(place, schema, "print", bulk=("x",), parts=1)
        columns = writer.columns()
        flags = dict.fromkeys(("next/done", "next/terminated", "next/truncated"), np.ones((30, 1), bool))
        columns.append({**flags, "next/reward": np.zeros((30, 1), "float32")})
        writer.planned(columns.close(), table(EPISODES), digest)
        if done:
            writer.part_done(0, {"leaves": {}})

    plan("b")
    plan("a")  # nothing was finished
    plan("a", done=True)
    with pytest.raises(DatasetExistsError, match="have changed since") as caught:
        plan("b")
    assert "--force" in (caught.value.hint or "")


def test_working_folder_without_journal_is_begun_anew(tmp_path):
    place = DatasetPlace(tmp_path, "my/test")
    place.working.mkdir(parents=True)
    (place.working / "leftover.memmap").touch()
    folder = write_dataset(tmp_path, EPISODES)
    assert "leftover.memmap" not in contents(folder)


def test_commit_of_unfinished_work_is_refused(tmp_path):
    recipe = Recipe(EPISODES, "zstd", parts=3, order=[1])
    with pytest.raises(RbdataError, match=r"not finished: parts \[0, 1, 2\]"):
        recipe.write(tmp_path)
    assert not DatasetPlace(tmp_path, "my/test").exists()


# -- the journal ----------------------------------------------------------------------------------------------------


def test_journal_cut_at_every_byte(tmp_path):
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.start("print")
    for number in range(4):
        journal.record({"kind": "part", "number": number, "é": "x" * number})
    whole = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == 10]
    for at in range(len(whole) + 1):
        path.write_bytes(whole[:at])
        again = Journal(path)
        lines = sum(end <= at for end in ends)
        assert (again.fingerprint == "print") == (lines > 0)
        assert len(again.entries) == max(0, lines - 1)
        assert path.read_bytes() == whole[:at]  # reading changes nothing
        if lines:
            again.record({"kind": "new"})
            assert [entry["kind"] for entry in Journal(path).entries] == ["part"] * (lines - 1) + ["new"]
            assert Journal(path).entries == again.entries


@pytest.mark.parametrize("line", [b"3", b"null", b"[]", b"{", b"\xff", b'"x"', b""])
def test_journal_ends_at_the_first_bad_line(tmp_path, line):
    path = tmp_path / "journal"
    checksum = Crc32c()
    before = seal([{"fingerprint": "a"}, {"n": 1}], checksum)
    checksum.update(line)
    sealed = checksum.hexdigest().encode() + b" " + line
    for bad in (line, sealed):
        path.write_bytes(before + bad + b"\n" + seal([{"n": 2}], checksum))
        assert Journal(path).entries == [{"n": 1}]
        path.write_bytes(bad + b"\n" + seal([{"n": 2}], Crc32c()))
        assert Journal(path).fingerprint is None


def test_a_journal_is_believed_up_to_the_first_line_that_changed(tmp_path):
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.start("print")
    for number in range(4):
        journal.record({"kind": "part", "number": number})
    lines = path.read_bytes().splitlines(keepends=True)
    swapped = [*lines[:2], lines[3], lines[2], lines[4]]
    repeated, lost = [*lines[:2], lines[1], *lines[2:]], [*lines[:2], *lines[3:]]
    flipped = [*lines[:2], lines[2].replace(b"1}", b"7}"), *lines[3:]]
    for changed in (swapped, repeated, lost, flipped):
        path.write_bytes(b"".join(changed))
        assert list(Journal(path).find("part")) == [0]


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"number": []}', b'{"number": {}}', b'{"n": 1e999' * 9])
def test_records_that_no_writer_makes_end_the_journal(tmp_path, content):
    checksum = Crc32c()
    checksum.update(b'{"fingerprint": "a"}')
    head = f"{checksum.hexdigest()} ".encode() + b'{"fingerprint": "a"}\n'
    checksum.update(content)
    (tmp_path / "journal").write_bytes(head + f"{checksum.hexdigest()} ".encode() + content + b"\n")
    assert Journal(tmp_path / "journal").entries == []


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_no_journal(tmp_path, make):
    make(tmp_path / "journal")
    assert Journal(tmp_path / "journal").fingerprint is None


def test_reading_beside_a_writer_loses_nothing(tmp_path):
    """A reader meets half a line; the writer then completes it."""
    path = tmp_path / "journal"
    writer = Journal(path)
    writer.start("print")
    with path.open("ab") as file:
        line = seal([{"kind": "part", "number": 0}], writer._sum)
        half, rest = line[:20], line[20:]
        file.write(half)
        file.flush()
        assert Journal(path).entries == []
        file.write(rest)
    assert Journal(path).find("part") == {0: {"kind": "part", "number": 0}}


# -- sinks ----------------------------------------------------------------------------------------------------------

LEAF = Leaf("x", "state", "uint8", (4,))


def sinks(folder: Path, first: int, rows: int):
    """A sink of each kind for rows ``first..`` of 20, in episodes of 4 steps."""
    starts = np.arange(0, 20, 5)
    twin = Leaf("x", "step", "uint8", (4,))
    preallocate(folder / "x.memmap", 80)
    preallocate(folder / "next" / "x.memmap", 80)
    (folder / "x").mkdir(exist_ok=True)
    (folder / "x" / "dictionary").touch()
    for codec in ("raw", "zstd"):
        yield load_codec(codec)(LEAF).open_sink(folder, 0, first, rows)
    yield TedSink(folder, twin, first, rows, starts, 20)


@pytest.mark.parametrize(
    ("writes", "ok"),
    [
        ([(0, 8)], True),
        ([(7, 1), (0, 7)], True),
        ([(4, 4), (0, 2), (2, 2)], True),
        ([(3, 0), (0, 8), (8, 0)], True),
        ([], False),
        ([(0, 7)], False),
        ([(1, 7)], False),
        ([(0, 3), (4, 4)], False),
        ([(0, 5), (4, 4)], False),
        ([(0, 8), (0, 8)], False),
        ([(0, 8), (8, 1)], False),
        ([(-1, 3)], False),
    ],
)
def test_every_row_of_a_part_is_written_once(tmp_path, writes, ok):
    data = np.arange(200, dtype=np.uint8)
    for sink in sinks(tmp_path, 5, 8):
        before = {name: (tmp_path / name).read_bytes() for name in ("x.memmap", "next/x.memmap")}

        def run(sink=sink):
            for position, count in writes:
                sink.write(position, data, np.arange(count) * 4)
            return sink.finish()

        if ok:
            assert run()
        else:
            with pytest.raises(RbdataError):
                run()
        for name, data_before in before.items():  # the rows of other parts are not touched
            after = (tmp_path / name).read_bytes()
            low, high = (5, 13) if isinstance(sink, RowsInPlace) else (4, 12)
            assert after[: low * 4] == data_before[: low * 4] and after[high * 4 :] == data_before[high * 4 :]


# -- columns --------------------------------------------------------------------------------------------------------


def one_leaf(dtype: str, shape: tuple[int, ...]) -> Schema:
    return Schema((Leaf("x", "step", dtype, shape),))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_columns_of_every_dtype(tmp_path, dtype, shape):
    rng = np.random.default_rng(0)
    array = rng.integers(0, 2 if dtype == "bool" else 100, (11, *shape)).astype(dtype)
    variants = {
        "as is": array,
        "big-endian": array.astype(array.dtype.newbyteorder(">")),
        "every other": np.repeat(array, 2, axis=0)[::2],
        "backwards": np.ascontiguousarray(array[::-1])[::-1],
        "fortran": np.asfortranarray(array),
    }
    for name, variant in variants.items():
        writer = ColumnWriter(tmp_path, one_leaf(dtype, shape))
        writer.append({"x": variant[:4]})
        writer.append({"x": variant[4:4]})
        writer.append({"x": variant[4:]})
        assert writer.rows == 11
        writer.close()
        found = np.fromfile(tmp_path / "x.memmap", np.dtype(dtype).newbyteorder("<")).reshape(11, *shape)
        assert np.array_equal(found, array), name


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"y": np.zeros(3)},
        {"x": np.zeros(3), "y": np.zeros(3)},
        {"x": np.zeros(3, "float32")},
        {"x": np.zeros(3, "int64")},
        {"x": np.zeros((3, 1))},
    ],
)
def test_columns_that_are_not_the_schemas(tmp_path, bad):
    writer = ColumnWriter(tmp_path, one_leaf("float64", ()))
    with pytest.raises(SchemaError):
        writer.append(bad)
    writer.abandon()


def test_columns_of_different_lengths(tmp_path):
    schema = Schema((Leaf("x", "step", "float64", ()), Leaf("y", "step", "float64", ())))
    writer = ColumnWriter(tmp_path, schema)
    with pytest.raises(SchemaError, match="different lengths"):
        writer.append({"x": np.zeros(3), "y": np.zeros(4)})
    writer.abandon()


@pytest.mark.parametrize(
    ("dtype", "shape", "constant"),
    [("bool", (1,), False), ("bool", (1,), True), ("int16", (3,), -2), ("float64", (), 0.5), ("float32", (5, 1), 0)],
)
def test_constants(tmp_path, monkeypatch, dtype, shape, constant):
    monkeypatch.setattr("rbdata.storage.writer._CONSTANT_BLOCK", 64)
    schema = Schema((Leaf("c/x", "step", dtype, shape, constant=constant), Leaf("y", "step", "int64", ())))
    writer = ColumnWriter(tmp_path, schema)
    writer.append({"y": np.arange(101)})
    ranges = writer.close()
    data = np.full((101, *shape), constant, dtype).tobytes()
    assert (tmp_path / "c" / "x.memmap").read_bytes() == data
    assert ranges["c/x.memmap"][0][0] == len(data)


# -- the episode table ----------------------------------------------------------------------------------------------


def test_episode_table():
    episodes = table(EPISODES)
    assert episodes.start.tolist() == [0, 5, 6, 15, 17, 29]
    assert episodes.state_start.tolist() == [0, 6, 8, 18, 21, 34]
    assert episodes.steps == 30
    returns, lengths = episodes.summary()
    assert lengths == {"mean": 5.0, "std": pytest.approx(np.std([5, 1, 9, 2, 12, 1])), "min": 1.0, "max": 12.0}
    assert returns["max"] == episodes.returns.max()


def test_empty_episode_table(tmp_path):
    empty = EpisodeBuilder().table()
    empty.check()
    assert empty.steps == 0 and empty.summary() == ({}, {})
    empty.write(tmp_path)


@pytest.mark.parametrize(
    ("start", "length"), [([1, 3], [2, 2]), ([0, 3], [2, 2]), ([0, 1], [2, 2]), ([0, 2], [2, 0]), ([2, 0], [2, 2])]
)
def test_bad_episode_tables(tmp_path, start, length):
    episodes = EpisodeTable(np.array(start), np.array(length), np.zeros(2), np.ones(2, "uint8"), np.zeros(2, bool))
    with pytest.raises(SchemaError):
        episodes.write(tmp_path)


def test_parts_in_the_plan_record(tmp_path):
    """`rbdata list` shows the share done, also after the journal's second line was lost."""
    place = DatasetPlace(tmp_path, "my/test")
    writer = DatasetWriter(place, Schema((LEAF, *ted_flags())), "print", bulk=("x",), parts=7)
    lines = (writer.folder / JOURNAL).read_bytes().splitlines(keepends=True)
    assert json.loads(lines[1][9:]) == {"kind": "plan", "parts": 7}
    (writer.folder / JOURNAL).write_bytes(lines[0])
    DatasetWriter(place, Schema((LEAF, *ted_flags())), "print", bulk=("x",), parts=7)
    assert Journal(writer.folder / JOURNAL).entries == [{"kind": "plan", "parts": 7}]
