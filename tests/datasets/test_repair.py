"""Repair: the bytes are those from before the damage, and only what was damaged is fetched."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rbdata
from atari_truth import write_run
from paths import DATA
from rbdata.datasets.acquire import download
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Listener, Request
from rbdata.datasets.local import list_local
from rbdata.datasets.mirrors import push
from rbdata.datasets.repair import repair
from rbdata.errors import DamagedDatasetError
from rbdata.storage import checksums, integrity
from rbdata.storage.integrity import verify
from rbdata.storage.manifest import BLOCK_TABLE, read_manifest, write_manifest
from servers import HttpServer, http_server
from storage_tools import contents

RUN = "dqn/Qbert/2/replay_logs"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A web server with a run of three shards, and with a converted copy of it below ``copy``."""
    top = tmp_path_factory.mktemp("site")
    write_run(top / RUN, 30, [20, 40, 9])
    with http_server(top) as server:
        made = download(Request("Qbert/2", root=top / "made", mirror=server.url, procs=1))
        push("Qbert/2", str(top / "copy"), root=top / "made")
        yield server, made.path


@pytest.fixture
def dataset(site, tmp_path) -> Path:
    """A dataset that a test may damage."""
    return Path(shutil.copytree(site[1], tmp_path / "root" / "atari" / "Qbert" / "2"))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def frames_fetched(server: HttpServer) -> set[str]:
    """The shards of which observations were fetched."""
    paths = [path for path, _ in server.faults.gets() if "observation" in path]
    return {path.removesuffix(".gz").rpartition(".")[2] for path in paths}


def test_one_flipped_byte_fetches_one_shard(site, dataset):
    """The last byte of the frames is in the last shard; the file of the manifest is the same as well."""
    server, _ = site
    before = contents(dataset)
    blob = dataset / "observation" / "blob"
    flip(blob, blob.stat().st_size - 1)
    problems = verify(dataset).problems
    assert [problem.path for problem in problems] == ["observation/blob"]
    server.faults.requests.clear()
    repaired = repair(dataset, problems, procs=1)
    assert repaired.files == ("observation/blob",) and repaired.location == server.url
    assert contents(dataset) == before
    assert [path.name for path in dataset.parent.iterdir()] == ["2"]
    assert frames_fetched(server) == {"2"}


def test_anything_may_be_damaged(site, dataset):
    """Offsets in the middle, a dictionary cut short, a lost table: nothing of it is taken for sound."""
    before = contents(dataset)
    flip(dataset / "observation" / "offsets", 80)
    (dataset / "action.memmap").write_bytes(b"")
    (dataset / "episodes" / "start.memmap").unlink()
    repair(dataset, verify(dataset).problems, procs=1)
    assert contents(dataset) == before
    (dataset / "observation" / "dictionary").write_bytes(b"x")
    assert download(Request("Qbert/2", root=dataset.parents[2], mirror=site[0].url, procs=1)).action == "repaired"
    assert contents(dataset) == before


def test_a_damaged_part_is_not_carried_into_a_larger_dataset(site, tmp_path):
    """Growing takes over what is sound: offsets that were damaged lead to other rows."""
    server, whole = site
    request = Request("Qbert/2", root=tmp_path, mirror=server.url, procs=1)
    small = download(replace(request, options=ConvertOptions(parts=(0, 1)))).path
    flip(small / "observation" / "offsets", 80)
    grown = download(request).path
    assert verify(grown).ok
    sizes = [(path / "observation" / "offsets").stat().st_size for path in (grown, whole)]
    assert sizes[0] == sizes[1]


