"""Options that are no functions: splits, leaves that stay, and how frames are compressed."""

from __future__ import annotations

import json

import pytest
import rbdata
import torch
from preprocess_tools import lasting, make_input
from rbdata.cli import run as command
from rbdata.errors import DatasetExistsError, UsageError
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from ted_rules import check_invariants


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path))
    return tmp_path


def episode_keys(dataset) -> list[bytes]:
    """Something that tells each episode from the others."""
    return [dataset.episode(number)["observation"].numpy().tobytes() for number in range(len(dataset.episodes))]


class TestSplit:
    def test_each_episode_is_in_one_part(self, root):
        make_input(root, count=40)
        folder = rbdata.preprocess("my/input", dest="my/a", split={"train": 0.75, "val": 0.25}, procs=0)
        parts = {name: Dataset(folder / f"a-{name}") for name in ("train", "val")}
        whole = episode_keys(Dataset(root / "my/input"))
        found = {name: episode_keys(part) for name, part in parts.items()}
        assert [len(found["train"]), len(found["val"])] == [30, 10]
        assert sorted(found["train"] + found["val"]) == sorted(whole)
        for keys in found.values():  # in their order
            assert [key for key in whole if key in keys] == keys
        for part in parts.values():
            assert verify(part.path).ok and check_invariants(part.path, part.manifest) == []

    def test_the_seed_decides(self, root):
        make_input(root, count=40)
        made = {}
        for name, seed in (("a", 0), ("b", 0), ("c", 1)):
            rbdata.preprocess("my/input", dest=f"my/{name}", split={"x": 0.5, "y": 0.3}, seed=seed, procs=0)
            made[name] = [episode_keys(Dataset(root / f"my/{name}-{part}")) for part in "xy"]
        assert made["a"] == made["b"] != made["c"]
        assert [len(keys) for keys in made["a"]] == [20, 12]  # the rest is left out

    def test_on_the_command_line_with_a_selection_and_a_function(self, root, capsys):
        make_input(root)
        words = [
            "preprocess",
            "my/input",
            "--split",
            "train=0.5,val=0.5",
            "--top",
            "10",
            "--fn",
            "rbdata:returns_to_go",
        ]
        assert command([*words, "--dest", "my/best", "--json"]) == 0
        made = json.loads(capsys.readouterr().out)["datasets"]
        assert [one["id"] for one in made] == ["my/best-train", "my/best-val"]
        assert all(Dataset(root / one["id"]).manifest.episodes == 5 for one in made)
        assert command([*words, "--dest", "my/best", "--json"]) == 0
        assert [one["action"] for one in json.loads(capsys.readouterr().out)["datasets"]] == ["complete"] * 2

    def test_numbers_of_episodes_and_steps_are_those_of_the_input(self, root):
        """Also those of a selection, of which the shares are drawn; in worker processes."""
        source = make_input(root, count=40)
        dataset = Dataset(source)
        (root / "numbers.py").write_text(
            "import torch\n\n\n"
            "def whole(td, episode, step):\n"
            "    n = len(td)\n"
            "    return td.set('n', torch.full((n,), episode)).set('t', torch.arange(step, step + n))\n\n\n"
            "def rows(td, episode, step):\n"
            "    return td.set('n', torch.as_tensor(episode)).set('t', torch.as_tensor(step))\n"
        )
        select = ["--episodes", "3-30", "--top", "20", "--shuffle-episodes", "1"]
        split = ["--split", "a=0.5,b=0.5"]
        for fn, per, more in (
            ("whole", "episode", split),
            ("rows", "batch", [*select, *split]),
            ("rows", "sample", select),
        ):
            words = ["preprocess", "my/input", "--fn", f"{root}/numbers.py:{fn}", "--per", per, *more]
            assert command([*words, "--procs", "1", "--dest", "my/out", "--force"]) == 0
            for name in ("out-a", "out-b") if "--split" in more else ("out",):
                made = Dataset(root / "my" / name)
                assert torch.equal(made["observation"], dataset["observation"][made["t"]])
                assert torch.equal(made["n"], dataset.episode_of(made["t"]))

    @pytest.mark.parametrize(
        ("split", "match"),
        [
            ("train", "is not NAME=SHARE"),
            ("train=x", "is not NAME=SHARE"),
            ("train=0.5,train=0.5", "is not NAME=SHARE"),
            ("train=0.9,val=0.2", "more than 1"),
            ("train=0.999,val=0.001", "none for val"),
            ("../train=0.5", "cannot be called"),
        ],
    )
    def test_makes_no_sense(self, root, split, match, capsys):
        make_input(root)
        assert command(["preprocess", "my/input", "--split", split, "--dest", "my/a"]) == 2
        assert match in capsys.readouterr().err
        assert sorted(path.name for path in (root / "my").iterdir()) == ["input"]

    def test_statistics_of_a_part_are_refused(self, root):
        make_input(root)
        with pytest.raises(UsageError, match="normalize_observations computes statistics over all data"):
            rbdata.preprocess("my/input", "rbdata:normalize_observations", dest="my/a", split={"x": 0.5}, procs=0)


