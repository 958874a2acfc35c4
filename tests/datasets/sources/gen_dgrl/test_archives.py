"""Gen-DGRL's archives become the transitions that were meant, and nothing that they name is run."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import gen_dgrl_truth
import numpy as np
import pytest
import rbdata
from effort import examples
from gen_dgrl_truth import assert_holds, episode, expected, packed, write, write_files
from hypothesis import HealthCheck, given
from hypothesis import settings as rules
from hypothesis import strategies as st
from paths import DATA
from rbdata.datasets.sources.gen_dgrl.source import LIMITS, GenDgrlSource
from rbdata.errors import CorruptSourceError, ObjectNotFoundError, UsageError
from rbdata.storage.dataset import Dataset
from servers import http_server

ARCHIVES = DATA / "gen_dgrl"
EXPERT = "1M/expert"


def get(name: str, root: Path, mirror: Path | str = ARCHIVES, **options) -> Dataset:
    return Dataset(rbdata.download(f"gen_dgrl/{name}", root=root, mirror=str(mirror), procs=0, **options))


@pytest.mark.parametrize("game", ["chaser", "maze"])
def test_the_transitions_that_were_meant(game, tmp_path):
    """Trap 83: the last frame of a file, another episode's, is nowhere. The truth has the episodes by time, the archive not."""
    dataset = get(f"{game}-1M_E", tmp_path)
    with np.load(ARCHIVES / "truth" / f"{game}-1M_expert.npz") as truth:
        begins = np.cumsum(truth["lengths"]) - truth["lengths"]
        rows = np.concatenate([np.arange(begins[one], begins[one] + truth["lengths"][one]) for one in (0, 2, 1)])
        assert dataset.episodes.lengths.tolist() == truth["lengths"][[0, 2, 1]].tolist()
        for key, wanted in (("observation", "obs"), ("next/observation", "next_obs"), ("action", "action")):
            assert dataset[key].numpy().tobytes() == truth[wanted][rows].tobytes()
        for key in ("reward", "terminated", "truncated"):
            assert np.array_equal(dataset[f"next/{key}"].numpy()[:, 0], truth[key][rows])
    assert_holds(dataset, expected(ARCHIVES / EXPERT / f"{game}.tar.xz"))
    assert dataset.manifest.counts["blank_successors"] == 3 and dataset.manifest.licence == "CC-BY-NC-4.0"
    assert dataset["observation"].dtype.itemsize == 1


@given(
    steps=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    kind=st.sampled_from(["npy", "npz"]),
    protocol=st.sampled_from([3, 4, 5]),
    frames=st.sampled_from(["float32", "float64", "uint8", ">f4"]),
    actions=st.sampled_from(["int64", "int32", "uint8"]),
    dones=st.sampled_from(["float32", "bool", "int64"]),
    flat=st.booleans(),
    done=st.booleans(),
    packed_tar=st.booleans(),
)
@rules(max_examples=examples(10), suppress_health_check=[HealthCheck.too_slow])
def test_an_independent_reader_agrees(
    tmp_path_factory, steps, kind, protocol, frames, actions, dones, flat, done, packed_tar
):
    top = tmp_path_factory.mktemp("archives")
    episodes = [episode(count, seed, side=16) for seed, count in enumerate(steps)]
    for one in episodes:
        one["observations"] = one["observations"].astype(frames)
        one["actions"] = one["actions"].astype(actions)
        one["dones"][-1] = done
        one["dones"] = one["dones"].astype(dones)
        if flat:
            one["rewards"] = one["rewards"][:, 0]
    file = write(top / f"chaser.tar{'.xz' if packed_tar else ''}", episodes, kind=kind, protocol=protocol)
    path = rbdata.convert(file, "my/x", source="gen_dgrl", root=top / "root", procs=0)
    if flat:
        for one in episodes:
            one["rewards"] = one["rewards"][:, None]
        file = write(top / "again.tar", episodes, kind=kind, protocol=protocol)
    assert_holds(Dataset(path), expected(file))


