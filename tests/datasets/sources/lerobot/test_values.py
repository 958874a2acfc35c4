"""Values, episodes and flags of LeRobotDatasets, compared with what was written. Traps are those of the notes on robot data."""

from __future__ import annotations

import lerobot_tools
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rbdata
from lerobot_tools import TASKS, ended, episode, texts, write
from PIL import Image
from rbdata.errors import CorruptSourceError, UsageError
from video_tools import decoded

FRONT, WRIST = "observation.images.front", "observation.images.wrist"


@pytest.fixture
def convert(tmp_path):
    """Converts a folder; returns the dataset."""
    count = iter(range(100))

    def run(folder, **options):
        name = f"my/{next(count)}"
        rbdata.convert(
            folder, name, source="lerobot", root=tmp_path / "root", progress=False, **{"procs": 0, **options}
        )
        assert rbdata.verify(name, root=tmp_path / "root").ok
        return rbdata.open_dataset(name, root=tmp_path / "root")

    return run


def shifted(rows, steps):
    """The successors: the next rows, and zeros behind the last."""
    return np.concatenate([rows[1:], np.zeros_like(rows[:1])])[:steps]


@pytest.mark.parametrize("name", ["v3_plain", "v3_done", "v21_plain"])
def test_data_of_lerobot_itself(convert, name):
    """AV1 and H.264, two videos a camera, layouts v3 and v2.1, an episode of one row, a task that changes inside one."""
    dataset, kept = convert(lerobot_tools.FIXTURES / name), 0
    for rows in lerobot_tools.truth(name):
        is_done = bool(rows.get("done", np.zeros(1))[-1])
        steps = len(rows["action"]) - (not is_done)
        if not steps:
            continue
        found = dataset.episode(kept)
        kept += 1
        assert np.array_equal(found["observation", "state"], rows["state"][:steps])
        assert np.array_equal(found["next", "observation", "state"], shifted(rows["state"], steps))
        for camera in ("front", "wrist"):
            frames = rows[f"decoded/observation.images.{camera}"]
            assert np.array_equal(found["observation", "images", camera], frames[:steps])
            assert np.array_equal(found["next", "observation", "images", camera], shifted(frames, steps))
        assert np.array_equal(found["action"], rows["action"][:steps])
        assert texts(found["task"]) == rows["task"][:steps].tolist()
        assert np.array_equal(found["next", "reward"][:, 0], rows.get("reward", np.zeros(steps + 1))[:steps])
        assert found["next", "terminated"][-1].item() == is_done
        assert found["next", "truncated"][-1].item() != is_done
        if "success" in rows:
            assert np.array_equal(found["next", "success"][:, 0], rows["success"][:steps])
    assert kept == len(dataset.episodes)


def test_every_kind_of_camera(convert, tmp_path):
    """78: HEVC and H.264; pictures in the rows; depth, whose codes are logarithms."""
    cameras = {FRONT: "hevc", WRIST: "image", "observation.depth": "depth", "observation.images.top": "h264-b"}
    frames = write(tmp_path / "raw", {0: episode(6), 1: episode(9, 1)}, cameras=cameras, size=(64, 96))
    dataset = convert(tmp_path / "raw")
    assert dataset.manifest.source["keys"]["observation/images/wrist"] == WRIST
    codes = np.concatenate([frames["observation.depth"][0][:5], frames["observation.depth"][1][:8]])
    metres = np.exp(codes / 4095 * (np.log(7.5) - np.log(4.0)) + np.log(4.0)) - 3.5
    found = dataset["observation", "depth"]
    assert found.shape[1:] == (64, 96, 1) and str(found.dtype) == "torch.float32"
    assert np.allclose(found[..., 0], metres, atol=1e-5)
    pictures = np.concatenate([frames[WRIST][0][:5], frames[WRIST][1][:8]])
    assert np.array_equal(dataset["observation", "images", "wrist"], pictures)
    for camera in ("front", "top"):
        every = decoded(tmp_path / "raw" / f"videos/observation.images.{camera}/chunk-000/file-000.mp4")
        assert np.array_equal(dataset["observation", "images", camera], np.delete(every, [5, 14], 0))


