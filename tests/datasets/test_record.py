"""Recordings with names, by policies of every kind, from Python and from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import gymnasium_envs
import pytest
import rbdata
import torch
from paths import SUPPORT
from rbdata.cli import run as command_line
from rbdata.datasets import catalogue
from rbdata.datasets.ingest.request import Listener
from rbdata.errors import DatasetExistsError, FunctionError, RbdataError, UnknownDatasetError, UsageError

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
    with pytest.raises(UnknownDatasetError):
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
    dataset = rbdata.open_dataset(rbdata.record("CartPole-v1", policy, num_envs=num_envs, episodes=6, name="x"))
    assert len(dataset.episodes) == 6 and (dataset.episodes.outcome == 1).all()
    starts = [int(dataset["action"][start]) for start in dataset.episodes.start]
    assert starts == ([1] * 6 if policy == "pol.py" or num_envs == 2 else [0, 1] * 3)
    actions = dataset["action"].numpy()
    inside = ~dataset["next/done"].numpy()[:-1, 0]
    assert (actions[1:] != actions[:-1])[inside].all()
    sys.modules.pop("pol", None)


def test_episodes_whole_and_shared_among_environments(capsys):
    dataset = rbdata.open_dataset(rbdata.record("tests/Counter-v0", episodes=7, num_envs=3))
    assert len(dataset.episodes) == 7 and dataset.manifest.counts["cut_episodes"] == 0
    assert command_line(["download", "gymnasium/tests/Counter-v0", "--episodes", "3", "--name", "alone"]) == 0
    assert "write 3 episodes to" in capsys.readouterr().err
    alone = rbdata.open_dataset(rbdata.record("tests/Counter-v0", episodes=3, name="alone"))
    assert alone.episodes.length.tolist() == dataset.episodes.length.tolist()[:3] == [3, 1, 7]
    assert alone.manifest.source["options"]["episodes"] == 3
    both = rbdata.open_dataset(rbdata.record("tests/Counter-v0", episodes=3, steps=5, name="both"))
    assert len(both) == 5
    with pytest.raises(DatasetExistsError, match="episodes"):
        rbdata.record("tests/Counter-v0", episodes=4, name="alone")


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
    path = rbdata.record("CartPole-v1", policy, steps=30, name="once")
    assert rbdata.record("CartPole-v1", policy, steps=30, name="once") == path and policy.calls == 30
    with pytest.raises(DatasetExistsError, match="policy"):
        rbdata.record("CartPole-v1", lean, steps=30, name="once")
    rbdata.record("CartPole-v1", "pol.py:lean", steps=30, name="file")
    (here / "pol.py").write_text(POLICIES + "\n# edited\n")
    with pytest.raises(DatasetExistsError, match="contents of the policy's file"):
        rbdata.record("CartPole-v1", "pol.py:lean", steps=30, name="file")
    rbdata.record("CartPole-v1", "pol.py:lean", steps=30, name="file", force=True)


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
    assert command_line(words) == 0 and "contents of the policy's file" in capsys.readouterr().err
    dataset = rbdata.open_dataset(words[1])
    assert dataset["action"].tolist() == (dataset["observation"][:, 2] <= 0).long().tolist() != before.tolist()


def test_what_a_policy_raises_comes_first(capsys):
    with pytest.raises(FunctionError, match="KeyError: 'weights'") as caught:
        rbdata.record("CartPole-v1", "pol.py:fails", steps=30)
    assert isinstance(caught.value.__cause__, KeyError)
    detail = caught.value.detail.splitlines()
    assert "pol.py" in detail[1] and "weights" in detail[2] and "rbdata/datasets" not in caught.value.detail
    assert command_line(["download", "gymnasium/CartPole-v1", "--policy", "pol.py:fails"]) == 1
    told = capsys.readouterr().err
    assert told.index("pol.py") < told.index("the policy pol.py:fails failed")


def test_frames_are_measured_for_the_estimate(here):
    from pathlib import Path

    from rbdata.datasets.acquire import download
    from rbdata.datasets.ingest.job import ConvertOptions
    from rbdata.datasets.ingest.request import Request

    request = Request(
        "gymnasium/tests/Frames-v0", root=Path("root"), options=ConvertOptions(extra={"steps": 700}), dry_run=True
    )
    estimate = download(request).estimate
    written = rbdata.open_dataset(rbdata.record("tests/Frames-v0", steps=700)).manifest.bytes
    assert estimate is not None and written / 2 < estimate.disk_bytes < 3 * written


# -- the process that records ------------------------------------------------------------------------------------------


def uneven(observation):
    """An action that depends on how exactly torch computes."""
    return int(torch.tensor([float(one) for one in observation]).sum() * 1e9) % 2


def test_settings_of_torch_are_part_of_a_recording():
    path = rbdata.record("CartPole-v1", uneven, steps=200, name="single")
    rbdata.record("CartPole-v1", steps=20)
    torch.set_default_dtype(torch.float64)
    try:
        double = rbdata.record("CartPole-v1", uneven, steps=200, name="double")
        assert rbdata.record("CartPole-v1", uneven, steps=200, name="double") == double
        with pytest.raises(DatasetExistsError, match="setting of torch"):
            rbdata.record("CartPole-v1", uneven, steps=200, name="single")
        rbdata.record("CartPole-v1", steps=20)  # nothing of the user's computes
    finally:
        torch.set_default_dtype(torch.float32)
    assert rbdata.open_dataset(path)["action"].tolist() != rbdata.open_dataset(double)["action"].tolist()
    with pytest.raises(DatasetExistsError, match="setting of torch"):
        rbdata.record("CartPole-v1", uneven, steps=200, name="double")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for name in ("single", "new"):
            with pytest.raises(UsageError, match="autocast is on"):
                rbdata.record("CartPole-v1", uneven, steps=200, name=name)


def test_recordings_in_several_threads(here):
    """What one of them did to wait for another one counted as files that the other one's policy had opened."""

    def slow(observation):
        time.sleep(0.001)
        return int(observation[2] > 0)

    def recorded(name):
        return rbdata.record("CartPole-v1", slow, steps=200, name=name)

    with ThreadPoolExecutor(4) as pool:
        made = [*pool.map(recorded, ("one", "one", "two", "one"))]
    assert len({*made}) == 2
    for path in made:
        assert "opened" not in rbdata.open_dataset(path).manifest.source
        assert recorded(path.name.partition("@")[2]) == path


