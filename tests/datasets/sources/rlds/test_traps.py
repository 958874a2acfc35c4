"""What goes wrong with data in the layout of RLDS, and what becomes of it. Numbers are those of the project's list of traps."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image
from rbdata import api
from rbdata.datasets.formats import tfrecord
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from rlds_tools import FIXTURES, compare, fixture, image, rows_of, several, steps, tensor, text, write_folder

PLAIN = {
    "steps": steps(
        observation=several(state=tensor("float32", 2)), action=tensor("float32", 1), discount=tensor("float32")
    )
}


def episode(count, terminal=True, last=True, action=0.0, reward=0.0, discount=1.0, blank=False, **more):
    """Rows of states 1, 2, ...; action, reward and discount are those of the last row, of all others 1."""
    states = [[row + 1.0, -1.0] for row in range(count)]
    rows = rows_of(
        count,
        terminal,
        last,
        observation__state=[*states[:-1], [0.0, 0.0]] if blank else states,
        action=[[1.0]] * (count - 1) + [[action]],
        reward=[1.0] * (count - 1) + [reward],
        discount=[1.0] * (count - 1) + [discount],
    )
    return {}, {**{name: values[:count] for name, values in rows.items()}, **more}


def convert(folder, root, **options):
    made = api.convert(folder, "my/x", source="rlds", root=root, procs=0, force=True, **options)
    assert verify(made).ok
    return Dataset(made)


def lengths_of(tmp_path, *episodes, shards=1, **options):
    folder = write_folder(tmp_path / "raw", PLAIN, episodes, shards=shards)
    return convert(folder, tmp_path, **options)


# -- 71: what the last row is ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "last, kept",
    [
        ({"reward": 1.0}, True),
        ({"action": 0.5}, True),
        ({"reward": 1.0, "discount": 0.0}, True),
        ({}, False),
        ({"action": 0.5, "discount": 0.0}, False),  # RL Unplugged leaves the action of the last row as it was
        ({"action": 0.5, "reward": 1.0, "terminal": False}, False),  # no successor, and not terminated
    ],
)
def test_71_a_last_row_that_is_a_step(tmp_path, last, kept):
    dataset = lengths_of(tmp_path, episode(4, **last))
    assert dataset.episodes.lengths.tolist() == [4 if kept else 3]
    assert dataset.manifest.source["options"]["last_row"] == ("step" if kept else "observation")
    assert dataset["next/terminated"][-1].item() == last.get("terminal", True)
    assert dataset["next/observation/state"][-1].tolist() == ([0.0, 0.0] if kept else [4.0, -1.0])
    counts = dataset.manifest.counts
    assert counts["kept_last_rows"] == counts["blank_successors"] == kept
    assert any("--last-row observation" in note for note in dataset.manifest.notes) == kept


def test_71_the_dataset_decides_not_the_episode(tmp_path):
    """One that failed ends with zeros; it is as long as it is all the same, in this file and in the next."""
    made = lengths_of(tmp_path, episode(4), episode(3, reward=1.0), episode(5), episode(2, reward=1.0), shards=2)
    assert made.episodes.lengths.tolist() == [4, 3, 5, 2] and made["next/reward"].sum() == 3 + 3 + 4 + 2
    two = convert(tmp_path / "raw", tmp_path, last_row="auto")
    assert two.episodes.lengths.tolist() == [4, 3, 5, 2]


def test_71_the_manifest_says_which_file_decided(tmp_path):
    episodes = [episode(0), episode(3), episode(3, reward=1.0)]
    dataset = lengths_of(tmp_path / "1", *episodes, shards=3)  # of the first file with a step, no last row is one
    (note,) = (note for note in dataset.manifest.notes if "decided" in note)
    assert "made-train.tfrecord-00001-of-00003" in note and "--last-row" in note and "observation" in note
    assert dataset.manifest.source["options"]["last_row"] == "observation"
    (note,) = (note for note in dataset.manifest.notes if "unused" in note or "an observation alone" in note)
    for shards, options in ((1, {}), (3, {"last_row": "step"})):
        dataset = lengths_of(tmp_path / f"{shards}", *episodes, shards=shards, **options)
        assert not any("decided" in note for note in dataset.manifest.notes)


def test_71_asked_for_otherwise(tmp_path):
    dataset = lengths_of(tmp_path, episode(4, reward=1.0), episode(3), last_row="observation")
    assert dataset.episodes.lengths.tolist() == [3, 2]
    assert dataset.manifest.counts["unused_last_rows"] == 1
    assert any("--last-row step" in note for note in dataset.manifest.notes)
    dataset = lengths_of(tmp_path, episode(4), episode(3, terminal=False), last_row="step")
    assert dataset.episodes.lengths.tolist() == [4, 2]
    assert dataset["next/terminated"].flatten().tolist() == [False] * 3 + [True] + [False] * 2
    assert dataset["next/truncated"].flatten().tolist() == [False] * 5 + [True]


def test_71_the_only_reward_is_there(tmp_path):
    """The fixture in the usual template: read by the specification it has no reward at all."""
    assert convert(FIXTURES / "toy_robot", tmp_path)["next/reward"].sum() == 6
    assert convert(FIXTURES / "toy_robot", tmp_path, last_row="observation")["next/reward"].sum() == 0


def test_71_the_row_before_the_last_is_marked(tmp_path):
    """The real-world suite of RL Unplugged: the transition that ended the episode has the flag."""
    flags = {"is_terminal": [False, False, True, False]}
    dataset = lengths_of(tmp_path, episode(4, **flags))
    assert dataset["next/terminated"].flatten().tolist() == [False, False, True]
    assert not dataset["next/truncated"].any()


def test_an_end_without_a_mark_is_a_cut(tmp_path):
    dataset = lengths_of(tmp_path, episode(4, terminal=False, last=False))
    assert dataset["next/truncated"].flatten().tolist() == [False, False, True]
    assert dataset.manifest.counts["cut_episodes"] == 1


def test_a_mark_inside_an_episode_is_counted(tmp_path):
    dataset = lengths_of(tmp_path, episode(4, is_last=[False, True, False, True]))
    assert dataset.episodes.lengths.tolist() == [3] and dataset.manifest.counts["early_ends"] == 1


def test_episodes_without_a_step(tmp_path):
    dataset = lengths_of(tmp_path, episode(1), episode(3), episode(0))
    assert dataset.episodes.lengths.tolist() == [2] and dataset.manifest.counts["empty_episodes"] == 2


def test_no_rewards_and_no_flags(tmp_path):
    features = {"steps": {"sequence": {"feature": several(observation=tensor("float32", 2)), "length": "-1"}}}
    rows = {"observation": [[1.0, 2.0], [3.0, 4.0]]}
    dataset = convert(write_folder(tmp_path / "raw", features, [({}, rows)]), tmp_path)
    assert dataset["observation"].tolist() == [[1.0, 2.0]] and dataset["next/truncated"].all()
    assert dataset.manifest.counts["episodes_without_rewards"] == 1


# -- 72: the flags of TED ----------------------------------------------------------------------------------------------


def test_72_the_last_step_has_the_last_observation(tmp_path):
    """TorchRL says done on the last row and gives it a next observation of zeros."""
    dataset = convert(FIXTURES / "toy_spec", tmp_path)
    expected = fixture("toy_spec", "observation")
    compare(dataset, expected)
    ends = np.flatnonzero(dataset["next/done"].numpy())
    assert len(ends) == 5 and all(dataset["next/observation/state"][end].any() for end in ends)


# -- 73: records, not files --------------------------------------------------------------------------------------------


def test_73_a_file_is_read_by_the_record(tmp_path):
    """When a record comes out, of the bytes after it one piece at most was read."""
    raw, read = sorted((FIXTURES / "toy_robot/0.1.0").glob("*.tfrecord*"))[0].read_bytes(), 0

    def pieces():
        nonlocal read
        for at in range(0, len(raw), 100):
            read = at + 100
            yield raw[at : at + 100]

    found = 0
    for record in tfrecord.read_records(pieces(), "x"):
        assert read - (record.offset + len(record.payload) + 16) < 100
        assert tfrecord.Lists(record.payload).names
        found += 1
    assert found == 3


# -- 90: JPEG ----------------------------------------------------------------------------------------------------------


def test_90_jpeg_is_pillows(tmp_path):
    truth = np.load(FIXTURES / "truth_toy_robot.npz")
    dataset = convert(FIXTURES / "toy_robot", tmp_path)
    assert np.array_equal(dataset["observation/wrist_image"], truth["wrist_pillow"])
    assert (truth["wrist_tf"] != truth["wrist_pillow"]).mean() > 0.3
    assert dataset.manifest.source["jpeg"] == "Pillow"


# -- 91: many numbers --------------------------------------------------------------------------------------------------


def test_91_a_thousand_embeddings(tmp_path):
    rng = np.random.default_rng(0)
    embedding = rng.normal(size=(1100, 512)).astype(np.float32)
    features = {"steps": steps(observation=several(embedding=tensor("float32", 512)), action=tensor("int64"))}
    rows = rows_of(1100, observation__embedding=[*embedding], action=[*range(1099), 0])
    dataset = convert(write_folder(tmp_path / "raw", features, [({}, rows)]), tmp_path)
    assert np.array_equal(dataset["observation/embedding"], embedding[:-1])
    assert dataset["action"].tolist() == list(range(1099))


# -- 92: D4RL in TensorFlow Datasets -----------------------------------------------------------------------------------


def test_92_an_invented_last_observation_is_counted(tmp_path):
    dataset = lengths_of(
        tmp_path, episode(4, discount=0.0, blank=True), episode(3, terminal=False, action=1.0, reward=2.0)
    )
    assert dataset.episodes.lengths.tolist() == [3, 2]
    assert dataset.manifest.counts["blank_successors"] == 1 and dataset.manifest.counts["given_up_steps"] == 1
    assert any("no observation follows" in note for note in dataset.manifest.notes)


# -- features ----------------------------------------------------------------------------------------------------------


def test_spaces_are_those_that_the_features_state(tmp_path):
    """Bounds of tensors (tfds.features.Tensor(minimum=, maximum=)) and classes of labels, among all leaves beside them."""
    bounded = tensor("float32", 2)
    bounded["tensor"] |= {"minimum": -1.5, "maximum": "Infinity"}
    whole = tensor("int32")
    whole["tensor"] |= {"minimum": 0.0, "maximum": 9.0}
    label = {"pythonClassName": "c", "classLabel": {"numClasses": "4"}}
    Image.new("RGB", (5, 4)).save(file := io.BytesIO(), "PNG")
    observed = several(state=bounded, level=whole, camera=image(4, 5, 3))
    written, stated = (
        {"steps": steps(observation=observed, action=action, discount=bounded)} for action in (tensor("int64"), label)
    )
    rows = rows_of(
        3,
        observation__state=[[1.0, 2.0]] * 3,
        observation__level=[1, 2, 3],
        observation__camera=[file.getvalue()] * 3,
        action=[1, 3, 0],
        discount=[[1.0, 1.0]] * 3,
    )
    folder = write_folder(tmp_path / "raw", written, [({}, rows)])
    (folder / "features.json").write_text(json.dumps(several(**stated)))
    dataset = convert(folder, tmp_path)
    assert dataset.manifest.spaces == {
        "observation": {
            "type": "Dict",
            "spaces": {
                "state": {"type": "Box", "dtype": "float32", "shape": [2], "low": -1.5, "high": "inf"},
                "level": {"type": "Box", "dtype": "int32", "shape": [1], "low": 0, "high": 9},
                "camera": {"type": "Box", "dtype": "uint8", "shape": [4, 5, 3], "low": None, "high": None},
            },
        },
        "action": {"type": "Discrete", "n": 4, "start": 0},
    }
    assert dataset.action_space.n == 4 and dataset.observation_space["level"].high.tolist() == [9]
    assert lengths_of(tmp_path / "plain", episode(3)).manifest.spaces == {}


def test_what_has_no_rows_is_left_out_and_named(tmp_path):
    odd = {
        "sound": {"audio": {"dtype": "int64", "shape": {}}},
        "clip": {"video": {"dtype": "uint8"}},
        "words": {"sequence": {"feature": text(), "length": "-1"}},
        "loose": tensor("float32", None, 3),
        "half": tensor("bfloat16", 2),
    }
    features = {"steps": steps(observation=several(state=tensor("float32", 2)), action=tensor("int64"), note=text())}
    inner = features["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    rows = rows_of(3, observation__state=[[1.0, 2.0]] * 3, action=[1, 2, 0], note=["a", "b", ""])
    folder = write_folder(tmp_path / "raw", features, [({}, rows)])
    inner.update(odd)
    (folder / "features.json").write_text(json.dumps(several(**features)))
    dataset = convert(folder, tmp_path, text="omit")
    left_out = dataset.manifest.source["left_out"]
    assert set(left_out) == {f"steps/{name}" for name in odd} | {"note"}
    assert "info/note" not in dataset.schema


def test_a_feature_of_the_steps_and_one_of_the_episode_of_the_same_name_are_two(tmp_path):
    features = {
        "steps": steps(observation=tensor("float32", 2), action=tensor("int64"), task=text()),
        "task": tensor("int64"),
    }
    rows = rows_of(3, observation=[[1.0, 2.0]] * 3, action=[1, 2, 0], task=["a", "b", ""])
    folder = write_folder(tmp_path / "raw", features, [({"task": 7}, rows)])
    dataset = convert(folder, tmp_path / "1", text="omit")
    assert dataset["info/task"].tolist() == [7, 7]
    assert dataset.manifest.source["left_out"] == {"steps/task": "text, left out as asked"}
    dataset = convert(folder, tmp_path / "2", leave_out="steps/task")
    assert dataset["info/task"].tolist() == [7, 7]
    dataset = convert(folder, tmp_path / "3", leave_out="task")
    assert dataset.manifest.source["left_out"].keys() == {"steps/task", "task"}


@pytest.mark.parametrize("is_folder", ["in the steps", "of the episode"])
def test_a_feature_whose_name_is_a_folder_of_the_other_kind(tmp_path, is_folder):
    one, many = tensor("int64"), several(goal=tensor("int64"))
    in_steps, once = (many, one) if is_folder == "in the steps" else (one, many)
    features = {"steps": steps(observation=tensor("float32", 2), action=tensor("int64"), task=in_steps), "task": once}
    path = "task__goal" if is_folder == "in the steps" else "task"
    rows = rows_of(3, observation=[[1.0, 2.0]] * 3, action=[1, 2, 0], **{path: [4, 5, 6]})
    folder = write_folder(tmp_path / "raw", features, [({"task": 7, "task/goal": 7}, rows)])
    dataset = convert(folder, tmp_path)
    ends = ("/goal", "") if is_folder == "in the steps" else ("", "/goal")
    assert dataset[f"info/task{ends[0]}"].tolist() == [4, 5]
    assert dataset[f"info/episode_task{ends[1]}"].tolist() == [7, 7]


def test_leaves_that_are_not_wanted(tmp_path):
    dataset = convert(FIXTURES / "toy_robot", tmp_path, leave_out="observation/depth, episode_metadata,tokens")
    assert {"observation/depth", "info/tokens", "info/tokens_length", "info/episode_metadata/file_path"}.isdisjoint(
        dataset.schema.names
    )
    assert "observation/state" in dataset.schema


def test_pictures_of_other_kinds(tmp_path):
    rng = np.random.default_rng(0)
    grey, deep = rng.integers(0, 255, (3, 6, 5), np.uint8), rng.integers(0, 1 << 16, (3, 6, 5), np.uint16)
    alpha, real = rng.integers(0, 255, (3, 6, 5, 4), np.uint8), rng.normal(size=(3, 6, 5, 1)).astype("<f4")

    def packed(values, form="PNG"):
        file = io.BytesIO()
        Image.fromarray(values).save(file, form)
        return file.getvalue()

    observed = several(
        grey_as_colour=image(6, 5, 3),
        deep=image(None, None, 1, "uint16"),
        alpha=image(6, 5, 4),
        real=image(6, 5, 1, "float32"),
        jpeg=image(6, 5, 1, form="jpeg"),
    )
    rows = rows_of(
        3,
        action=[0, 0, 0],
        observation__grey_as_colour=map(packed, grey),
        observation__deep=map(packed, deep),
        observation__alpha=map(packed, alpha),
        observation__real=[packed(np.ascontiguousarray(one).view(np.uint8)) for one in real],
        observation__jpeg=[packed(one, "JPEG") for one in grey],
    )
    features = {"steps": steps(observation=observed, action=tensor("int64"))}
    dataset = convert(write_folder(tmp_path / "raw", features, [({}, rows)]), tmp_path)
    assert np.array_equal(dataset["observation/grey_as_colour"], np.repeat(grey[:2, ..., None], 3, 3))
    assert np.array_equal(dataset["observation/deep"], deep[:2, ..., None])
    assert np.array_equal(dataset["observation/alpha"], alpha[:2])
    assert np.array_equal(dataset["observation/real"], real[:2])
    assert dataset["observation/jpeg"].shape == (2, 6, 5, 1)
