"""`rbdata.testing.SourceTests` for every source of the package, and for the example of docs/new_source.md."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import atari_truth
import d4rl_truth
import gen_dgrl_truth
import gymnasium
import lerobot_tools
import minari_tools
import numpy as np
import ogbench_truth
import pytest
import rlds_tools
import rlu_writer
import torch
from paths import DATA
from rbdata.datasets.fetch import open_raw
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.sources.arrays.source import ArraysSource
from rbdata.datasets.sources.atari.source import AtariSource
from rbdata.datasets.sources.d4rl.source import D4rlSource
from rbdata.datasets.sources.exorl.source import ExorlSource
from rbdata.datasets.sources.gen_dgrl.source import GenDgrlSource
from rbdata.datasets.sources.gymnasium.source import GymnasiumSource
from rbdata.datasets.sources.lerobot import reader as lerobot_reader
from rbdata.datasets.sources.lerobot.source import LerobotSource
from rbdata.datasets.sources.minari.reader import part_bounds
from rbdata.datasets.sources.minari.source import MinariSource
from rbdata.datasets.sources.ogbench.source import OgbenchSource
from rbdata.datasets.sources.openml.source import OpenmlSource
from rbdata.datasets.sources.rlds.source import OpenxSource, RldsSource
from rbdata.datasets.sources.roboset.source import RobosetSource
from rbdata.datasets.sources.vd4rl.source import VD4RLSource
from rbdata.storage.dataset import Dataset
from rbdata.testing import SourceTests
from rbdata_csvlog import CsvLogSource
from rbdata_csvlog.reader import CsvLogReader
from transitions_truth import Truth

EXORL = DATA / "exorl"


class TestAtariShards(SourceTests):
    source, name = AtariSource(), "Qbert/2"

    @pytest.fixture
    def raw(self, tmp_path):
        self.writer = atari_truth.write_run(tmp_path / "raw" / "dqn" / "Qbert" / "2" / "replay_logs", 40, [30, 45, 20])
        return tmp_path / "raw"

    def check_values(self, dataset, raw):
        atari_truth.assert_holds(dataset, atari_truth.fed_truth(self.writer))


class TestAtariEpisodes(SourceTests):
    source, name = AtariSource(), "Qbert/1"

    @pytest.fixture
    def raw(self, tmp_path):
        self.episodes = rlu_writer.make_episodes([[5, 30], [20]], cut=[(0, 1)])
        rlu_writer.write_run(tmp_path / "raw", [self.episodes[:1], self.episodes[1:]])
        return tmp_path / "raw"

    def check_values(self, dataset, raw):
        kept = [(one, len(one.steps) if one.terminal else len(one.steps) - 1) for one in self.episodes]
        frames = [rlu_writer.frame(step) for one, steps in kept for step in one.steps[:steps]]
        assert np.array_equal(dataset["observation"].numpy(), np.stack(frames))
        assert dataset["action"].tolist() == [action for one, steps in kept for action in one.action[:steps]]
        assert dataset.episodes.lengths.tolist() == [steps for _, steps in kept]


class TestD4rl(SourceTests):
    source, name = D4rlSource(), "hopper-medium-replay-v2"

    @pytest.fixture
    def raw(self, tmp_path):
        self.file = tmp_path / "raw" / "gym_mujoco_v2" / "hopper_medium_replay-v2.hdf5"
        arrays = d4rl_truth.make([500, 600], ["terminal", "timeout"], successors=True, width=11)
        d4rl_truth.write(self.file, arrays, compression="gzip")
        return tmp_path / "raw"

    def check_values(self, dataset, raw):
        d4rl_truth.assert_holds(dataset, d4rl_truth.expected(self.file, "both"))


class TestD4rlImages(TestD4rl):
    """Observations of more than 1 KiB are filled after the plan."""

    name = "carla-lane-v0"

    @pytest.fixture
    def raw(self, tmp_path):
        self.file = tmp_path / "raw" / "carla" / "carla_lane_follow_flat-v0.hdf5"
        arrays = d4rl_truth.make([50, 60], ["terminal", "timeout"], width=600)
        d4rl_truth.write(self.file, arrays)
        return tmp_path / "raw"


class TestExorl(SourceTests):
    source, name = ExorlSource(), "walker/rnd"

    @pytest.fixture
    def raw(self, tmp_path):
        shutil.copytree(EXORL / "walker", tmp_path / "raw" / "walker")
        return tmp_path / "raw"

    def check_values(self, dataset, raw):
        with np.load(EXORL / "truth" / "walker-rnd.npz") as truth:
            assert np.array_equal(dataset.episodes.lengths, truth["lengths"])
            pairs = {"observation": "obs", ("next", "observation"): "next_obs", "action": "action"}
            assert all(np.array_equal(dataset[key], truth[name]) for key, name in pairs.items())
            for name in ("reward", "terminated", "truncated"):
                assert np.array_equal(dataset["next", name][:, 0], truth[name])


class TestVD4RL(SourceTests):
    """Files that are an episode each."""

    source, name = VD4RLSource(), "walker_walk-medium_replay-64px"
    observation = "observation/image"

    @pytest.fixture
    def raw(self, tmp_path):
        folder = Path("vd4rl") / "main" / "/".join(self.name.split("-"))
        shutil.copytree(DATA / "vd4rl" / folder, tmp_path / "raw" / folder)
        return tmp_path / "raw"

    def check_values(self, dataset, raw):
        Truth.of_file(DATA / "vd4rl" / "truth" / f"{self.name}.npz").check(dataset, self.observation)


class TestVD4RLShards(TestVD4RL):
    name, observation = "cheetah_run-medium-84px", "observation"


class TestRoboset(SourceTests):
    source, name = RobosetSource(), "DAPG(human)/door_v2d-v1"

    @pytest.fixture
    def raw(self, tmp_path):
        shutil.copytree(DATA / "roboset" / self.name, tmp_path / "raw" / self.name)
        return tmp_path / "raw"

    def check_values(self, dataset, raw):
        Truth.of_file(DATA / "roboset" / "truth" / f"{self.name.replace('/', '_')}.npz").check(dataset)


class TestOgbench(SourceTests):
    """Pixels: rows that are filled part by part."""

    source, name = OgbenchSource(), "visual-antmaze-medium-navigate-v0-val"

    @pytest.fixture
    def raw(self, tmp_path):
        (tmp_path / "raw").mkdir()
        shutil.copy(DATA / "ogbench" / f"{self.name}.npz", tmp_path / "raw")
        return tmp_path / "raw"

    def check_values(self, dataset, raw):
        ogbench_truth.assert_holds(dataset, ogbench_truth.expected(raw / f"{self.name}.npz"))


class TestOgbenchFiles(SourceTests):
    """A set of several files, of a single task."""

    source, name = OgbenchSource(), "humanoidmaze-giant-navigate-100m-singletask-v0"

    @pytest.fixture
    def raw(self, tmp_path):
        for number in range(3):
            file = f"humanoidmaze-giant-navigate-100m-v0/humanoidmaze-giant-navigate-v0-{number:03}.npz"
            ogbench_truth.write(tmp_path / "raw" / file, ogbench_truth.make([30, 40 + number], (69,), seed=number))
        return tmp_path / "raw"

    def check_values(self, dataset, raw):
        every = [ogbench_truth.expected(file) for file in sorted(raw.rglob("*.npz"))]
        ogbench_truth.assert_holds(dataset, {key: np.concatenate([one[key] for one in every]) for key in every[0]})
        assert (dataset["next/reward"] == -1).all() and (dataset["masks"] == 1).all()


class TestGenDgrl(SourceTests):
    source, name = GenDgrlSource(), "chaser-1M_E"

    @pytest.fixture
    def raw(self, tmp_path):
        shutil.copytree(DATA / "gen_dgrl" / "1M", tmp_path / "raw" / "1M")
        return tmp_path / "raw"

    def check_values(self, dataset, raw):
        gen_dgrl_truth.assert_holds(dataset, gen_dgrl_truth.expected(raw / "1M" / "expert" / "chaser.tar.xz"))


class TestArrays(SourceTests):
    """A folder with an archive per episode; frames, so that rows are compressed."""

    source, name = ArraysSource(), "own"

    @pytest.fixture
    def raw(self, tmp_path):
        rng = np.random.default_rng(0)
        self.episodes = [
            {
                "obs": rng.integers(0, 9, (length + 1, 40, 40), np.uint8),
                "act": rng.integers(0, 4, length),
                "rew": rng.normal(size=length).astype(np.float32),
                "done": np.arange(length) == length - 1,
            }
            for length in (30, 1, 12)
        ]
        for number, arrays in enumerate(self.episodes):
            (tmp_path / "raw").mkdir(exist_ok=True)
            np.savez_compressed(tmp_path / "raw" / f"{number}.npz", **arrays)
        return tmp_path / "raw"

    def open_reader(self, raw):
        options = self.source.check(ConvertOptions(extra=self.options), "convert")
        return self.source.open_folder(open_raw(raw), options)

    def raw_files(self, raw):
        return sorted(raw.iterdir())

    def test_names_need_no_network(self, monkeypatch):
        assert not self.source.names()  # what it converts is on the user's machine

    def check_values(self, dataset, raw):
        assert dataset.episodes.lengths.tolist() == [30, 1, 12]
        for number, arrays in enumerate(self.episodes):
            steps = dataset.episode(number)
            assert np.array_equal(steps["observation"], arrays["obs"][:-1])
            assert np.array_equal(steps["next", "observation"], arrays["obs"][1:])
            assert np.array_equal(steps["action"], arrays["act"])
            assert np.array_equal(steps["next", "reward"][:, 0], arrays["rew"])
            assert np.array_equal(steps["next", "terminated"][:, 0], arrays["done"])


class TestLerobot(SourceTests):
    """Two videos a camera, and a unit for each."""

    source, name = LerobotSource(), "some/toy"

    @pytest.fixture
    def raw(self, tmp_path, monkeypatch):
        monkeypatch.setattr(lerobot_reader, "LEAST_UNIT", 1)
        shutil.copytree(lerobot_tools.FIXTURES / "v3_plain", tmp_path / "raw" / self.name)
        return tmp_path / "raw"

    def check_values(self, dataset, raw):
        truth = lerobot_tools.truth("v3_plain")
        assert dataset.episodes.lengths.tolist() == [len(rows["action"]) - 1 for rows in truth]
        for number, rows in enumerate(truth):
            steps = dataset.episode(number)
            assert np.array_equal(steps["action"], rows["action"][:-1])
            assert np.array_equal(steps["next", "observation", "state"], rows["state"][1:])
            for camera in ("front", "wrist"):
                frames = rows[f"decoded/observation.images.{camera}"]
                assert np.array_equal(steps["observation", "images", camera], frames[:-1])
                assert np.array_equal(steps["next", "observation", "images", camera], frames[1:])


class TestMinari(SourceTests):
    source, name = MinariSource(), "cartpole/random-v0"

    @pytest.fixture
    def raw(self, tmp_path):
        shutil.copytree(minari_tools.FIXTURES / self.name, tmp_path / "raw" / self.name)
        return tmp_path / "raw"

    @pytest.fixture(autouse=True)
    def no_root_of_minari(self, tmp_path, monkeypatch):
        minari_tools.with_root(monkeypatch, tmp_path / "minari")

    def check_values(self, dataset, raw):
        minari_tools.compare(dataset, self.episodes())

    def episodes(self):
        """As Minari's own reader has them."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MINARI_DATASETS_PATH", str(minari_tools.FIXTURES))
            return minari_tools.truth(self.name)

    def names_file(self, message, file):
        return file.name in message or (file.suffix == ".hdf5" and self.name in message)


