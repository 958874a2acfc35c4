"""Datasets read where they lie: against the same dataset on this disk, over every kind of store."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rbdata
import torch
from rbdata.cli import run
from rbdata.datasets.fetch import FetchOptions
from rbdata.datasets.remote import open_remote, verify_remote
from rbdata.errors import ChecksumError, DamagedDatasetError, DatasetNotFoundError, DiskError, FetchError
from rbdata.storage import dataset as dataset_module
from rbdata.storage.dataset import Dataset
from rbdata.storage.remote.remote_dataset import RemoteDataset
from s3_server import s3_server
from servers import gcs_server, http_server
from storage_tools import add_block_table, contents, make_episodes, write_dataset

BLOCK = 4096
QUICK = FetchOptions(attempts=2, backoff=0.0)


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mirror with two datasets, whose rows of 2 kB are in blocks: one plain, one compressed."""
    root = tmp_path_factory.mktemp("mirror")
    for layout in ("raw", "zstd"):
        episodes = make_episodes([7, 30, 1, 22, 40], shape=(2048,), dtype="uint8", seed=3)
        add_block_table(write_dataset(root, episodes, layout, id=f"my/{layout}", parts=3, dictionary=False), BLOCK)
    return root


@pytest.fixture(scope="module", params=["http", "s3", "gcs"])
def store(request: pytest.FixtureRequest, mirror: Path) -> Iterator[str]:
    """The URL of the mirror in a store."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "http":
            with http_server(mirror) as server:
                yield server.url
        elif request.param == "s3":
            with s3_server("lab") as server:
                for name, value in server.environment.items():
                    patch.setenv(name, value)
                for path, data in contents(mirror).items():
                    server.client.put_object(Bucket="lab", Key=f"deep/{path}", Body=data)
                yield "s3://lab/deep"
        else:
            with gcs_server({"bucket": mirror}) as server:
                patch.setenv("STORAGE_EMULATOR_HOST", server.host)
                yield "gs://bucket"


def opened(url: str, **options: Any) -> RemoteDataset:
    dataset = rbdata.open_dataset(url, **options)
    assert isinstance(dataset, RemoteDataset)
    return dataset


def same(one: Dataset, other: Dataset) -> bool:
    steps = torch.randint(len(one), (40,), generator=torch.Generator().manual_seed(1))
    return bool((one.read(steps, before=3) == other.read(steps, before=3)).all())


def test_every_store_gives_the_batches_of_the_disk(store, mirror, tmp_path):
    remote = opened(f"{store}/my/zstd", cache_dir=tmp_path)
    here = Dataset(mirror / "my/zstd")
    assert remote.id == "my/zstd"
    assert remote.cache.resident_bytes == 0
    assert same(remote, here)
    options = {"batch_size": 16, "frame_stack": 3, "seed": 5}
    batches = zip(rbdata.load(remote, **options, replacement=False), rbdata.load(here, **options, replacement=False))
    assert all((one == other).all() for one, other in batches)


def test_what_is_not_read_is_not_fetched(mirror, tmp_path):
    remote = opened((mirror / "my/zstd").as_uri(), cache_dir=tmp_path)
    remote.read(torch.tensor([3]), keys=["observation"])
    blocks = remote.cache.states[remote.cache.layout.of_file("observation/blob")]
    assert 0 < np.count_nonzero(blocks) < len(blocks) / 4
    assert not (tmp_path / "my/zstd/rbdata.json").exists()


def test_views_windows_and_keys_of_remote_datasets(mirror, tmp_path):
    """They fetch what they read, and give what the same views of the folders give."""
    names = ("my/raw", "my/zstd")
    there = [opened((mirror / name).as_uri(), cache_dir=tmp_path / "cache") for name in names]
    here = [Dataset(mirror / name) for name in names]
    views = [rbdata.concat(both, keys="common").select(episodes=[7, 1, 4, 9]) for both in (there, here)]
    assert (views[0][:] == views[1][:]).all()
    options = {"batch_size": 8, "seed": 1, "windows": {"observation": (-2, 1), "action": (0, 3)}}
    one, other = (rbdata.load(view, **options).sample() for view in views)
    assert (one == other).all()
    views[0].save("my/copy", root=tmp_path)
    assert (rbdata.open_dataset("my/copy", root=tmp_path)[:] == views[1][:]).all()


def test_keys_fetch_their_leaves_alone(mirror, tmp_path):
    remote = opened((mirror / "my/zstd").as_uri(), cache_dir=tmp_path)
    options: list[dict[str, Any]] = [{"keys": ["action"]}, {"windows": {"action": (0, 3)}}]
    for option in options:
        rbdata.load(remote, batch_size=8, seed=0, **option).sample()
    assert not np.count_nonzero(remote.cache.states[remote.cache.layout.of_file("observation/blob")])
    assert not len(remote.blocks_of(0, len(remote), ["action"])) and len(remote.blocks_of(0, len(remote)))


def test_a_complete_cache_is_the_dataset(mirror, tmp_path):
    url = (mirror / "my/zstd").as_uri()
    remote = opened(url, cache_dir=tmp_path)
    folder = remote.fetch()
    assert rbdata.verify(folder).ok
    assert {name: data for name, data in contents(folder).items() if not name.startswith(".")} == contents(
        mirror / "my/zstd"
    )
    assert remote.cache.finished and same(remote, Dataset(mirror / "my/zstd"))
    assert type(rbdata.open_dataset(url, cache_dir=tmp_path)) is Dataset


def test_a_cache_is_continued(mirror, tmp_path):
    url = (mirror / "my/raw").as_uri()
    first = opened(url, cache_dir=tmp_path)
    first.read(torch.tensor([3, 50]))
    there = first.cache.resident_bytes
    again = opened(url, cache_dir=tmp_path)
    assert again.cache.resident_bytes == there > 0
    assert same(pickle.loads(pickle.dumps(again)), Dataset(mirror / "my/raw"))


def test_a_limit_is_kept(mirror, tmp_path):
    here = Dataset(mirror / "my/raw")
    limit = here.manifest.bytes // 2
    remote = opened((mirror / "my/raw").as_uri(), cache_dir=tmp_path, cache_limit=limit)
    for seed in range(12):
        steps = torch.randint(len(here), (4,), generator=torch.Generator().manual_seed(seed))
        assert (remote.read(steps) == here.read(steps)).all()
        assert remote.cache.resident_bytes <= limit
        assert sum((remote.path / path).stat().st_blocks * 512 for path in remote.cache.layout.in_blocks) <= limit
    with pytest.raises(DiskError, match="at once"):
        remote.to_tensordict()


@pytest.mark.parametrize("shuffle", ["global", "blocks"])
def test_a_limit_that_is_too_small_for_a_batch_says_what_helps(mirror, tmp_path, shuffle):
    here = Dataset(mirror / "my/raw")
    options = {"cache_dir": tmp_path, "cache_limit": here.manifest.bytes // 2, "shuffle": shuffle}
    buffer = rbdata.load((mirror / "my/raw").as_uri(), batch_size=len(here) * 7 // 10, **options)
    with buffer, pytest.raises(DiskError, match="at once") as failure:
        buffer.sample()
    assert "larger cache_limit" in str(failure.value.hint)
    assert ("shuffle='blocks'" in str(failure.value.hint)) == (shuffle == "global")


class TestBadInput:
    def test_a_limit_below_what_every_read_needs(self, mirror, tmp_path):
        with pytest.raises(DiskError, match="too small"):
            rbdata.open_dataset((mirror / "my/raw").as_uri(), cache_dir=tmp_path, cache_limit="5kB")

    def test_a_url_that_holds_something_else(self, mirror, tmp_path):
        with pytest.raises(DatasetNotFoundError, match="holds no converted dataset") as failure:
            rbdata.open_dataset(mirror.as_uri(), cache_dir=tmp_path)
        assert "mirror ls" in str(failure.value.hint)

    def test_one_cache_for_two_datasets(self, mirror, tmp_path):
        other = tmp_path / "other"
        write_dataset(other, make_episodes([3], shape=(2048,), dtype="uint8"), "raw", id="my/raw")
        rbdata.open_dataset((mirror / "my/raw").as_uri(), cache_dir=tmp_path)
        with pytest.raises(DiskError, match="another dataset"):
            rbdata.open_dataset((other / "my/raw").as_uri(), cache_dir=tmp_path)

    def test_a_folder_with_other_files(self, mirror, tmp_path):
        (tmp_path / "my/raw").mkdir(parents=True)
        (tmp_path / "my/raw/thesis.tex").write_text("years of work")
        with pytest.raises(DiskError, match=r"other files, such as thesis\.tex"):
            rbdata.open_dataset((mirror / "my/raw").as_uri(), cache_dir=tmp_path)

    def test_a_folder_that_cannot_be_written(self, mirror, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(DiskError, match="cannot be written"):
            rbdata.open_dataset((mirror / "my/raw").as_uri(), cache_dir=tmp_path / "file")

    def test_a_cache_of_another_version(self, mirror, tmp_path):
        rbdata.open_dataset((mirror / "my/raw").as_uri(), cache_dir=tmp_path)
        states = tmp_path / "my/raw/.rbdata-blocks"
        states.write_bytes(states.read_bytes().replace(b'"version": 3', b'"version": 9'))
        with pytest.raises(DiskError, match="version 9"):
            rbdata.open_dataset((mirror / "my/raw").as_uri(), cache_dir=tmp_path)

    def test_a_replaced_dataset_is_never_mixed(self, store_copy, tmp_path):
        remote = opened(store_copy.as_uri(), cache_dir=tmp_path)
        remote.read(torch.tensor([0]))
        file = store_copy / "observation.memmap"
        data = file.read_bytes()
        file.write_bytes(data[::-1])
        with pytest.raises(ChecksumError):
            remote.read(torch.arange(100))

    def test_damage_in_the_store(self, store_copy, tmp_path):
        file = store_copy / "next/reward.memmap"
        file.write_bytes(b"\x01" + file.read_bytes()[1:])
        remote = opened(store_copy.as_uri(), cache_dir=tmp_path)
        with pytest.raises(DamagedDatasetError, match="next/reward"):
            remote.read(torch.tensor([0]))


@pytest.fixture
def store_copy(mirror, tmp_path) -> Path:
    return Path(shutil.copytree(mirror / "my/raw", tmp_path / "store"))


def test_a_url_without_access_is_a_fetch_error(tmp_path):
    with http_server(tmp_path) as server:
        server.faults.login = ("user", "secret")
        with pytest.raises(rbdata.errors.ForbiddenError):
            open_remote(f"{server.url}/my/raw", cache_dir=tmp_path / "cache", fetch=QUICK)


def test_a_forked_process_shares_the_cache(mirror, tmp_path):
    remote = opened((mirror / "my/zstd").as_uri(), cache_dir=tmp_path)
    remote.read(torch.tensor([3]))
    child = os.fork()
    if not child:
        torch.set_num_threads(1)
        os._exit(0 if same(remote, Dataset(mirror / "my/zstd")) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert remote.cache.are_resident(remote.blocks_of(3, 4))


def test_processes_divide_a_pass_and_another_number_goes_on(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(dataset_module, "GROUP_BYTES", 16 << 10)
    url = (mirror / "my/zstd").as_uri()

    def share(rank, world, state=None):
        options = {"batch_size": 8, "seed": 4, "shuffle": "blocks", "replacement": False}
        buffer = rbdata.load(url, cache_dir=tmp_path, rank=rank, world_size=world, **options)
        if state is not None:
            buffer.load_state_dict(state)
        return buffer

    def index(buffer, count):
        return torch.cat([buffer.sample()["index"] for _ in range(count)]).tolist()

    two = [share(rank, 2) for rank in range(2)]
    begun = [index(buffer, 3) for buffer in two]
    states = [buffer.state_dict() for buffer in two]
    ended = [index(buffer, 4) for buffer in two]
    assert sorted(chain(*begun, *ended)) == list(range(100))
    assert [index(share(rank, 2, states[rank]), 4) for rank in range(2)] == ended
    assert sorted(chain(*(index(share(rank, 3, states[0]), 3) for rank in range(3)))) == sorted(chain(*ended))


def test_workers_of_a_data_loader_share_the_cache(mirror, tmp_path):
    with http_server(mirror) as server:
        url = f"{server.url}/my/zstd"
        buffer = rbdata.load(url, cache_dir=tmp_path, batch_size=10, shuffle="blocks", seed=1)
        loader = buffer.as_iterable().loader(num_workers=2, multiprocessing_context="fork")
        drawn = torch.cat([batch["index"] for batch in loader])
        asked = [one for one in server.faults.gets() if one[0].endswith("blob")]
    assert torch.equal(drawn.sort().values, torch.arange(100))
    assert len(asked) == len(set(asked)) == -(-(mirror / "my/zstd/observation/blob").stat().st_size // BLOCK)


class TestCommands:
    @pytest.fixture(autouse=True)
    def root(self, monkeypatch, tmp_path):
        monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "root"))

    def test_inspect(self, mirror, capsys):
        url = (mirror / "my/raw").as_uri()
        assert run(["inspect", url, "--json"]) == 0
        record = json.loads(capsys.readouterr().out)
        assert (record["url"], record["steps"]) == (url, 100)
        assert 0 < record["cached_bytes"] < record["bytes"] / 4
        assert run(["inspect", url, "--plot", "out.png"]) == 2
        assert rbdata.inspect(url) == rbdata.inspect(mirror / "my/raw")

    def test_verify_on_a_web_server(self, mirror, tmp_path):
        store_copy = Path(shutil.copytree(mirror / "my/zstd", tmp_path / "store"))
        expected = rbdata.verify(store_copy.as_uri())
        file = store_copy / "observation/blob"  # of several ranges
        sound = file.read_bytes()
        with http_server(store_copy) as server:
            seen: list[tuple[int, int]] = []
            report = verify_remote(server.url, on_progress=lambda done, total: seen.append((done, total)))
            assert report == expected and seen[-1] == (expected.bytes, expected.bytes)
            assert run(["verify", server.url]) == 0
            file.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
            (problem,) = rbdata.verify(server.url).problems
            assert problem.path == "observation/blob" and problem.begin + problem.length == len(sound)
            assert rbdata.verify(server.url, quick=True).ok and run(["verify", server.url]) == 1
            file.write_bytes(sound[:-1])
            assert "bytes instead of" in rbdata.verify(server.url).problems[0].what
            file.write_bytes(sound)
            server.faults.ignore_range = True  # as ``python -m http.server`` does
            with pytest.raises(FetchError, match="whole files only") as refused:
                verify_remote(server.url)
            assert "byte ranges" in (refused.value.hint or "")

    def test_a_server_without_listings(self, mirror, capsys):
        with http_server(mirror) as server:
            server.index_style("none")
            assert run(["inspect", f"{server.url}/my/zstd", "-q"]) == 0
            assert run(["mirror", "ls", server.url]) > 0
            assert "index page" in capsys.readouterr().err

    def test_sample(self, mirror, capsys, tmp_path):
        url = (mirror / "my/zstd").as_uri()
        assert run(["sample", url, "--seed", "1", "--json", "--cache-dir", str(tmp_path / "cache")]) == 0
        there = json.loads(capsys.readouterr().out)
        assert run(["sample", str(mirror / "my/zstd"), "--seed", "1", "--json"]) == 0
        assert there == json.loads(capsys.readouterr().out)
        assert run(["sample", url, "--cache-limit", "1kB"]) == 1
        assert "too small" in capsys.readouterr().err
        assert run(["sample", str(mirror / "my/zstd"), "--cache-limit", "1kB"]) == 2