def test_from_a_copy_only_the_damaged_range(site, dataset):
    server, _ = site
    before = contents(dataset)
    flip(dataset / "observation" / "blob", 0)
    (dataset / "next" / "done.memmap").unlink()
    server.faults.requests.clear()
    repaired = repair(dataset, verify(dataset).problems, mirror=f"{server.url}/copy")
    assert contents(dataset) == before
    first = read_manifest(dataset).files["observation/blob"][0][0]
    assert repaired.fetched_bytes == first + len(before["next/done.memmap"])
    assert not frames_fetched(server) - {"/copy/atari/Qbert/2/observation/blob"}


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_is_no_file_is_fetched_again(site, dataset, tmp_path, kind):
    server, _ = site
    before = contents(dataset)
    path = dataset / "next/reward.memmap"
    path.unlink()
    if kind == "link":
        (tmp_path / "precious").write_bytes(b"1")
        path.symlink_to(tmp_path / "precious")
    else:
        path.mkdir()
    repair(dataset, verify(dataset).problems, mirror=f"{server.url}/copy")
    assert contents(dataset) == before
    assert kind != "link" or (tmp_path / "precious").read_bytes() == b"1"


@pytest.mark.parametrize(
    "name, mirror", [("d4rl/hopper-full-replay-v2", "d4rl"), ("minari/cartpole/random-v0", "minari")]
)
def test_a_dataset_of_one_file(name, mirror, tmp_path):
    path = download(Request(name, root=tmp_path, mirror=str(DATA / mirror), procs=1)).path
    before = contents(path)
    (path / "observation.memmap").write_bytes(b"")
    assert [(one.state, one.problem) for one in list_local(tmp_path)] == [
        ("damaged", f"observation.memmap has 0 bytes instead of {len(before['observation.memmap'])}")
    ]
    repair(path, verify(path).problems, procs=1)
    assert contents(path) == before


def test_own_data_are_made_again_or_copied(tmp_path):
    """Arrays in memory are gone; files may be."""
    rows = {"observation": np.zeros((4, 1)), "action": np.zeros(4), "reward": np.ones(4), "done": np.arange(4) == 3}
    np.savez(tmp_path / "own.npz", **rows)
    rbdata.from_arrays(rows, "my/x", root=tmp_path)
    rbdata.from_episodes(iter([rows]), "my/y", root=tmp_path)
    rbdata.convert(tmp_path / "own.npz", "my/z", root=tmp_path)
    (tmp_path / "own.npz").unlink()
    for name, text in (("x", "from arrays in memory, by"), ("y", "from episodes in memory, by"), ("z", "no such file")):
        folder = tmp_path / "my" / name
        push(f"my/{name}", str(tmp_path / "mirror"), root=tmp_path)
        flip(folder / "action.memmap", 3)
        with pytest.raises(DamagedDatasetError, match=text):
            repair(folder, verify(folder).problems)
        repair(folder, verify(folder).problems, mirror=str(tmp_path / "mirror"))
        assert verify(folder).ok


def test_what_cannot_be_fetched_again_is_left_as_it_is(site, dataset, tmp_path):
    """A recording, a preprocessed dataset, one whose data have changed: an error that says so, and nothing written."""
    options = ConvertOptions(extra={"steps": 20})
    recording = download(Request("gymnasium/CartPole-v1", root=tmp_path / "root", options=options, procs=1)).path
    (recording / "action.memmap").write_bytes(b"")
    with pytest.raises(DamagedDatasetError, match="recorded on this machine"):
        repair(recording, verify(recording).problems)

    manifest = read_manifest(dataset)
    made = replace(manifest, id="my/small", lineage={"input": {"id": "atari/Qbert/2"}})
    mine = Path(shutil.copytree(dataset, tmp_path / "root" / "my" / "small"))
    write_manifest(mine, made)
    (mine / "action.memmap").write_bytes(b"")
    with pytest.raises(DamagedDatasetError, match="made from atari/Qbert/2"):
        repair(mine, verify(mine).problems)

    one = rbdata.open_dataset("atari/Qbert/2", root=tmp_path / "root")
    saved = one.select(episodes=[0]).save("my/one", root=tmp_path / "root")
    (saved / "action.memmap").write_bytes(b"")
    with pytest.raises(DamagedDatasetError, match="made from atari/Qbert/2") as caught:
        repair(saved, verify(saved).problems)
    assert "make it again" in str(caught.value.hint)

    write_run(tmp_path / "changed" / RUN, 30, [20, 41, 9])
    flip(dataset / "observation" / "blob", 0)
    damaged = contents(dataset)
    with pytest.raises(DamagedDatasetError, match="result in other bytes"):
        repair(dataset, verify(dataset).problems, mirror=str(tmp_path / "changed"), procs=1)
    assert contents(dataset) == damaged
    assert [path.name for path in dataset.parent.iterdir()] == ["2"]