def test_columns_of_all_kinds(convert, tmp_path):
    rows = episode(
        4,
        **{
            "observation.grid": np.arange(24, dtype=np.int16).reshape(4, 2, 3),
            "observation.gripper": np.array([0.5, 1, 2, 3]),
            "complementary_info.discrete-penalty": np.arange(4, dtype=np.float32),
            "note": np.array(["a", "b", "c", "d"]),
        },
    )
    write(tmp_path / "raw", {0: rows}, shapes={"observation.grid": (2, 3)})
    dataset = convert(tmp_path / "raw")
    assert np.array_equal(dataset["next", "observation", "grid"], rows["observation.grid"][1:])
    assert dataset["observation", "gripper"].tolist() == [0.5, 1, 2]
    assert dataset["info", "complementary_info", "discrete_penalty"].tolist() == [0, 1, 2]
    assert dataset["info", "timestamp"].tolist() == pytest.approx([0, 0.1, 0.2])
    assert dataset["task_index"].tolist() == rows["task_index"][:3].tolist()
    assert texts(dataset["task"]) == [TASKS[index] for index in rows["task_index"][:3]]
    assert dataset.manifest.source["left_out"] == {"note": "its dtype is string"}
    assert dataset.manifest.source["tasks"] == {"0": TASKS[0], "1": TASKS[1]}


@pytest.mark.parametrize("is_reversed", [False, True])
def test_columns_whose_names_continue_those_of_others(convert, tmp_path, is_reversed):
    """As in DROID: ``action`` and ``action.original``, ``observation.state`` and ``observation.state.gripper``."""
    names = ["action.original", "action.delta.x", "observation.state.gripper", "Action.y", "a.b", "a.b.c", "a_b"]
    names += ["observation.State", "observation.state.a", "observation.state_a", "observation"]
    names += ["info", "info.x", "task_index.x"]
    extra = {name: np.arange(4, dtype=np.float32) + 10 * place for place, name in enumerate(names)}
    rows = episode(4, **extra)
    rows = {name: rows[name] for name in sorted(rows, reverse=is_reversed)}
    write(tmp_path / "raw", {0: rows})
    dataset = convert(tmp_path / "raw")
    keys = {feature: key for key, feature in dataset.manifest.source["keys"].items()}
    assert keys["action"] == "action" and keys["observation.state"] in ("observation/state", "observation/state_")
    assert keys["action.original"] == "info/action_original" and keys["action.delta.x"] == "info/action_delta/x"
    assert keys["info"] == "info/info" and keys["task_index.x"] == "info/task_index_x"
    assert keys["a.b"] == "info/a/b" and keys["a.b.c"] == "info/a/b_c"
    for name in (*names, "action", "observation.state"):
        found = dataset[keys[name]].numpy()
        assert np.array_equal(found, rows[name][:3].reshape(found.shape)), name
    for name in (name for name in rows if name.startswith("observation")):
        successors = dataset[f"next/{keys[name]}"].numpy()
        assert np.array_equal(successors, rows[name][1:].reshape(successors.shape)), name


@pytest.mark.parametrize("version", [2, 3])
def test_74_and_75_rows_go_by_their_episode_index(convert, tmp_path, version):
    """Episodes 1 and 4 were deleted: places are not numbers. Several episodes lie in a file, and cameras are cut elsewhere."""
    numbers = {0: 3, 2: 5, 3: 4, 5: 6, 9: 3}
    episodes = {number: episode(length, number) for number, length in numbers.items()}
    frames = write(
        *(tmp_path / "raw", episodes),
        version=version,
        cameras={FRONT: "h264", WRIST: "h264"},
        data_files=[[0, 2], [3, 5, 9]],
        video_files={FRONT: [[0], [2, 3, 5], [9]], WRIST: [[0, 2, 3], [5, 9]]},
    )
    every, some = convert(tmp_path / "raw"), convert(tmp_path / "raw", episodes="2-3,9", cameras="wrist")
    for dataset, chosen in ((every, list(numbers)), (some, [2, 3, 9])):
        assert dataset.episodes.lengths.tolist() == [numbers[number] - 1 for number in chosen]
        for place, number in enumerate(chosen):
            found = dataset.episode(place)
            assert np.array_equal(found["observation", "state"], episodes[number]["observation.state"][:-1])
            assert set(found["info", "episode_index"].tolist()) == {number}
            off = found["observation", "images", "wrist"].numpy().astype(int) - frames[WRIST][number][:-1]
            assert np.abs(off).mean() < 15  # of this episode, as far as H.264 keeps it; others are 60 away
    assert "observation/images/front" not in some.schema
    assert some.manifest.source["left_out"][FRONT] == "its camera was not asked for"


