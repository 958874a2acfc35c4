"""Recordings with names, by policies of every kind, from Python and from the command line."""

from __future__ import annotations

import json
import sys

import gymnasium
import gymnasium_envs
import pytest
import rbdata
from rbdata.cli import run as command_line
from rbdata.datasets import catalogue
from rbdata.errors import DatasetExistsError, DatasetNotFoundError, FunctionError, UsageError

gymnasium_envs.register()

POLICIES = """
calls = []

def lean(observation):
    return int(observation[2] > 0)

class Alternating:
    def __init__(self):
        self.episodes = 0
    def reset(self, which=None):
        self.episodes += 1
        self.last = self.episodes % 2
    def act(self, observation):
        self.last = 1 - self.last
        return self.last

last = 0
def reset():
    global last
    last = 0
def act(observation):
    global last
    last = 1 - last
    return last

def fails(observation):
    return {}["weights"]
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "pol.py").write_text(POLICIES)
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_named_recordings_lie_side_by_side(capsys, here):
    base = ["download", "gymnasium/CartPole-v1", "--steps", "60", "-q"]
    assert command_line(base) == 0
    assert command_line([*base, "--name", "expert", "--policy", "pol.py:lean"]) == 0
    assert command_line([*base[:1], "gymnasium/CartPole-v1@seed-1", *base[2:], "--seed", "1"]) == 0
    capsys.readouterr()
    assert command_line(["list", "--local", "--json"]) == 0
    document = capsys.readouterr().out
    for name in ("gymnasium/CartPole-v1", "gymnasium/CartPole-v1@expert", "gymnasium/CartPole-v1@seed-1"):
        assert json.dumps(name) in document
        assert command_line(["verify", name, "-q"]) == 0
        assert len(rbdata.load(name, batch_size=4).sample()) == 4
    manifest = rbdata.open_dataset("CartPole-v1@expert").manifest
    assert manifest.source["dataset"] == "CartPole-v1" and len(manifest.source["policy_sha256"]) == 64
    assert "name" not in manifest.source["options"]
    assert command_line(["delete", "gymnasium/CartPole-v1@expert", "--yes", "-q"]) == 0
    assert [entry.id for entry in rbdata.list_datasets()] == ["gymnasium/CartPole-v1", "gymnasium/CartPole-v1@seed-1"]


def test_names_that_cannot_be():
    with pytest.raises(UsageError, match="has a name already"):
        rbdata.record("CartPole-v1@a", name="b")
    for name in ("a/b", "", "../x", "a b", "@"):
        with pytest.raises(UsageError, match="cannot be the name"):
            rbdata.record("CartPole-v1", name=name)
    with pytest.raises(DatasetNotFoundError):
        catalogue.resolve("gymnasium/CartPole-v1@a/b")
    assert catalogue.resolve("gymnasium/ALE/Pong-v5@x.1")[0] == "gymnasium/ALE/Pong-v5@x.1"


@pytest.mark.parametrize("policy", ["pol.py:Alternating", "pol.py", "pol:Alternating"])
@pytest.mark.parametrize("num_envs", [1, 2])
def test_policies_with_state_are_reset_when_an_episode_begins(policy, num_envs, here):
    if num_envs == 2:
        (here / "pol.py").write_text(
            "import numpy as np\nclass Alternating:\n    def reset(self, which):\n"
            "        self.last = np.where(which, 0, getattr(self, 'last', np.zeros(2, int)))\n"
            "    def act(self, observations):\n        self.last = 1 - self.last\n        return self.last\n"
            "made = Alternating()\nreset, act = made.reset, made.act\n"
        )
    dataset = rbdata.open_dataset(
        rbdata.record("CartPole-v1", policy, num_envs=num_envs, episodes=6, name="x", procs=0)
    )
    assert len(dataset.episodes) == 6 and (dataset.episodes.outcomes == 1).all()
    starts = [int(dataset["action"][start]) for start in dataset.episodes.starts]
    assert starts == ([1] * 6 if policy == "pol.py" or num_envs == 2 else [0, 1] * 3)
    actions = dataset["action"].numpy()
    inside = ~dataset["next/done"].numpy()[:-1, 0]
    assert (actions[1:] != actions[:-1])[inside].all()
    sys.modules.pop("pol", None)


def test_episodes_whole_and_shared_among_environments(capsys):
    dataset = rbdata.open_dataset(rbdata.record("tests/Counter-v0", episodes=7, num_envs=3, procs=0))
    assert len(dataset.episodes) == 7 and dataset.manifest.counts["cut_episodes"] == 0
    assert command_line(["download", "gymnasium/tests/Counter-v0", "--episodes", "3", "--name", "alone"]) == 0
    assert "write 3 episodes to" in capsys.readouterr().err
    alone = rbdata.open_dataset(rbdata.record("tests/Counter-v0", episodes=3, name="alone", procs=0))
    assert alone.episodes.lengths.tolist() == dataset.episodes.lengths.tolist()[:3] == [3, 1, 7]
    assert alone.manifest.source["options"]["episodes"] == 3
    both = rbdata.open_dataset(rbdata.record("tests/Counter-v0", episodes=3, steps=5, name="both", procs=0))
    assert len(both) == 5
    with pytest.raises(DatasetExistsError, match="episodes"):
        rbdata.record("tests/Counter-v0", episodes=4, name="alone", procs=0)


def lean(observation):
    return int(observation[2] > 0)


def test_an_environment_in_every_form():
    env = gymnasium.make("CartPole-v1")
    wanted = rbdata.open_dataset(rbdata.record("CartPole-v1", lean, steps=80, name="id")).manifest.files
    forms = {"spec": env.spec, "factory": lambda: gymnasium.make("CartPole-v1"), "made": env}
    for name, form in forms.items():
        dataset = rbdata.open_dataset(rbdata.record(form, lean, steps=80, name=name))
        assert (dataset.id, dataset.manifest.files) == (f"gymnasium/CartPole-v1@{name}", wanted)
        assert dataset.manifest.source["options"]["policy"].endswith(":lean")
    env.reset()  # it was left open
    two = rbdata.record(forms["factory"], lambda all: (all[:, 2] > 0).astype(int), steps=80, num_envs=2, name="two")
    assert len(rbdata.open_dataset(two)) == 80
    with pytest.raises(UsageError, match="needs more than one environment"):
        rbdata.record(env, num_envs=2, name="no")
    with pytest.raises(UsageError, match="needs a name"):
        rbdata.record(gymnasium_envs.Counter)
    assert rbdata.record(gymnasium_envs.Counter, steps=9, name="counter").parts[-2:] == ("my", "counter")


def test_a_recording_that_is_there_is_not_made_again(here):
    class Counting:
        calls = 0

        def __call__(self, observation):
            self.calls += 1
            return self.calls % 2

    policy = Counting()
    rbdata.record("CartPole-v1", policy, steps=30, name="once")
    with pytest.raises(DatasetExistsError, match="an object does not tell"):
        rbdata.record("CartPole-v1", policy, steps=30, name="once")
    assert policy.calls == 30
    with pytest.raises(DatasetExistsError, match="policy"):
        rbdata.record("CartPole-v1", lean, steps=30, name="once")
    rbdata.record("CartPole-v1", "pol.py:lean", steps=30, name="file", procs=0)
    (here / "pol.py").write_text(POLICIES + "\n# edited\n")
    with pytest.raises(DatasetExistsError, match="a different version of the policy's file"):
        rbdata.record("CartPole-v1", "pol.py:lean", steps=30, name="file", procs=0)
    rbdata.record("CartPole-v1", "pol.py:lean", steps=30, name="file", procs=0, force=True)


def test_a_mirror_does_not_give_the_recording_of_another_policy(here, capsys):
    words = [
        "download",
        "gymnasium/CartPole-v1@m",
        "--policy",
        "pol.py:lean",
        "--steps",
        "60",
        "--mirror",
        str(here / "m"),
    ]
    assert command_line(words[:-2]) == 0 and command_line(["mirror", "push", words[1], words[-1]]) == 0
    before = rbdata.open_dataset(words[1])["action"].clone()
    assert command_line(["delete", words[1], "--yes"]) == 0 and command_line(words) == 0
    assert rbdata.open_dataset(words[1]).manifest.provenance["mirror"] == words[-1]
    assert command_line(["delete", words[1], "--yes"]) == 0
    (here / "pol.py").write_text(POLICIES.replace("> 0", "<= 0"))
    capsys.readouterr()
    assert command_line(words) == 0 and "a different version of the policy's file" in capsys.readouterr().err
    dataset = rbdata.open_dataset(words[1])
    assert dataset["action"].tolist() == (dataset["observation"][:, 2] <= 0).long().tolist() != before.tolist()


def test_what_a_policy_raises_comes_first(capsys):
    with pytest.raises(FunctionError, match="KeyError: 'weights'") as caught:
        rbdata.record("CartPole-v1", "pol.py:fails", steps=30, procs=0)
    assert isinstance(caught.value.__cause__, KeyError)
    detail = caught.value.detail.splitlines()
    assert "pol.py" in detail[1] and "weights" in detail[2] and "rbdata/datasets" not in caught.value.detail
    assert command_line(["download", "gymnasium/CartPole-v1", "--policy", "pol.py:fails"]) == 1
    told = capsys.readouterr().err
    assert told.index("pol.py") < told.index("the policy pol.py:fails failed")


def test_frames_are_measured_for_the_estimate(here):
    from pathlib import Path

    from rbdata.datasets.acquire import download
    from rbdata.datasets.ingest.records import ConvertOptions
    from rbdata.datasets.ingest.request import Request

    request = Request(
        "gymnasium/tests/Frames-v0", root=Path("root"), options=ConvertOptions(extra={"steps": 700}), dry_run=True
    )
    estimate = download(request).estimate
    made = rbdata.open_dataset(rbdata.record("tests/Frames-v0", steps=700, procs=0))
    dictionary = sum(file.stat().st_size for file in made.path.rglob("dictionary"))
    written = made.manifest.bytes - dictionary
    assert estimate is not None and written / 2 < estimate.disk_bytes < 3 * written


# -- the process that records ------------------------------------------------------------------------------------------


# -- code that ends the program ----------------------------------------------------------------------------------------