@pytest.mark.parametrize("unknown_next", ["truncate", "zero"])
def test_trap_84_an_episode_as_long_as_the_time_limit_is_truncated(unknown_next, tmp_path):
    episodes = [episode(499), episode(500, side=16), episode(3)]
    for one in episodes:
        one["observations"] = one["observations"][..., :16, :16]
    file = write(tmp_path / "raw" / EXPERT / "maze.tar.xz", episodes, folder="maze")
    dataset = get("maze-1M_E", tmp_path / "root", tmp_path / "raw", unknown_next=unknown_next)
    assert_holds(dataset, expected(file, limit=500, zero=unknown_next == "zero"))
    counts = dataset.manifest.counts
    assert counts["terminated_episodes"] == 2 and counts["time_limit_episodes"] == 1
    assert counts["given_up_steps" if unknown_next == "truncate" else "unknown_next_steps"] == 1
    assert len(dataset) == 499 + 500 + 3 - (unknown_next == "truncate")
    assert [LIMITS[game] for game in ("bigfish", "plunder", "leaper", "coinrun")] == [6000, 4000, 500, 1000]


def test_trap_85_the_dataset_is_as_long_as_its_episodes(tmp_path):
    """TorchRL's has as many steps as the set is named by: the rest is zeros, or cut."""
    dataset = get("chaser-1M_E", tmp_path)
    assert len(dataset) == dataset.episodes.lengths.sum() == 48 and dataset["observation"].flatten(1).any(1).all()


def test_level_seed_and_return_of_the_file_are_kept(tmp_path):
    one, other = episode(4), episode(6)
    files = {f"chaser/{gen_dgrl_truth.file_name(one, 7)}": packed(one)}
    files["chaser/20230329T092200_8_6_-1_9.50.npy"] = packed(other)  # its return is 10
    files["chaser/README.txt"] = b"about"
    file = write_files(tmp_path / "chaser.tar.xz", files)
    dataset = Dataset(rbdata.convert(file, "my/x", root=tmp_path / "root", procs=0))
    assert dataset["info/level_seed"].flatten().tolist() == [107] * 4 + [-1] * 6
    assert dataset["info/stated_return"].flatten().tolist() == [10.0] * 4 + [9.5] * 6
    assert (dataset.manifest.counts["other_names"], dataset.manifest.counts["other_files"]) == (1, 1)
    assert len(dataset.manifest.notes) == 3


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("chaser-10M", "10M/chaser.tar.xz"),
        ("chaser-1M_S", "Procgen/Datasets/Compressed/1M/level_200/suboptimal/chaser.tar.xz"),
        ("chaser-level_1_E", "Procgen/Datasets/Compressed/100k/level_1/expert/chaser.tar.xz"),
        ("chaser-level_40_S", "100k/level_40/suboptimal/chaser.tar.xz"),
        ("chaser-level_40_E", "100k_procgen_dataset_40.tar"),
        ("chaser-level_1_S", "100k_procgen_dataset_1_suboptimal.tar"),
    ],
)
def test_every_layout_over_http(name, path, tmp_path):
    file = write(tmp_path / "raw" / path, [episode(3), episode(2)], folder="chaser")
    if path.startswith("100k_"):
        everything = {
            f"{game}/{gen_dgrl_truth.file_name(episode(n), n)}": packed(episode(n))
            for n, game in enumerate(("bigfish", "chaser", "maze"), 2)
        }
        file = write_files(file, everything)
    with http_server(tmp_path / "raw") as server:
        dataset = get(name, tmp_path / "root", server.url)
        assert_holds(dataset, expected(file, game="chaser"))
        assert dataset.manifest.source["objects"][0]["name"] == path
        with pytest.raises(ObjectNotFoundError, match="no archive of chaser-25M"):
            get("chaser-25M", tmp_path / "root", server.url)