class TestMinariArrow(TestMinari):
    """A folder for each episode; three of them, since every file is damaged in turn."""

    name = "cartpole/arrow-v0"

    @pytest.fixture
    def raw(self, tmp_path):
        folder = shutil.copytree(minari_tools.FIXTURES / self.name, tmp_path / "raw" / self.name)
        for episode in range(3, 10):
            shutil.rmtree(folder / "data" / str(episode))
        return tmp_path / "raw"

    def check_values(self, dataset, raw):
        minari_tools.compare(dataset, self.episodes()[:3])

    def names_file(self, message, file):
        return file.name in message or f"episode {file.parent.name}" in message


class TestMinariFrames(SourceTests):
    """Several parts, which are filled after the plan."""

    source, name, data_format = MinariSource(), "tests/frames-v0", "hdf5"

    @pytest.fixture
    def raw(self, tmp_path, monkeypatch):
        minari_tools.with_root(monkeypatch, tmp_path / "raw")
        frames = gymnasium.spaces.Box(0, 255, (40, 32, 3), np.uint8)
        actions = gymnasium.spaces.Discrete(4)
        how = {"data_format": self.data_format, "jpeg_encoding": False}
        self.episodes = minari_tools.write(self.name, frames, actions, [10, 12, 6], **how)
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
        return tmp_path / "raw"

    def check_values(self, dataset, raw):
        minari_tools.compare(dataset, self.episodes)

    def test_values_of_several_parts(self, raw, tmp_path, monkeypatch):
        bounds = "rbdata.datasets.sources.minari.reader.part_bounds"
        monkeypatch.setattr(bounds, lambda states, row: part_bounds(states, row, 12 * row))
        dataset = Dataset(self.make(raw, tmp_path / "parts", procs=0).path)  # workers would not see the change
        assert len(dataset.manifest.files["observation/blob"]) == 3
        minari_tools.compare(dataset, self.episodes)

    def names_file(self, message, file):
        return any(name in message for name in (file.name, f"episode {file.parent.name}", self.name))


