"""Sources whose raw objects hold whole episodes: a small format of this module, whole, streamed, and read by a C library."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from episode_lines import (
    SIDE,
    ChangedReader,
    CrashingReader,
    LinesReader,
    SandboxedReader,
    StreamReader,
    episode_line,
    expected,
)
from rbdata.datasets.fetch import open_location
from rbdata.datasets.ingest import part
from rbdata.datasets.ingest.episode_files import (
    EpisodeFiles,
    EpisodeReader,
    file_groups,
    group_files,
)
from rbdata.datasets.ingest.pipeline import run
from rbdata.datasets.ingest.records import ConvertOptions, count_notes
from rbdata.datasets.ingest.request import Listener, Request
from rbdata.datasets.sources.source import Source
from rbdata.errors import CorruptSourceError, ObjectNotFoundError, UsageError
from rbdata.storage.dataset import Dataset
from rbdata.storage.folder import DatasetPlace
from rbdata.testing import SourceTests, dataset_content
from servers import http_server


class LinesJob(EpisodeFiles):
    source, converter = "lines", "lines 1"


class LinesSource(Source):
    name = "lines"
    home = "/nowhere"
    supports = frozenset({"codec", "layout", "parts"})

    def __init__(self, reader: EpisodeReader, together: int = 0) -> None:
        self.reader, self.together = reader, together

    def names(self) -> list[str]:
        return ["some"]

    def find(self, name, location, options):
        files = location.list()
        units = (
            group_files(location, [(item.name, item) for item in files], self.together)
            if self.together
            else file_groups(location, [(item.name, item) for item in files])
        )
        return LinesJob(name, location, units, self.reader, options)


def write_files(folder: Path, files: list[list[int]]) -> list[dict[str, Any]]:
    """Files with episodes of these steps; returns all lines."""
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = []
    for number, lengths in enumerate(files):
        here = [episode_line(len(lines) + place, steps) for place, steps in enumerate(lengths)]
        text = "".join(json.dumps(line) + "\n" for line in here) + "end\n"
        (folder / f"{number}.lines").write_text(text)
        lines += here
    return lines


class LinesTests(SourceTests):
    """An empty file first, an episode without a step, one unit without a step at the end."""

    name = "some"
    files = ([], [7, 0, 30], [1, 4], [12], [0])

    @pytest.fixture
    def raw(self, tmp_path):
        self.lines = write_files(tmp_path / "raw", list(self.files))
        return tmp_path / "raw"

    def check_values(self, dataset, raw):
        kept = [line for line in self.lines if line["steps"]]
        assert dataset.episodes.lengths.tolist() == [line["steps"] for line in kept]
        assert dataset.manifest.counts["empty_episodes"] == 2
        for number, line in enumerate(kept):
            wanted, steps = expected(line), dataset.episode(number)
            for key in ("image", "position"):
                rows = wanted.states[f"observation/{key}"]
                assert np.array_equal(steps["observation", key], rows[:-1])
                assert np.array_equal(steps["next", "observation", key], rows[1:])
            assert np.array_equal(steps["action"], wanted.steps["action"])
            assert np.array_equal(steps["next", "reward"][:, 0], wanted.rewards)
            assert steps["next", "terminated"].flatten().tolist() == [False] * (line["steps"] - 1) + [wanted.terminated]
            assert bool(steps["next", "truncated"][-1]) != wanted.terminated


class TestWholeFiles(LinesTests):
    source = LinesSource(LinesReader())


class TestStreams(LinesTests):
    source = LinesSource(StreamReader(lazy=True))


class TestSandbox(LinesTests):
    source, test_killed_and_run_again = LinesSource(SandboxedReader()), None


class TestSmallFilesTogether(LinesTests):
    source, test_killed_and_run_again = LinesSource(LinesReader(lazy=True), together=400), None


def make(
    raw: Path,
    root: Path,
    reader: EpisodeReader | None = None,
    listener: Listener | None = None,
    first_decides: bool = False,
    **options,
) -> Path:
    source = LinesSource(reader or LinesReader())
    job = source.open("some", open_location(os.fspath(raw)), ConvertOptions(**options))
    assert isinstance(job, LinesJob)
    job.first_decides = first_decides
    request = Request("lines/some", root=root, options=job.options, procs=1)
    return run(job, DatasetPlace(root, "lines/some"), request, listener or Listener(), os.fspath(raw)).path


def test_readers_and_layouts_give_the_same_values(tmp_path):
    write_files(tmp_path / "raw", [[7, 30], [5]])
    whole = make(tmp_path / "raw", tmp_path / "whole")
    assert dataset_content(make(tmp_path / "raw", tmp_path / "lazy", LinesReader(lazy=True))) == dataset_content(whole)
    for options in ({"codec": "raw"}, {"layout": "ted"}):
        other = Dataset(make(tmp_path / "raw", tmp_path / str(options), **options))
        assert all((other[index] == Dataset(whole)[index]).all() for index in (0, 6, 41))


@pytest.mark.parametrize("codec", ["zstd", "raw"])
def test_a_first_unit_is_left_as_soon_as_there_is_a_dictionary(tmp_path, monkeypatch, codec):
    """The bytes are those of a run that trains the dictionary while it decodes the whole first unit."""
    write_files(tmp_path / "raw", [[], [30, 50, 7], [5]])
    read = []

    def episodes(self, raw, plain=LinesReader.episodes):
        for episode in plain(self, raw):
            read.append((raw.name, len(episode.rewards)))
            yield episode

    monkeypatch.setattr(LinesReader, "episodes", episodes)
    monkeypatch.setattr(part, "SAMPLE_BYTES", 70 * SIDE**2)
    at_once = make(tmp_path / "raw", tmp_path / "at_once", first_decides=True, codec=codec)
    every = [("1.lines", 30), ("1.lines", 50), ("1.lines", 7), ("2.lines", 5)]
    assert read == every
    read.clear()
    made = make(tmp_path / "raw", tmp_path / "made", codec=codec)
    begun = every[:2] if codec == "zstd" else every[:1]
    assert read == begun + every
    assert dataset_content(made) == dataset_content(at_once)
    if codec == "zstd":
        assert (made / "observation/image/dictionary").stat().st_size


def test_a_first_run_continues_nothing(tmp_path):
    write_files(tmp_path / "raw", [[7], [5], [3]])
    estimates = []
    make(tmp_path / "raw", tmp_path, listener=Listener(on_estimate=estimates.append))
    assert [(estimate.done_parts, estimate.parts) for estimate in estimates] == [(0, 3)]


def test_shards_choose_units(tmp_path):
    write_files(tmp_path / "raw", [[7], [5], [3]])
    dataset = Dataset(make(tmp_path / "raw", tmp_path, parts=(0, 2)))
    assert dataset.episodes.lengths.tolist() == [7, 3]
    for parts, absent in (((3,), "3"), ((1, 3, 4), "3, 4")):
        with pytest.raises(ObjectNotFoundError, match=f"some has no shard {absent}\n") as caught:
            make(tmp_path / "raw", tmp_path / "other", parts=parts)
        assert caught.value.hint == "it has 0-2" and caught.value.partly_there
    with pytest.raises(UsageError, match="no shards of some are asked for"):
        make(tmp_path / "raw", tmp_path / "other", parts=())


def test_a_crash_of_a_library_names_the_file(tmp_path):
    write_files(tmp_path / "raw", [[7], [5], [3]])
    with pytest.raises(CorruptSourceError, match=r"2\.lines"):
        make(tmp_path / "raw", tmp_path, CrashingReader())


@pytest.mark.parametrize("change", ["key", "dtype", "rows", "lazy rows", "reward"])
def test_an_episode_unlike_the_others_is_named(tmp_path, change):
    write_files(tmp_path / "raw", [[7, 5, 3]])
    with pytest.raises(CorruptSourceError, match=r"0\.lines: episode 1"):
        make(tmp_path / "raw", tmp_path, ChangedReader(change=change))
    assert not (tmp_path / "lines").exists()


def test_units_unlike_each_other_are_refused(tmp_path):
    write_files(tmp_path / "raw", [[7], [5, 3]])
    with pytest.raises(CorruptSourceError, match=r"1\.lines: episode 1"):
        make(tmp_path / "raw", tmp_path, ChangedReader(change="dtype"))


def test_no_step_at_all_is_an_error(tmp_path):
    write_files(tmp_path / "raw", [[], [0]])
    with pytest.raises(CorruptSourceError, match="no episode with a step"):
        make(tmp_path / "raw", tmp_path)


# -- over a network ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reader", [LinesReader(), StreamReader(), SandboxedReader()], ids=["whole", "stream", "sandbox"]
)
def test_over_http(tmp_path, reader):
    """The bytes of the dataset are those of a conversion in place; nothing that was fetched is left."""
    write_files(tmp_path / "raw", [[7, 30], [5], [3]])
    here = make(tmp_path / "raw", tmp_path / "here", reader)
    with http_server(tmp_path / "raw") as server:
        job = LinesSource(reader).open("some", open_location(server.url), ConvertOptions())
        request = Request("lines/some", root=tmp_path / "there", options=job.options, procs=2)
        there = run(job, DatasetPlace(tmp_path / "there", "lines/some"), request, Listener(), server.url).path
    assert dataset_content(there) == dataset_content(here)
    assert [path.name for path in there.parent.iterdir() if ".lock" not in path.name] == ["some"]


@pytest.mark.parametrize("reader", [LinesReader(), SandboxedReader()], ids=["plain", "sandbox"])
def test_files_are_fetched_once(tmp_path, monkeypatch, reader):
    """Also the first one, which two tasks read, and one whose decoding was interrupted."""
    write_files(tmp_path / "raw", [[30, 50, 7], [5], [3]])
    monkeypatch.setattr(part, "SAMPLE_BYTES", 70 * SIDE**2)

    def interrupted(*_) -> None:
        raise KeyboardInterrupt

    with http_server(tmp_path / "raw") as server:
        for interrupts in (True, False):
            job = LinesSource(reader).open("some", open_location(server.url), ConvertOptions())
            request = Request("lines/some", root=tmp_path / "there", options=job.options, procs=0)
            with monkeypatch.context() as patch:
                if interrupts:
                    patch.setattr(part._PartWriter, "add", interrupted)
                with pytest.raises(KeyboardInterrupt) if interrupts else nullcontext():
                    run(job, DatasetPlace(tmp_path / "there", "lines/some"), request, Listener(), server.url)
        fetched = [path for method, path, _ in server.faults.requests if method == "GET" and path.endswith(".lines")]
    assert sorted(fetched) == ["/0.lines", "/1.lines", "/2.lines"]


def test_a_damaged_file_costs_no_finished_unit(tmp_path):
    """A file that is damaged ends the run; the next one does not fetch what is decoded."""
    write_files(tmp_path / "raw", [[7, 30], [5], [3]])
    damaged = tmp_path / "raw" / "2.lines"
    whole = damaged.read_bytes()
    with http_server(tmp_path / "raw") as server:

        def attempt():
            job = LinesSource(LinesReader()).open("some", open_location(server.url), ConvertOptions())
            request = Request("lines/some", root=tmp_path / "there", options=job.options, procs=1)
            return run(job, DatasetPlace(tmp_path / "there", "lines/some"), request, Listener(), server.url).path

        damaged.write_bytes(whole[:-4])
        with pytest.raises(CorruptSourceError, match=r"2\.lines"):
            attempt()
        damaged.write_bytes(whole)
        server.faults.requests.clear()
        made = attempt()
        fetched = {path for method, path, _ in server.faults.requests if method == "GET" and path.endswith(".lines")}
    assert fetched == {"/2.lines"}
    assert dataset_content(made) == dataset_content(make(tmp_path / "raw", tmp_path / "here"))


def test_units_of_another_dictionary_are_decoded_again(tmp_path):
    """The first file changes between two runs."""
    raw = tmp_path / "raw"
    write_files(raw, [[90], [80], [3]])
    whole = (raw / "2.lines").read_bytes()
    (raw / "2.lines").write_bytes(whole[:-4])
    with pytest.raises(CorruptSourceError, match=r"2\.lines"):
        make(raw, tmp_path / "there")
    (raw / "2.lines").write_bytes(whole)
    (raw / "0.lines").write_text(json.dumps(episode_line(30, 95)) + "\nend\n")
    assert dataset_content(make(raw, tmp_path / "there")) == dataset_content(make(raw, tmp_path / "here"))


def test_sentences_of_counts_agree_with_their_number():
    sentences = {"ends": "{n:episode ends|episodes end} early.", "rows": "Left out: {n} of {all:row}.", "none": "{n}"}
    one = count_notes(sentences, {"ends": 1, "rows": 1, "all": 1, "none": 0, "names": ["a"]})
    assert one == ["1 episode ends early.", "Left out: 1 of 1 row."]
    several = count_notes(sentences, {"ends": 1200, "rows": 2, "all": 3000})
    assert several == ["1,200 episodes end early.", "Left out: 2 of 3,000 rows."]
