"""Exports to LeRobotDatasets, read by pyarrow and PyAV alone and by `rbdata convert`: the same values, episodes and flags."""

from __future__ import annotations

import io
import json
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lerobot_tools
import numpy as np
import pyarrow.parquet as pq
import pytest
import rbdata
from PIL import Image
from processes import run_forked
from rbdata import cli
from rbdata.datasets.export import write_export
from rbdata.errors import DatasetExistsError, DiskError, ExportWarning, MissingExtraError, UsageError
from video_tools import decoded, moving_frames

LENGTHS = [5, 1, 9, 30]
#: How the episodes end: terminated, truncated.
ENDS = [(True, False), (False, True), (False, False), (True, True)]


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "root"))
    return tmp_path / "root"


def episodes(**observation: Any) -> Iterator[dict[str, Any]]:
    """``observation`` are shapes of float32 rows by name, or True for frames of 64 x 48 pixels."""
    rng = np.random.default_rng(0)
    for number, (length, (terminated, truncated)) in enumerate(zip(LENGTHS, ENDS)):
        states = {
            name: moving_frames(length + 1, 48, 64, number)
            if shape is True
            else rng.normal(size=(length + 1, *shape)).astype(np.float32)
            for name, shape in observation.items()
        }
        yield {
            "observation": states.get("", states),
            "action": rng.normal(size=(length, 2)).astype(np.float32),
            "reward": rng.normal(size=length).astype(np.float32),
            "terminated": terminated,
            "truncated": truncated,
            "info": {"goal": rng.normal(size=(length, 2)), "timestamp": rng.normal(size=length)},
        }


def make(several: Iterator[dict[str, Any]], name: str = "my/x") -> rbdata.Dataset:
    return rbdata.open_dataset(rbdata.from_episodes(several, name))


@pytest.fixture(scope="module")
def filmed(tmp_path_factory: pytest.TempPathFactory) -> rbdata.Dataset:
    """A dataset of frames and vectors, which no test changes."""
    root = tmp_path_factory.mktemp("filmed")
    return rbdata.open_dataset(rbdata.from_episodes(episodes(pixels=True, state=(3,)), "my/x", root=root))


def export(dataset: rbdata.Dataset, dest: Path, **options: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExportWarning)
        return rbdata.export(dataset, dest, "lerobot", **options)


def back(path: Path, name: str = "my/back") -> rbdata.Dataset:
    found = rbdata.open_dataset(rbdata.convert(path, name, source="lerobot"))
    assert rbdata.verify(name).ok
    return found


def assert_same(found: rbdata.Dataset, wanted: rbdata.Dataset) -> None:
    """Every leaf of ``wanted`` is in ``found`` with its values and dtype, and episodes end in the same way."""
    assert found.episodes.lengths.tolist() == wanted.episodes.lengths.tolist()
    assert found.episodes.outcomes.tolist() == wanted.episodes.outcomes.tolist()
    for name in wanted.schema.names:
        values = found[name]
        assert values.dtype == wanted[name].dtype
        np.testing.assert_array_equal(values, wanted[name], err_msg=name)


def final_rows(dataset: rbdata.Dataset, key: str) -> np.ndarray:
    """The rows that an export has: those of each episode, and its final observation or the last row again."""
    after = f"next/{key}" if f"next/{key}" in dataset.schema.names else key
    rows, last, parts = dataset[key].numpy(), dataset[after].numpy(), []
    for start, length in zip(dataset.episodes.starts, dataset.episodes.lengths):
        parts += [rows[start : start + length], last[start + length - 1 : start + length]]
    return np.concatenate(parts)


def rows_of(folder: Path) -> dict[str, np.ndarray]:
    """All rows by column, as pyarrow reads them; pictures as Pillow decodes them."""
    table = pq.read_table(sorted((folder / "data").rglob("*.parquet")))
    columns = {name: table[name].to_pylist() for name in table.column_names}
    return {
        name: np.stack([np.asarray(Image.open(io.BytesIO(cell["bytes"]))) for cell in cells])
        if isinstance(cells[0], dict)
        else np.array(cells)
        for name, cells in columns.items()
    }