class Leaning:
    """Its pickle is that of another one."""

    def __init__(self, limit=0.0):
        self.limit = limit

    def __reduce__(self):
        return Leaning, ()

    def __call__(self, observation):
        return int(observation[2] > self.limit)


def test_a_policy_whose_pickle_leaves_out_what_it_reads():
    path = rbdata.record("CartPole-v1", Leaning(0.0), steps=30, name="lean")
    assert rbdata.record("CartPole-v1", Leaning(0.0), steps=30, name="lean") == path
    with pytest.raises(DatasetExistsError, match="another policy"):
        rbdata.record("CartPole-v1", Leaning(0.1), steps=30, name="lean")


# -- code that ends the program ----------------------------------------------------------------------------------------

EXITS = """
import os, signal, sys
import numpy as np
import gymnasium_envs
from gymnasium_envs import Counter

calls = 0

def leave(how):
    global calls
    calls += 1
    if calls == 20:
        if how == "signal":
            signal.raise_signal(signal.SIGTERM)
        ends = {"exit": SystemExit(0), "generator": GeneratorExit(), "ctrl-c": KeyboardInterrupt()}
        raise ends.get(how, BaseException("mine"))

def exit(observation): leave("exit"); return 0
def generator(observation): leave("generator"); return 0
def own(observation): leave("own"); return 0
def interrupt(observation): leave("ctrl-c"); return 0
def terminated(observation): leave("signal"); return 0

class Made:
    def __init__(self): sys.exit(0)
class Begins:
    def act(self, observation): return 0
    def reset(self): sys.exit(0)

class Exits(Counter):
    where = ""
    def __init__(self):
        super().__init__()
        if self.where == "init": sys.exit(0)
    def reset(self, **options):
        if self.where == "reset": sys.exit(0)
        return super().reset(**options)
    def step(self, action):
        if self.where == "step": sys.exit(0)
        return super().step(action)
    def close(self):
        if self.where == "close": sys.exit(0)

def forks(observation):
    global calls
    calls += 1
    if calls == 7:
        os.fork()
    return int(observation[2] > 0)
"""