class TestMinariParquetFrames(TestMinariFrames):
    data_format = "parquet"

    def names_file(self, message, file):
        return file.name in message or f"episode {file.parent.name}" in message


class TestOpenml(SourceTests):
    source, name = OpenmlSource(), "7"
    options = {"standardize": "numeric"}
    ROWS = [(0.5, "red", "no"), (1.5, "blue", "yes"), (4.0, "red", "yes")]

    @pytest.fixture
    def raw(self, tmp_path):
        head = "@relation t\n@attribute a numeric\n@attribute c {red,blue}\n@attribute y {no,yes}\n@data\n"
        table = head + "".join(f"{a},{c},{y}\n" for a, c, y in self.ROWS)
        path = "data/v1/download/7/t.arff"
        about = {
            "id": "7",
            "name": "t",
            "version": "1",
            "status": "active",
            "format": "ARFF",
            "url": f"https://www.openml.org/{path}",
            "default_target_attribute": "y",
            "md5_checksum": hashlib.md5(table.encode(), usedforsecurity=False).hexdigest(),
        }
        for name, content in {path: table, "api/v1/json/data/7": json.dumps({"data_set_description": about})}.items():
            file = tmp_path / "raw" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        return tmp_path / "raw"

    def check_values(self, dataset, raw):
        numbers = np.array([row[0] for row in self.ROWS])
        wanted = np.stack([(numbers - numbers.mean()) / numbers.std(), [0, 1, 0]], 1).astype(np.float32)
        assert np.array_equal(dataset["observation"].numpy(), wanted)
        assert dataset["action"].tolist() == [0, 1, 1] and dataset["next/done"].all()