def test_archives_are_converted_by_their_name_their_folders_or_as_told(tmp_path):
    convert = {"root": tmp_path / "root", "procs": 0}
    mixed = {
        f"{game}/{gen_dgrl_truth.file_name(episode(2), n)}": packed(episode(2))
        for n, game in enumerate(("bigfish", "chaser"))
    }
    all_games = write_files(tmp_path / "all.tar", mixed)
    with pytest.raises(CorruptSourceError, match="is of chaser, not of bigfish") as caught:
        rbdata.convert(all_games, "my/x", source="gen_dgrl", **convert)
    assert "--dataset" in str(caught.value.hint)
    made = rbdata.convert(all_games, "my/x", source="gen_dgrl", dataset="chaser-level_1_E", **convert)
    assert_holds(Dataset(made), expected(all_games, game="chaser"))
    flat = write_files(
        tmp_path / "flat" / "chaser.tar.xz", {gen_dgrl_truth.file_name(episode(2), 1): packed(episode(2))}
    )
    assert len(Dataset(rbdata.convert(flat.parent, "my/flat", **convert))) == 2
    with pytest.raises(UsageError, match="no dataset 'x'"):
        rbdata.convert(all_games, "my/y", source="gen_dgrl", dataset="x", **convert)


def test_the_names_are_those_of_torchrl():
    theirs = pytest.importorskip("torchrl.data.datasets").GenDGRLExperienceReplay.available_datasets
    assert GenDgrlSource().names() == list(theirs)
    entry = rbdata.info("gen_dgrl/chaser-1M_E")
    assert entry.bytes == 178_687_792 and entry.places[0].url == "https://dl.fbaipublicfiles.com/DGRL"


# -- bad input -----------------------------------------------------------------------------------------------------------


class Hostile:
    def __reduce__(self):
        return os.system, (f"touch {Path.cwd() / 'hostile'}",)


def bad_files():
    good = episode(3, side=16)
    name = f"chaser/{gen_dgrl_truth.file_name(good, 0)}"
    yield (
        "a hostile pickle",
        {name: packed({**good, "actions": Hostile()})},
        r"asks for posix\.system, which is never called",
    )
    yield "objects", {name: packed({**good, "actions": np.array([Hostile()], object)})}, "never called"
    yield "a list", {name: packed([1, 2])}, "holds a list|an array of objects"
    yield "one array", {name: npy(good["observations"])}, "holds one array"
    yield (
        "no actions",
        {name: packed({key: good[key] for key in ("observations", "rewards", "dones")})},
        "has no actions",
    )
    yield "text", {name: b"hello, this is no episode"}, "is not a .npy array"
    yield "nothing", {name: b""}, "is not a .npy array"
    yield "halves", {name: packed({**good, "observations": good["observations"] + 0.5})}, "whole numbers from 0 to 255"
    yield "a frame too few", {name: packed({**good, "observations": good["observations"][1:]})}, "do not fit together"
    yield "an action too many", {name: packed({**good, "actions": np.zeros((4, 1), int)})}, "do not fit together"
    yield "done before", {name: packed({**good, "dones": np.ones(3)})}, "row 0 of 3 is done"
    yield "half done", {name: packed({**good, "dones": np.full(3, 0.5)})}, "row 0 is 0.5"
    yield "a reward of NaN", {name: packed({**good, "rewards": np.full((3, 1), np.nan)})}, "reward of step 0 is nan"
    yield "an npz of pickles", {name: packed({**good, "actions": np.array([{}] * 3, object)}, "npz")}, "asks for pickle"
    yield "leads out", {"../" + name: packed(good)}, "leads out of it"
    yield "no episode", {"chaser/a.txt": b"x"}, "no episode with a step"
    yield (
        "other frames",
        {name: packed(good), name.replace("_0_", "_1_"): packed(episode(3, side=20))},
        "is unlike the first|has rows of",
    )


