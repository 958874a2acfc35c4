"""A new codec is a module and a line in the registry: everything else then works with it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import preprocess_tools as tools
import pytest
import rbdata
import torch
from atari_truth import assert_holds, fed_truth, write_run
from contents import content
from rbdata.datasets.acquire import download
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Request
from rbdata.errors import DamagedDatasetError, SchemaError, UsageError
from rbdata.storage import codecs
from rbdata.storage.codecs.compressed import CompressedRows
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from rbdata.storage.schema import Leaf, Schema
from storage_tools import Recipe, Stopped, columns, contents, make_episodes, write_dataset


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(codecs.CODECS, "toy", ("toy_codec", "ToyCodec"))


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    top = tmp_path_factory.mktemp("mirror")
    return top, write_run(top / "dqn" / "Qbert" / "2" / "replay_logs", 90, [80, 300, 4, 79, 150, 200])


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(codecs.CODECS, "toy", ("toy_codec", "ToyCodec"))
        return tools.make_input(tmp_path_factory.mktemp("input"), "toy", count=40)


def damage(path: Path, at: int = 20) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def test_unknown_until_it_is_registered(monkeypatch):
    assert codecs.choices() == ("auto", *codecs.CODECS) and "toy" in codecs.CODECS
    assert Schema((Leaf("x", "state", "uint8", (4,), "toy"),))
    monkeypatch.delitem(codecs.CODECS, "toy")
    with pytest.raises(SchemaError, match="'toy' is not one of raw, "):
        Schema((Leaf("x", "state", "uint8", (4,), "toy"),))
    with pytest.raises(UsageError, match="auto, raw, "):
        codecs.resolve_choice("toy")


def test_plain_ted_excludes_it():
    with pytest.raises(UsageError, match="without codecs") as caught:
        codecs.resolve_choice("toy", plain=True)
    assert caught.value.hint == "leave out --codec toy, or --layout ted"


def test_through_the_writer(tmp_path):
    """Parts in any order, interrupted and continued: the same bytes as in one go, and the same values as raw."""
    episodes = make_episodes([5, 1, 9, 2, 12, 1], shape=(30,), dtype="uint8")
    whole = write_dataset(tmp_path / "whole", episodes, "toy", parts=3)
    with pytest.raises(Stopped):
        Recipe(episodes, "toy", parts=3, order=[2, 0, 1], stop_after=2).write(tmp_path / "two")
    resumed = Recipe(episodes, "toy", parts=3)
    folder = resumed.write(tmp_path / "two")
    assert resumed.filled == [1]
    one, two = contents(whole), contents(folder)
    assert {path for path in one if path.startswith("observation")} == {"observation/blob", "observation/offsets"}
    assert {path: data for path, data in one.items() if path != "rbdata.json"} == {
        path: data for path, data in two.items() if path != "rbdata.json"
    }
    loaded = Dataset(folder).to_tensordict()
    for name, array in columns(episodes).items():
        assert torch.equal(loaded[tuple(name.split("/"))], torch.from_numpy(array)), name
    assert verify(folder).ok


class TestAtari:
    """A source's own way: converted, sampled, grown, verified, damaged."""

    def get(self, mirror: Path, root: Path, codec: str, parts: tuple[int, ...] | None = None) -> Path:
        options = ConvertOptions(codec=codec, parts=parts)
        return download(Request("Qbert/2", root=root, mirror=str(mirror), options=options, procs=1)).path

    def test_convert_sample_verify_damage(self, mirror, tmp_path):
        top, writer = mirror
        path = self.get(top, tmp_path, "toy")
        dataset = Dataset(path)
        assert dataset.schema["observation"].codec == dataset.manifest.source["options"]["codec"] == "toy"
        assert_holds(dataset, fed_truth(writer))
        raw = self.get(top, tmp_path / "raw", "raw")
        batches = [rbdata.load(folder, batch_size=32, slice_len=4, seed=3).sample() for folder in (path, raw)]
        assert (batches[0] == batches[1]).all()
        assert verify(path).ok
        damage(path / "observation" / "blob")
        (problem,) = verify(path).problems
        assert problem.path == "observation/blob" and str(dataset.manifest.parts[0]["name"]) in problem.what
        with pytest.raises(DamagedDatasetError):
            Dataset(path).to_tensordict()

    def test_more_shards(self, mirror, tmp_path):
        """What is there is taken over; the result is what one download of all makes."""
        top, _ = mirror
        path = self.get(top, tmp_path / "root", "toy", (0, 1, 2))
        blob = (path / "observation" / "blob").read_bytes()
        grown = self.get(top, tmp_path / "root", "toy", (0, 1, 2, 3, 4))
        assert (grown / "observation" / "blob").read_bytes()[: len(blob) // 2] == blob[: len(blob) // 2]
        assert content(grown) == content(self.get(top, tmp_path / "whole", "toy", (0, 1, 2, 3, 4)))


class TestPreprocess:
    def run(self, root: Path, source: Path, fn, **options) -> Dataset:
        return tools.run(root, fn, source=source, per="batch", batch_size=64, **options)

    @pytest.mark.parametrize("codec", ["auto", "toy"])
    def test_untouched_rows_are_copied(self, codec, source, tmp_path, monkeypatch):
        copied: list[int] = []
        stored = CompressedRows.stored
        monkeypatch.setattr(
            CompressedRows, "stored", lambda rows, *which: copied.append(which[1] - which[0]) or stored(rows, *which)
        )
        made = self.run(tmp_path, source, "rbdata:clip_rewards", codec=codec)
        assert made.schema["observation"].codec == "toy"
        assert sum(copied) == made.manifest.states
        assert (made.path / "observation" / "blob").read_bytes() == (source / "observation" / "blob").read_bytes()
        assert verify(made.path).ok

    def test_into_another_codec_and_back(self, source, tmp_path):
        made = self.run(tmp_path, source, "rbdata:clip_rewards", codec="raw")
        back = self.run(tmp_path, made.path, "rbdata:clip_rewards", dest="my/back", codec="toy")
        assert (made.schema["observation"].codec, back.schema["observation"].codec) == ("raw", "toy")
        frames = Dataset(source).to_tensordict()["observation"]
        for dataset in (made, back):
            assert torch.equal(dataset.to_tensordict()["observation"], frames)
            assert verify(dataset.path).ok

    def test_changed_rows_are_compressed(self, source, tmp_path):
        def invert(td):
            td["observation"], td["next", "observation"] = 255 - td["observation"], 255 - td["next", "observation"]
            return td

        made = self.run(tmp_path, source, invert, codec="toy")
        assert made.schema["observation"].codec == "toy"
        before = Dataset(source).to_tensordict()["observation"]
        assert torch.equal(made.to_tensordict()["observation"], 255 - before)

    def test_damage_is_not_copied(self, source, tmp_path):
        """Rows that nobody decodes do not get a new checksum."""
        copy = tmp_path / "copy"
        shutil.copytree(source, copy)
        damage(copy / "observation" / "offsets", 8 * 400)
        with pytest.raises(DamagedDatasetError, match="offsets"):
            self.run(tmp_path, copy, "rbdata:clip_rewards")


def test_rows_of_a_part_as_they_are_stored(tmp_path):
    folder = write_dataset(tmp_path, make_episodes([7, 3], shape=(50,), dtype="uint8"), "toy")
    rows = Dataset(folder).rows["observation"]
    assert isinstance(rows, CompressedRows)
    data, lengths = rows.stored(2, 5)
    offsets = np.fromfile(folder / "observation" / "offsets", "<i8")
    assert lengths.tolist() == np.diff(offsets)[2:5].tolist()
    assert data.tobytes() == (folder / "observation" / "blob").read_bytes()[offsets[2] : offsets[5]]