class TestGymnasium(SourceTests):
    """No raw files: what is stepped here."""

    source, name = GymnasiumSource(), "CartPole-v1"
    options = {"steps": 400, "num_envs": 2}

    @pytest.fixture
    def raw(self, tmp_path):
        (tmp_path / "raw").mkdir()
        return tmp_path / "raw"

    def check_values(self, dataset, raw):
        env = gymnasium.make("CartPole-v1")
        observation, _ = env.reset(seed=0)
        for step in dataset.episode(0):
            assert np.array_equal(step["observation"].numpy(), observation)
            observation, reward, terminated, truncated, _ = env.step(int(step["action"]))
            assert np.array_equal(step["next", "observation"].numpy(), observation)
            assert float(step["next", "reward"]) == reward
            assert (bool(step["next", "terminated"]), bool(step["next", "truncated"])) == (terminated, truncated)
        env.close()
        assert len(dataset) == 400


class TestRlds(SourceTests):
    """Numbers alone: nothing is filled after the plan."""

    source, name = RldsSource(), "made/small"
    options = {"last_row": "step"}

    @pytest.fixture(autouse=True)
    def no_root_of_tfds(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))

    @pytest.fixture
    def raw(self, tmp_path):
        observed = rlds_tools.several(x=rlds_tools.tensor("float32"))
        features = {"steps": rlds_tools.steps(observation=observed, action=rlds_tools.tensor("int64"))}
        self.episodes = [(count, [number + 0.5 for number in range(count)]) for count in (3, 1, 4, 2)]
        rows = [({}, rlds_tools.rows_of(n, observation__x=xs, action=range(n))) for n, xs in self.episodes]
        rlds_tools.write_folder(tmp_path / "raw/made/small/1.0.0", features, rows, shards=2)
        return tmp_path / "raw"

    def check_values(self, dataset, raw):
        assert dataset["observation/x"].flatten().tolist() == [x for _, xs in self.episodes for x in xs]
        assert dataset["action"].tolist() == [action for count, _ in self.episodes for action in range(count)]
        assert dataset["next/terminated"].sum() == 4