def test_rows_of_an_episode_that_are_not_together_are_refused(convert, tmp_path):
    write(tmp_path / "raw", {0: episode(4), 1: episode(4, 1)})
    file = tmp_path / "raw" / "data/chunk-000/file-000.parquet"
    table = pq.read_table(file)
    pq.write_table(table.take([0, 1, 4, 5, 2, 3, 6, 7]), file)
    with pytest.raises(CorruptSourceError, match=r"file-000.parquet: episode 0: rows of other episodes lie between"):
        convert(tmp_path / "raw")
    pq.write_table(table.take([1, 0, 2, 3, 4, 5, 6, 7]), file)
    with pytest.raises(CorruptSourceError, match="episode 0: its rows are not in the order"):
        convert(tmp_path / "raw")


def test_76_an_episode_whose_video_lacks_frames_is_named_and_can_be_left_out(convert, tmp_path):
    write(tmp_path / "raw", {0: episode(4), 1: episode(5, 1)}, cameras={FRONT: "h264"})
    listed = lerobot_tools.read_episodes(tmp_path / "raw")
    listed[1][f"videos/{FRONT}/from_timestamp"], listed[1][f"videos/{FRONT}/to_timestamp"] = 0.6, 1.1
    lerobot_tools.write_episodes(tmp_path / "raw", listed)
    with pytest.raises(
        CorruptSourceError, match=r"episode 1 lists frames 6 to 10 of .*file-000.mp4, which has 9"
    ) as caught:
        convert(tmp_path / "raw")
    assert "--episodes" in caught.value.hint
    assert len(convert(tmp_path / "raw", episodes="0")) == 3


def test_76_a_span_of_another_length_than_the_episode_is_refused(convert, tmp_path):
    """Its last frames are those of the next episode."""
    write(tmp_path / "raw", {0: episode(4), 1: episode(5, 1)}, cameras={FRONT: "h264"})
    listed = lerobot_tools.read_episodes(tmp_path / "raw")
    listed[0][f"videos/{FRONT}/to_timestamp"] = 0.3
    lerobot_tools.write_episodes(tmp_path / "raw", listed)
    with pytest.raises(CorruptSourceError, match=r"episode 0 has 4 rows, and its span in .* has 3 frames"):
        convert(tmp_path / "raw")


def test_77_times_need_not_be_exact_but_right(convert, tmp_path):
    """Sums of floats, and clocks that jitter; a video of another rate is none of this dataset."""
    rows = {0: episode(4), 1: episode(5, 1)}
    write(tmp_path / "raw", rows, cameras={FRONT: "h264"})
    listed = lerobot_tools.read_episodes(tmp_path / "raw")
    listed[1][f"videos/{FRONT}/from_timestamp"] = 0.4000000000000004
    listed[1][f"videos/{FRONT}/to_timestamp"] = 0.93
    lerobot_tools.write_episodes(tmp_path / "raw", listed)
    file = tmp_path / "raw" / "data/chunk-000/file-000.parquet"
    table = pq.read_table(file)
    late = pa.array(np.array([0, 0.13, 0.19, 0.4, 0, 0.1, 0.2, 0.3, 0.4], np.float32))
    pq.write_table(table.set_column(table.schema.get_field_index("timestamp"), "timestamp", late), file)
    dataset = convert(tmp_path / "raw")
    assert dataset.manifest.counts["late_rows"] == 1
    assert any("1 row has a timestamp" in note for note in dataset.manifest.notes)
    every = decoded(tmp_path / "raw" / f"videos/{FRONT}/chunk-000/file-000.mp4")
    assert np.array_equal(dataset["observation", "images", "front"], np.delete(every, [3, 8], 0))
    write(tmp_path / "other", rows, cameras={FRONT: "h264"}, fps=10, edit=lambda info: info.update(fps=30))
    with pytest.raises(CorruptSourceError, match=r"frames|is shown"):
        convert(tmp_path / "other")
    write(tmp_path / "v2", rows, cameras={FRONT: "h264"}, version=2, edit=lambda info: info.update(fps=12))
    with pytest.raises(CorruptSourceError, match=r"is shown 0.050 s beside the time of its row"):
        convert(tmp_path / "v2")