def npy(array: np.ndarray) -> bytes:
    import io

    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("files", "problem"), [case[1:] for case in bad_files()], ids=[case[0] for case in bad_files()]
)
def test_bad_archives(files, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "raw" / EXPERT / "chaser.tar.xz", files)
    with pytest.raises(CorruptSourceError, match=problem) as caught:
        get("chaser-1M_E", tmp_path / "root", tmp_path / "raw")
    assert "chaser" in str(caught.value) and caught.value.code == CorruptSourceError.code
    assert not list(tmp_path.rglob("hostile")) and not list(tmp_path.rglob("rbdata.json"))


def test_a_broken_connection_is_resumed_and_a_cut_archive_is_an_error(tmp_path):
    file = tmp_path / "raw" / EXPERT / "chaser.tar.xz"
    whole = write(file, [episode(40, seed) for seed in range(4)]).read_bytes()
    with http_server(tmp_path / "raw") as server:
        server.faults.cut(after=len(whole) // 2)
        assert_holds(get("chaser-1M_E", tmp_path / "root", server.url), expected(file))
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(CorruptSourceError, match="cut short"):
            get("chaser-1M_E", tmp_path / "other root", server.url)
        assert not list((tmp_path / "other root").rglob("rbdata.json"))
        file.write_bytes(whole)
        assert_holds(get("chaser-1M_E", tmp_path / "other root", server.url), expected(file))


def test_a_bomb_is_an_error(tmp_path, monkeypatch):
    """A pickle that asks for an array of 8 TB, and an archive that unpacks to more than an episode has."""
    monkeypatch.setattr("rbdata.datasets.sources.gen_dgrl.reader._MOST_BYTES", 32 << 20)
    good = episode(3, side=16)
    name = f"chaser/{gen_dgrl_truth.file_name(good, 0)}"
    whole = packed(good, protocol=3)
    shape = whole.index(b"K\x04K\x03K\x10K\x10")  # of the observations
    wide = whole[:shape] + b"K\x04J\xff\xff\xff\x7fK\x10K\x10" + whole[shape + 8 :]
    for number, (data, problem) in enumerate(((wide, "damaged pickle"), (bytes((32 << 20) + 1), "too many for one"))):
        write_files(tmp_path / "raw" / EXPERT / "chaser.tar.xz", {name: data})
        with pytest.raises(CorruptSourceError, match=problem):
            get("chaser-1M_E", tmp_path / f"root{number}", tmp_path / "raw")


@pytest.mark.parametrize("kind", ["plain", "xz"])
def test_an_archive_that_is_cut_anywhere_is_an_error(kind, tmp_path):
    """Also between two files, where a tar seems to end."""
    suffix = ".xz" if kind == "xz" else ""
    file = write(tmp_path / f"chaser.tar{suffix}", [episode(2, seed, side=16) for seed in range(3)])
    whole = file.read_bytes()
    with tarfile.open(file) as archive:
        members = [member.offset for member in archive][1:]
    for size in (0, 100, len(whole) // 2, *(members if kind == "plain" else [len(whole) - 50])):
        file.write_bytes(whole[:size])
        with pytest.raises(CorruptSourceError, match="chaser"):
            rbdata.convert(file, "my/x", source="gen_dgrl", root=tmp_path / "root", procs=0)


@pytest.mark.parametrize("kind", ["link", "device"])
def test_links_and_devices_are_refused(kind, tmp_path):
    good = episode(3, side=16)
    file = write(tmp_path / "chaser.tar", [good])
    with tarfile.open(file, "a") as archive:
        member = tarfile.TarInfo("chaser/" + gen_dgrl_truth.file_name(good, 1))
        member.type, member.linkname = (tarfile.SYMTYPE if kind == "link" else tarfile.CHRTYPE), "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(CorruptSourceError, match="neither a file nor a folder"):
        rbdata.convert(file, "my/x", source="gen_dgrl", root=tmp_path / "root", procs=0)