class TestOpenx(SourceTests):
    """Files of tensorflow-datasets with pictures."""

    source, name = OpenxSource(), "bridge"

    @pytest.fixture
    def raw(self, tmp_path):
        shutil.copytree(rlds_tools.FIXTURES / "toy_robot/0.1.0", tmp_path / "raw/bridge_data_v2/0.0.1")
        return tmp_path / "raw"

    def check_values(self, dataset, raw):
        rlds_tools.compare(dataset, rlds_tools.fixture("toy_robot", "step"))


LOG = """\
episode,observation_0,observation_1,action,reward,terminated
0,0.5,1,1,0.25,0
0,1.5,2,0,1,1
0,2.5,3,,,
7,3.5,4,1,2,0
7,4.5,5,,,
"""


class TestCsvLog(SourceTests):
    source, name = CsvLogSource(), "mine"

    @pytest.fixture
    def raw(self, tmp_path):
        (tmp_path / "raw").mkdir()
        (tmp_path / "raw" / "mine.csv").write_text(LOG)
        return tmp_path / "raw"

    def check_values(self, dataset, raw):
        assert dataset["observation"].tolist() == [[0.5, 1.0], [1.5, 2.0], [3.5, 4.0]]
        assert dataset["next/observation"].tolist() == [[1.5, 2.0], [2.5, 3.0], [4.5, 5.0]]
        assert dataset["action"].tolist() == [1, 0, 1]
        assert dataset["next/reward"].flatten().tolist() == [0.25, 1.0, 2.0]
        assert torch.equal(dataset["next/terminated"].flatten(), torch.tensor([False, True, False]))


# -- sources that break a rule ------------------------------------------------------------------------------------------


class Broken(SourceTests):
    """A class of its own for every call: what it breaks is in ``reader``."""

    name = "mine"

    def __init__(self, reader: type[CsvLogReader]) -> None:
        class Source(CsvLogSource):
            def find(self, name, location, options):
                return reader(name, location, location.stat(f"{name}.csv"), options)

        self.source = Source()

    def check_values(self, dataset: Dataset, raw: Path) -> None:
        assert dataset["action"].tolist() == [1, 0, 1]


@pytest.fixture
def raw(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "mine.csv").write_text(LOG)
    return tmp_path / "raw"


def test_wrong_values_are_found(raw, tmp_path):
    class Inverted(CsvLogReader):
        def take_head(self, head):
            super().take_head(head)
            self.values["action"] = 1 - self.values["action"]

    tests = Broken(Inverted)
    with pytest.raises(AssertionError):
        tests.test_values(raw, tmp_path)


def test_bytes_that_vary_are_found(raw, tmp_path):
    runs = iter(range(99))

    class Varying(CsvLogReader):
        def facts(self, *given):
            return replace(super().facts(*given), notes=[f"run {next(runs)}"])

    with pytest.raises(AssertionError, match="made by two processes"):
        Broken(Varying).test_same_bytes(raw, tmp_path)


def test_errors_that_do_not_name_the_file_are_found(raw, tmp_path):
    class Silent(CsvLogReader):
        def read_head(self, path):
            self.item: Any = replace(self.item, url="a file")
            return super().read_head(path)

    with pytest.raises(AssertionError, match="cut to"):
        Broken(Silent).test_damaged_files(raw, tmp_path)


def test_raw_files_that_are_changed_are_found(raw, tmp_path):
    class Changing(CsvLogReader):
        def take_head(self, head):
            super().take_head(head)
            self.path.write_text(LOG + "\n")

    with pytest.raises(AssertionError):
        Broken(Changing).test_values(raw, tmp_path)
    (raw / "mine.csv").write_text(LOG)
    with pytest.raises(AssertionError):
        Broken(Changing).test_a_dry_run_writes_nothing(raw, tmp_path)