# -- by block ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path, monkeypatch) -> tuple[Path, str]:
    """A dataset of three shards with a table of blocks, and the mirror that it was pushed to."""
    for module in (checksums, integrity):
        monkeypatch.setattr(module, "BLOCK", 4096)
    write_run(tmp_path / "site" / RUN, 30, [20, 40, 9])
    options = ConvertOptions(codec="raw")
    made = download(Request("Qbert/2", root=tmp_path / "root", mirror=str(tmp_path / "site"), procs=1, options=options))
    push("Qbert/2", str(tmp_path / "copy"), root=tmp_path / "root")
    return made.path, str(tmp_path / "copy")


def test_one_flipped_bit_fetches_one_block(large):
    path, copy = large
    before = contents(path)
    flip(path / "observation.memmap", 9 * 4096 + 5)
    problems = verify(path).problems
    what = "checksum mismatch in block 9, bytes 36864-40960"
    assert [(one.path, one.what, one.begin, one.length) for one in problems] == [
        ("observation.memmap", what, 9 * 4096, 4096)
    ]
    assert repair(path, problems, mirror=copy).fetched_bytes == 4096
    assert contents(path) == before


def test_one_flipped_bit_of_raw_rows_fetches_one_shard(large):
    """Sound parts of a leaf are taken over, although another part of the same file is damaged."""
    path, _ = large
    before = contents(path)
    flip(path / "observation.memmap", 0)
    made: list[int] = []
    repaired = repair(path, verify(path).problems, procs=1, listener=Listener(on_part_done=made.append))
    assert repaired.files == ("observation.memmap",)
    assert made == [0]
    assert contents(path) == before


@pytest.mark.parametrize("mirrored", ["with a table", "without one", "no copy"])
def test_a_damaged_table(large, mirrored):
    path, copy = large
    before = contents(path)
    flip(path / BLOCK_TABLE, 3)
    if mirrored != "no copy":
        flip(path / "observation.memmap", 0)
    if mirrored == "without one":
        (Path(copy) / "atari" / "Qbert" / "2" / BLOCK_TABLE).unlink()
    problems = verify(path).problems
    assert problems[0].path == BLOCK_TABLE
    repaired = repair(path, problems, mirror=copy)
    # The table is made again from the files; without it, damage is known by range.
    wanted = read_manifest(path).files["observation.memmap"][0][0]
    assert repaired.fetched_bytes == (0 if mirrored == "no copy" else wanted)
    assert contents(path) == before


def test_a_copy_continues_with_the_blocks_that_are_sound(large, tmp_path):
    """What was killed in the middle of a block, and a block that changed since, are fetched again; nothing else is."""
    path, copy = large
    request = Request("Qbert/2", root=tmp_path / "elsewhere", mirror=copy, options=ConvertOptions(codec="raw"))

    class Killed(Exception):
        pass

    def kill(tasks) -> None:
        if tasks[0].rows == tasks[0].total:
            raise Killed

    with pytest.raises(Killed):
        download(request, Listener(on_progress=kill))
    frames = tmp_path / "elsewhere" / "atari" / "Qbert" / ".2.writing" / "observation.memmap"
    size = (path / "observation.memmap").stat().st_size
    frames.write_bytes((path / "observation.memmap").read_bytes()[: 10 * 4096 + 7])
    flip(frames, 3 * 4096)
    for other in (path / "action.memmap", path / "next" / "reward.memmap"):
        shutil.copy(other, frames.parent / other.relative_to(path))
    seen: list[int] = []
    made = download(request, Listener(on_progress=lambda tasks: seen.append(tasks[0].fetched))).path
    before = {name: data for name, data in contents(path).items() if name != "rbdata.json"}
    assert {name: data for name, data in contents(made).items() if name != "rbdata.json"} == before
    assert size - 9 * 4096 <= seen[-1] < size