@pytest.fixture
def exits(here):
    import importlib

    (here / "exits.py").write_text(EXITS)
    sys.path.append(str(here))
    yield importlib.import_module("exits")
    sys.path.remove(str(here))
    sys.modules.pop("exits", None)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("exits.py:exit", "the policy exits.py:exit failed: SystemExit: 0"),
        ("exits.py:generator", "the policy exits.py:generator failed: GeneratorExit"),
        ("exits.py:own", "the policy exits.py:own failed: BaseException: mine"),
        ("exits.py:Made", "the policy exits.py:Made failed: SystemExit: 0"),
        ("exits.py:Begins", "the policy exits.py:Begins failed: SystemExit: 0"),
        ("ends.py:act", "raised SystemExit: 0"),
    ],
)
def test_a_policy_that_ends_the_program_fails(policy, said, here, exits, capsys):
    (here / "ends.py").write_text("import sys\ndef act(observation): return 0\nsys.exit(0)\n")
    with pytest.raises((FunctionError, UsageError), match=said):
        rbdata.download("gymnasium/CartPole-v1", steps=90, policy=policy)
    assert command_line(["download", "gymnasium/CartPole-v1", "--steps", "90", "--policy", policy]) in (1, 2)
    assert said in capsys.readouterr().err and not [*here.glob("root/gymnasium/*")]


@pytest.mark.parametrize("where", ["init", "reset", "step", "close"])
@pytest.mark.parametrize("num_envs", [1, 2])
def test_an_environment_that_ends_the_program_fails(where, num_envs, here, exits, monkeypatch):
    monkeypatch.setattr(exits.Exits, "where", where)
    with pytest.raises(RbdataError, match="SystemExit"):
        rbdata.record(exits.Exits, steps=30, num_envs=num_envs, name="ends")
    monkeypatch.setattr(exits.Exits, "where", "")
    assert len(rbdata.open_dataset(rbdata.record(exits.Exits, steps=30, name="ends"))) == 30


def test_ctrl_c_and_signal_handlers_end_the_program(exits, here):
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    try:
        for policy, ends in ((exits.terminated, SystemExit), (exits.interrupt, KeyboardInterrupt)):
            exits.calls = 0
            with pytest.raises(ends):
                rbdata.record("CartPole-v1", policy, steps=90, name="stopped")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not [*here.glob("root/gymnasium/*")]


def test_a_listener_that_ends_the_program(here):
    listener = Listener(on_progress=lambda tasks: sys.exit(0))
    with pytest.raises(
        RbdataError, match=r"the recording of .* was ended by SystemExit\(0\) in .*test_record.py, line"
    ):
        rbdata.record("CartPole-v1", lean, steps=600, name="x", listener=listener)
    with pytest.raises(RbdataError, match=r"the download of .* was ended by SystemExit\(0\)"):
        rbdata.download("gymnasium/CartPole-v1", steps=600, listener=listener)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_policy_that_forks_and_returns_in_the_child(exits, here):
    wanted = rbdata.open_dataset(rbdata.record("CartPole-v1", lean, steps=600, name="wanted")).manifest.files
    words = ["download", "gymnasium/CartPole-v1", "--steps", "600", "--policy", "exits.py:forks", "--name", "forks"]
    code = f"import sys; from rbdata.cli import run; sys.path.append({str(SUPPORT)!r}); sys.exit(run({words!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("written") == 1
    assert rbdata.open_dataset("gymnasium/CartPole-v1@forks").manifest.files == wanted


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_loop_is_recorded_by_the_process_that_began_it():
    env = rbdata.Recorder(gymnasium.make("tests/Counter-v0"), name="forked")
    env.reset()
    child = os.fork()
    if not child:
        code = 0
        try:
            for _ in range(3):
                env.step(0)
        except UsageError:
            env.close()
            code = 7
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    for _ in range(3):
        env.step(1)
    env.close()
    assert rbdata.open_dataset(env.path)["action"].tolist() == [1, 1, 1]