class TestLeaves:
    def test_keep_and_drop(self, root):
        make_input(root)
        assert command(["preprocess", "my/input", "--keep", "observation", "--dest", "my/kept"]) == 0
        assert command(["preprocess", "my/input", "--drop", "observation", "--dest", "my/dropped"]) == 0
        source, kept, dropped = (Dataset(root / "my" / name) for name in ("input", "kept", "dropped"))
        always = {
            "done",
            "terminated",
            "truncated",
            *(f"next/{name}" for name in ("reward", "done", "terminated", "truncated")),
        }
        assert set(kept.schema.names) == {"observation", "next/observation"} | always
        assert set(dropped.schema.names) == set(source.schema.names) - {"observation", "next/observation"}
        assert torch.equal(kept["observation"], source["observation"])
        assert torch.equal(dropped["action"], source["action"])

    def test_of_what_the_functions_made(self, root):
        make_input(root)
        rbdata.preprocess(
            "my/input", "rbdata:returns_to_go", dest="my/a", keep=["observation", "return_to_go"], procs=0
        )
        assert "return_to_go" in Dataset(root / "my/a").schema.names
        assert "action" not in Dataset(root / "my/a").schema.names

    def test_makes_no_sense(self, root):
        make_input(root)
        for options, match in (
            ({"keep": "nothing"}, "there is no key 'nothing'"),
            ({"keep": "action", "drop": "observation"}, "choose one"),
            ({"fn": "rbdata:select_keys", "keep": "action"}, "given twice"),
        ):
            with pytest.raises(UsageError, match=match) as caught:
                rbdata.preprocess("my/input", dest="my/bad", procs=0, **options)
            assert caught.value.hint


class TestCodec:
    def test_a_level_compresses_again(self, root):
        make_input(root, "zstd")
        for codec in ("zstd:1", "zstd:19"):
            words = ["preprocess", "my/input", "--codec", codec, "--dest", f"my/{codec.replace(':', '')}"]
            assert command(words) == 0
        source, low, high = (Dataset(root / "my" / name) for name in ("input", "zstd1", "zstd19"))
        for made in (low, high):
            assert made.schema["observation"].codec == "zstd"
            assert torch.equal(made["observation"], source["observation"])
            assert verify(made.path).ok
        blobs = [(made.path / "observation/blob").read_bytes() for made in (source, low, high)]
        assert blobs[1] != blobs[2] and blobs[1] != blobs[0] != blobs[2]
        assert high.manifest.source["options"]["codec"] == "zstd:19"

    def test_another_codec_without_a_function(self, root):
        make_input(root, "zstd")
        rbdata.preprocess("my/input", dest="my/raw", codec="raw", procs=0)
        assert Dataset(root / "my/raw").schema["observation"].codec == "raw"
        rbdata.preprocess("my/raw", dest="my/again", codec="zstd:9", procs=0)
        assert torch.equal(Dataset(root / "my/again")["observation"], Dataset(root / "my/input")["observation"])

    def test_the_level_is_part_of_the_request(self, root):
        make_input(root, "zstd")
        rbdata.preprocess("my/input", dest="my/a", codec="zstd:9", procs=0)
        made = lasting(root / "my/a")
        rbdata.preprocess("my/input", dest="my/a", codec="zstd:9", procs=0)
        assert lasting(root / "my/a") == made
        with pytest.raises(DatasetExistsError, match="differs in codec"):
            rbdata.preprocess("my/input", dest="my/a", codec="zstd:10", procs=0)