def test_93_done_without_success_is_counted_and_a_stated_time_limit_truncates(convert, tmp_path):
    clock = {"next.truncated": np.array([False, False, False, True])}
    no_clock = {"next.truncated": np.zeros(4, bool)}
    rows = {
        0: ended(4, 0, **no_clock),
        1: ended(4, 1, success=False, **no_clock),
        2: ended(4, 2, success=False, **clock),
        3: ended(4, 3, done=[1, 3], **no_clock),
    }
    write(tmp_path / "raw", rows, cameras={FRONT: "h264"})
    dataset = convert(tmp_path / "raw")
    assert dataset.episodes.lengths.tolist() == [4, 4, 3, 4]
    last = dataset.episodes.starts + dataset.episodes.lengths - 1
    assert dataset["next", "terminated"][last][:, 0].tolist() == [True, True, False, True]
    assert dataset["next", "truncated"][last][:, 0].tolist() == [False, False, True, False]
    assert not dataset["next", "observation", "state"][last[0]].any()
    assert not dataset["next", "observation", "images", "front"][last[0]].any()
    assert dataset["next", "observation", "state"][last[2]].any()
    assert dataset["next", "reward"][last[0]].item() == rows[0]["next.reward"][-1]
    counts = dataset.manifest.counts
    assert (counts["blank_successors"], counts["done_without_success"], counts["inner_dones"]) == (3, 1, 1)
    assert any("1 episode is done without success" in note for note in dataset.manifest.notes)


def test_94_the_repeated_last_row_of_an_evaluation_is_the_final_observation(convert, tmp_path):
    def evaluated(length, seed, success):
        rows = ended(length, seed, success=success)
        for name in ("action", "next.reward", "next.done", "next.success"):
            rows[name] = np.concatenate([rows[name], rows[name][-1:]])
        for name in ("observation.state", "task_index"):
            rows[name] = np.concatenate([rows[name], rows[name][-1:] + 1])[: length + 1] % 2
        return rows

    rows = {0: evaluated(4, 0, True), 1: evaluated(5, 1, False)}
    write(tmp_path / "raw", rows)
    dataset = convert(tmp_path / "raw")
    assert dataset.episodes.lengths.tolist() == [4, 5]
    for number in rows:
        found = dataset.episode(number)
        assert np.array_equal(found["next", "observation", "state"], rows[number]["observation.state"][1:])
        assert np.array_equal(found["action"], rows[number]["action"][:-1])
        assert found["next", "terminated"][-1].item() == (number == 0)
        assert found["next", "truncated"][-1].item() == (number == 1)
    assert (dataset.manifest.counts["repeated_rows"], dataset.manifest.counts["blank_successors"]) == (2, 0)


def test_frames_are_resized(convert, tmp_path):
    frames = write(
        tmp_path / "raw", {0: episode(4)}, cameras={FRONT: "h264", WRIST: "image", "observation.depth": "depth"}
    )
    dataset = convert(tmp_path / "raw", size="24x16")
    every = decoded(tmp_path / "raw" / f"videos/{FRONT}/chunk-000/file-000.mp4")
    for camera, rows in (("front", every), ("wrist", frames[WRIST][0])):
        resized = [Image.fromarray(row).resize((24, 16), Image.Resampling.BILINEAR) for row in rows[:3]]
        assert np.array_equal(dataset["observation", "images", camera], np.stack([np.asarray(one) for one in resized]))
    assert dataset["observation", "depth"].shape == (3, 16, 24, 1)


def test_without_texts_and_without_cameras(convert, tmp_path):
    write(tmp_path / "raw", {0: episode(4)}, cameras={FRONT: "h264"})
    dataset = convert(tmp_path / "raw", text="omit", cameras="none")
    assert "task" not in dataset.schema and "task_index" in dataset.schema
    assert "observation/images/front" not in dataset.schema


@pytest.mark.parametrize(
    "options, message",
    [
        ({"size": "big"}, "size is 'big'"),
        ({"size": "0x10"}, "size is '0x10'"),
        ({"episodes": "0-7"}, "has no episode 1-7"),
        ({"episodes": "x"}, "episodes 'x' is not a list"),
        ({"cameras": "side"}, "has no camera side"),
    ],
)
def test_options_that_cannot_be_are_refused_with_what_there_is(convert, tmp_path, options, message):
    write(tmp_path / "raw", {0: episode(4)}, cameras={FRONT: "h264"})
    with pytest.raises(UsageError, match=message):
        convert(tmp_path / "raw", **options)