# -- to lerobot and back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("observation", [{"": (3,)}, {"": True}, {}])
def test_what_is_exported_is_converted_to_the_same(observation: Any, tmp_path: Path) -> None:
    """Episodes that were terminated, truncated, cut, or both at once; one of a single step."""
    dataset = make(episodes(**(observation or {"pixels": True, "grid": (2, 3), "cube": (2, 2, 2)})))
    path = export(dataset, tmp_path / "out", frames="image", fps=5)
    assert_same(back(path), dataset)


def test_files_are_as_the_format_says(tmp_path: Path) -> None:
    """The last row of an episode holds the final observation, and repeats the one before otherwise."""
    dataset = make(episodes(state=(3,), grid=(2, 3)))
    path = export(dataset, tmp_path / "out", fps=5)
    rows, info = rows_of(path), json.loads((path / "meta" / "info.json").read_text())
    for name, key in {
        "observation.state": "observation/state",
        "observation.grid": "observation/grid",
        "action": "action",
        "goal": "info/goal",
        "info.timestamp": "info/timestamp",
        "next.reward": "next/reward",
    }.items():
        wanted = final_rows(dataset, key)
        np.testing.assert_array_equal(rows[name], wanted.reshape(rows[name].shape))
        assert tuple(info["features"][name]["shape"]) == (wanted.shape[1:] or (1,))
    places = [np.arange(length + 1) for length in LENGTHS]
    frame, episode = np.concatenate(places), np.repeat(range(4), [len(one) for one in places])
    np.testing.assert_array_equal(rows["frame_index"], frame)
    np.testing.assert_array_equal(rows["episode_index"], episode)
    np.testing.assert_array_equal(rows["index"], range(len(frame)))
    np.testing.assert_allclose(rows["timestamp"], frame / 5, rtol=1e-6)
    assert not rows["task_index"].any()
    last_two = frame >= np.repeat(LENGTHS, [len(one) for one in places]) - 1
    terminated, truncated = (np.array([end[which] for end in ENDS])[episode] & last_two for which in (0, 1))
    np.testing.assert_array_equal(rows["next.terminated"], terminated)
    np.testing.assert_array_equal(rows["next.truncated"], truncated)
    np.testing.assert_array_equal(rows["next.done"], terminated | truncated)
    assert info["codebase_version"] == "v3.0" and info["fps"] == 5 and info["video_path"] is None
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (4, len(frame), 1)
    listed = pq.read_table(path / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [one["length"] for one in listed] == [len(one) for one in places]
    assert [one["dataset_to_index"] for one in listed] == np.cumsum([len(one) for one in places]).tolist()
    assert pq.read_table(path / "meta/tasks.parquet").to_pydict() == {"task_index": [0], "task": [""]}


@pytest.mark.parametrize("clock", [False, True])
def test_a_final_observation_that_is_not_in_the_data_has_no_row(clock: bool, tmp_path: Path) -> None:
    """Zeros follow a terminated step of data without successors (robomimic): no row of them, and none in the statistics."""
    rng, count = np.random.default_rng(0), 12
    rows = {"pixels": rng.integers(1, 255, (count, 32, 40, 3), np.uint8), "state": rng.normal(5, 1, (count, 3))}
    ends = np.isin(np.arange(count), (4, count - 1))
    arrays = {"observation": rows, "action": rng.normal(size=(count, 2)), "reward": np.ones(count), "terminated": ends}
    dataset = rbdata.open_dataset(rbdata.from_arrays(arrays | {"truncated": ends & clock}, "my/x"))
    path = export(dataset, tmp_path / "out", frames="image")
    found, stats = rows_of(path), json.loads((path / "meta" / "stats.json").read_text())
    for name, key in {"observation.pixels": "observation/pixels", "action": "action"}.items():
        np.testing.assert_array_equal(found[name], dataset[key])
    np.testing.assert_array_equal(found["next.done"], ends)
    assert stats["observation.state"]["count"] == [count] and min(stats["observation.state"]["min"]) > 0
    listed = pq.read_table(path / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [one["length"] for one in listed] == [5, 7]
    assert_same(back(path), dataset)
    codes = [{one.code for one in rbdata.audit(name).findings} for name in ("my/back", "my/x")]
    assert codes[0] <= codes[1]


def test_statistics(filmed: rbdata.Dataset, tmp_path: Path) -> None:
    """Of all rows. Of frames a channel, in parts of 255."""
    path = export(filmed, tmp_path / "out", frames="image")
    rows, stats = rows_of(path), json.loads((path / "meta" / "stats.json").read_text())
    for name in ("observation.state", "action", "goal", "next.reward", "next.done", "index"):
        values, found = rows[name].astype(float).reshape(len(rows["index"]), -1), stats[name]
        for key, wanted in {
            "min": values.min(0),
            "max": values.max(0),
            "mean": values.mean(0),
            "std": values.std(0),
        }.items():
            np.testing.assert_allclose(found[key], wanted, rtol=1e-6, err_msg=f"{name} {key}")
        assert found["count"] == [len(values)]
    pixels, found = rows["observation.pixels"].reshape(-1, 3) / 255, stats["observation.pixels"]
    assert np.shape(found["mean"]) == (3, 1, 1)
    for key, values in {
        "min": pixels.min(0),
        "max": pixels.max(0),
        "mean": pixels.mean(0),
        "std": pixels.std(0),
    }.items():
        np.testing.assert_allclose(np.ravel(found[key]), values, rtol=1e-6)
    listed = pq.read_table(path / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    np.testing.assert_allclose(listed[3]["stats/action/max"], rows["action"][-31:].max(0))


def test_keys_come_back_as_they_were(tmp_path: Path) -> None:
    """Also those that lerobot's columns have no names for, and lerobot's own columns where the data had them."""

    def named() -> Iterator[dict[str, Any]]:
        for one in episodes(**{"": (3,)}):
            steps = np.arange(len(one["reward"]))
            yield {**one, "step_count": steps, "task_index": steps % 3, "frame_index": steps / 7, "collector/id": steps}

    dataset = make(named())
    found = back(export(dataset, tmp_path / "out"))
    assert set(found.schema.names) == set(dataset.schema.names)
    for key in dataset.schema.names:
        np.testing.assert_array_equal(found[key], dataset[key], err_msg=key)


def test_frames_are_video_by_default(filmed: rbdata.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several files; an episode's frames are where its metadata say, in the order of its rows."""
    monkeypatch.setattr("rbdata.datasets.formats.lerobot._VIDEO_BYTES", 1000)
    monkeypatch.setattr("rbdata.datasets.formats.lerobot._DATA_BYTES", 1)
    done = write_export(filmed, tmp_path / "out", "lerobot", fps=10)
    assert any("observation/pixels: H.264 video, which changes values" in note for note in done.notes)
    wanted, at = final_rows(filmed, "observation/pixels").astype(int), 0
    listed = pq.read_table(sorted((tmp_path / "out/meta/episodes").rglob("*.parquet"))).to_pylist()
    camera = "videos/observation.pixels"
    assert len({one["data/file_index"] for one in listed}) == 4
    assert len({one[f"{camera}/file_index"] for one in listed}) > 1
    for one in listed:
        chunk, file = one[f"{camera}/chunk_index"], one[f"{camera}/file_index"]
        frames = decoded(tmp_path / "out" / camera / f"chunk-{chunk:03d}/file-{file:03d}.mp4")
        first, last = (round(one[f"{camera}/{end}_timestamp"] * 10) for end in ("from", "to"))
        assert last - first == one["length"]
        assert np.abs(frames[first:last] - wanted[at : at + one["length"]]).mean() < 4
        at += one["length"]
    found = back(tmp_path / "out")
    assert found.episodes.outcomes.tolist() == filmed.episodes.outcomes.tolist()
    np.testing.assert_array_equal(found["observation", "state"], filmed["observation", "state"])
    off = found["observation", "pixels"].numpy().astype(int) - filmed["observation", "pixels"].numpy()
    assert np.abs(off).mean() < 4


@pytest.mark.parametrize("name", ["v3_plain", "v3_done"])
def test_data_of_lerobot_itself_come_back(name: str, tmp_path: Path) -> None:
    """With the texts and numbers of their tasks, their rate and their robot; lerobot's own columns are not there twice."""
    dataset = rbdata.open_dataset(rbdata.convert(lerobot_tools.FIXTURES / name, "my/first", source="lerobot"))
    path = export(dataset, tmp_path / "out", frames="image")
    info = json.loads((path / "meta" / "info.json").read_text())
    assert (info["fps"], info["robot_type"], info["total_tasks"]) == (10, "toy", 2)
    found = back(path)
    assert set(found.schema.names) == set(dataset.schema.names)
    assert_same(found, dataset)
    assert lerobot_tools.texts(found["task"]) == lerobot_tools.texts(dataset["task"])
    assert found.manifest.source["tasks"] == dataset.manifest.source["tasks"]
    some = export(dataset.select(episodes=[1]), tmp_path / "some", frames="image")  # tasks by the texts alone
    assert lerobot_tools.texts(back(some, "my/some")["task"]) == lerobot_tools.texts(dataset.episode(1)["task"])


def test_texts_of_another_leaf_are_the_tasks(tmp_path: Path) -> None:
    texts = text_rows("lift it", "öffne die Tür", "lift it")
    several = ({**one, "info": {"language_instruction": texts[[number] * length]}} for number, length, one in _first(3))
    dataset = make(several)
    done = write_export(dataset, tmp_path / "out", "lerobot", fps=5)
    assert "info/language_instruction: it is the task of each step." in done.notes
    assert rows_of(done.path)["task_index"].tolist() == [0] * 6 + [1] * 2 + [0] * 10
    listed = pq.read_table(done.path / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [one["tasks"] for one in listed] == [["lift it"], ["öffne die Tür"], ["lift it"]]
    assert lerobot_tools.texts(back(done.path)["task"])[5] == "öffne die Tür"


def text_rows(*texts: str) -> np.ndarray:
    return np.stack([np.frombuffer(text.encode().ljust(20, b"\0"), np.uint8) for text in texts])


def _first(count: int) -> Iterator[tuple[int, int, dict[str, Any]]]:
    yield from zip(range(count), LENGTHS, episodes(state=(3,)))


def test_leaves_of_every_dtype_and_shape(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    dtypes = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
    info: dict[str, Any] = {dtype: rng.integers(0, 2, (4, 3)).astype(dtype) for dtype in dtypes}
    info |= {"int64": rng.integers(-(1 << 63), (1 << 63) - 1, (4, 3)), "one": rng.normal(size=(4, 1)), "six": None}
    info |= {"six": np.zeros((4, 1, 2, 1, 2, 1, 2)), "wide": rng.normal(size=(4, 5000)), "index": rng.normal(size=4)}
    info |= {"action": rng.normal(size=(4, 2)), "tiny": rng.integers(0, 9, (4, 7, 7, 3), np.uint8)}
    info |= {
        "alpha": rng.integers(0, 9, (4, 32, 32, 4), np.uint8),
        "first": rng.integers(0, 9, (4, 1, 32, 40), np.uint8),
    }
    one = {"observation": rng.normal(size=(5, 2)), "action": rng.integers(-9, 9, 4), "reward": np.ones(4), "info": info}
    dataset = make(iter([one]))
    done = write_export(dataset, tmp_path / "out", "lerobot", fps=2.5, frames="image")
    notes = " ".join(done.notes)
    for said in (
        "Not exported: info/six,",
        "info/first: rows of [1, 32, 40] are pictures of [32, 40, 1].",
        "info/wide: rows of [5000] are too large for statistics",
        "observation: its column is observation.state.",
    ):
        assert said in notes
    found = back(done.path)
    for key in dataset.schema.names:
        if key not in ("info/six", "info/first"):
            values = found[key]
            assert values.dtype == dataset[key].dtype, key
            np.testing.assert_array_equal(values, dataset[key], err_msg=key)
    np.testing.assert_array_equal(found["info/first"][..., 0], dataset["info/first"][:, 0])


def test_a_rate_that_nothing_states_is_said(tmp_path: Path) -> None:
    done = write_export(make(episodes(state=(3,))), tmp_path / "out", "lerobot")
    assert any("30 steps a second are assumed" in note for note in done.notes)
    assert json.loads((done.path / "meta" / "info.json").read_text())["fps"] == 30


def test_grey_frames_of_odd_sides_are_video_of_three_channels(tmp_path: Path) -> None:
    frames = moving_frames(6, 48, 64)[:, :35, :33, :1]
    one = {"observation": frames, "action": np.zeros((5, 1)), "reward": np.zeros(5)}
    done = write_export(make(iter([one])), tmp_path / "out", "lerobot", fps=10)
    assert any("one channel" in note for note in done.notes)
    video = decoded(done.path / "videos/observation.image/chunk-000/file-000.mp4")
    assert np.abs(video.astype(int) - frames).mean() < 4


# -- bad input -----------------------------------------------------------------------------------------------------------


def test_options_that_do_not_apply(tmp_path: Path) -> None:
    dataset = make(episodes(state=(3,)))
    for to, options in (("npz", {"frames": "image"}), ("lerobot", {"frames": "gif"}), ("lerobot", {"fps": 0})):
        with pytest.raises(UsageError, match=next(iter(options))):
            rbdata.export(dataset, tmp_path / "out", to, **options)
    assert not list(tmp_path.glob("*out*"))


def test_text_that_is_none(tmp_path: Path) -> None:
    task = np.tile(np.frombuffer(b"pick\0\0", np.uint8), (5, 1))
    task[3] = 255
    (_, _, one), *_ = _first(1)
    dataset = make(iter([one | {"task": task}]))
    with pytest.raises(UsageError, match="task of step 3 is no text"):
        export(dataset, tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


def test_without_the_extra_for_parquet(filmed: rbdata.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for to in ("lerobot", "parquet"):
        with pytest.raises(MissingExtraError, match="needs pyarrow"):
            rbdata.export(filmed, tmp_path / "out", to=to)
    assert not list(tmp_path.glob("*out*"))


def test_without_the_extra_for_video(filmed: rbdata.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match="observation/pixels"):
        export(filmed, tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))
    export(filmed, tmp_path / "out", frames="image")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
@pytest.mark.parametrize("suffix", [".mp4", ".parquet"])
def test_a_full_disk(suffix: str, filmed: rbdata.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there stays, nothing is left beside it, and a second try succeeds."""
    kept = export(filmed, tmp_path / "out", fps=5)
    begin = Path.open
    with monkeypatch.context() as patch:

        def on_full_disk(path: Path, *mode: Any, **how: Any) -> Any:
            return begin(Path("/dev/full") if path.suffix == suffix else path, *mode, **how)

        patch.setattr(Path, "open", on_full_disk)
        with pytest.raises(DiskError, match="the disk is full"):
            export(filmed, tmp_path / "out", force=True)
    assert json.loads((kept / "meta" / "info.json").read_text())["fps"] == 5
    assert [one.name for one in tmp_path.glob("*out*")] == ["out"]
    export(filmed, tmp_path / "out", force=True, fps=6)
    assert json.loads((kept / "meta" / "info.json").read_text())["fps"] == 6


def test_an_existing_target_is_kept(tmp_path: Path) -> None:
    dataset = make(episodes(state=(3,)))
    (tmp_path / "out").mkdir()
    with pytest.raises(DatasetExistsError):
        export(dataset, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


_KILLED = """
import os, signal, sys
import rbdata
from rbdata.datasets.export import write_export

write_export(rbdata.open_dataset(sys.argv[2]), sys.argv[1], "lerobot", report=lambda *_: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_what_a_killed_export_left_is_removed_by_the_next(filmed: rbdata.Dataset, tmp_path: Path) -> None:
    assert run_forked(_KILLED, str(tmp_path / "out"), str(filmed.path)) == -signal.SIGKILL
    (left,) = tmp_path.glob("*out*")
    assert left.name.startswith(".out.")
    assert_same(back(export(filmed, tmp_path / "out", frames="image")), filmed)
    assert [one.name for one in tmp_path.glob("*out*")] == ["out"]


def test_the_command(filmed: rbdata.Dataset, tmp_path: Path) -> None:
    words = ["export", str(filmed.path), str(tmp_path / "out"), "--to"]
    assert cli.run([*words, "lerobot", "--fps", "12.5", "--frames", "image"]) == 0
    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert info["fps"] == 12.5 and info["features"]["observation.pixels"]["dtype"] == "image"
    assert cli.run([*words, "npz", "--fps", "12.5"]) == 2
