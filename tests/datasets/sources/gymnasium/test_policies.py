"""Policies of the user's, and everything that can be wrong with them, with the environment or with the options."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import gymnasium
import gymnasium_envs
import numpy as np
import pytest
from rbdata.datasets import catalogue
from rbdata.datasets.acquire import download
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Request
from rbdata.datasets.sources.gymnasium.source import GymnasiumSource
from rbdata.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    FunctionError,
    MissingExtraError,
    RbdataError,
    UsageError,
)
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify

gymnasium_envs.register()

POLICIES = """
import numpy as np
import torch

def lean(observation):
    return int(observation[2] > 0)

def lean_all(observation):
    return (observation[:, 2] > 0).astype(int)

def as_torch(observation):
    return torch.tensor(observation[2] > 0).long()

def torque(observation):
    return np.array([3.0])

def half_torque(observation):
    return torch._neg_view(torch.tensor([-0.5], dtype=torch.bfloat16))

def dice(observation):
    return np.random.randint(2)

def float_for_discrete(observation): return 0.5
def no_such_action(observation): return 2
def wrong_shape(observation): return np.zeros(2, int)
def nothing(observation): return None
def text(observation): return "left"
def nan(observation): return np.array([np.nan], np.float32)
def fails(observation): raise KeyError("weights")
def one_for_two(observation): return 0

number = 3
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current directory with policies in it, and a folder that must not hide ours."""
    place = tmp_path / "here"
    place.mkdir()
    (place / "acting.py").write_text(POLICIES)
    (place / "broken.py").write_text("import no_such_thing\n")
    (place / "storage.py").write_text("raise RuntimeError('imported by mistake')\n")
    monkeypatch.chdir(place)
    yield place
    for name in ("acting", "broken"):
        sys.modules.pop(name, None)


def record(
    root: Path, name: str = "CartPole-v1", *, codec="auto", layout="auto", parts=None, force=False, procs=0, **extra
):
    options = ConvertOptions(codec=codec, layout=layout, parts=parts, extra=extra)
    outcome = download(Request(f"gymnasium/{name}", root=root, options=options, procs=procs, force=force))
    assert verify(outcome.path).ok
    return Dataset(outcome.path)


def assert_clean(root: Path) -> None:
    """Nothing was written that a later run would stumble over."""
    assert not [path for path in root.rglob("*") if ".writing" in path.name or path.name == "rbdata.json"]


# -- policies that work --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["acting:lean", "acting.py:lean", "./acting.py:lean", "acting:as_torch"])
def test_a_function_acts(tmp_path, here, policy):
    before = list(sys.path)
    dataset = record(tmp_path / "root", steps=200, policy=policy)
    assert np.array_equal(dataset["action"].numpy(), dataset["observation"].numpy()[:, 2] > 0)
    assert dataset.manifest.source["options"]["policy"] == policy
    assert len(dataset.manifest.source["policy_sha256"]) == 64
    assert sys.path == before


def test_a_policy_of_a_float_type_that_numpy_lacks(tmp_path, here):
    """A network in bfloat16, whose negation torch has not computed yet."""
    dataset = record(tmp_path / "root", "Pendulum-v1", steps=20, policy="acting:half_torque")
    assert dataset["action"].flatten().tolist() == [0.5] * 20


def test_the_current_directory_hides_nothing(tmp_path, here):
    (here / "acting.py").write_text("import json, gymnasium\n" + POLICIES + "\nassert callable(gymnasium.make)\n")
    (here / "json.py").write_text("raise RuntimeError('hidden')\n")
    assert len(record(tmp_path / "root", steps=10, policy="acting:lean")) == 10


def test_several_environments_are_acted_in_together(tmp_path, here):
    dataset = record(tmp_path / "root", steps=200, num_envs=4, policy="acting:lean_all")
    assert np.array_equal(dataset["action"].numpy(), dataset["observation"].numpy()[:, 2] > 0)


@pytest.mark.parametrize(("count", "policy"), [(1, "acting:lean"), (4, "acting:lean_all")])
def test_epsilon(tmp_path, here, count, policy):
    def share(epsilon):
        data = record(tmp_path / str(epsilon), steps=400, num_envs=count, policy=policy, epsilon=epsilon)
        return float(np.mean(data["action"].numpy() == (data["observation"].numpy()[:, 2] > 0)))

    assert share(0.0) == 1.0
    assert 0.40 < share(1.0) < 0.60
    assert 0.65 < share(0.5) < 0.85


def test_a_policy_that_draws_is_repeatable(tmp_path, here):
    state = np.random.get_state()[1].tolist()
    one = record(tmp_path / "one", steps=100, policy="acting:dice", procs=1)["action"]
    assert np.random.get_state()[1].tolist() == state
    np.random.seed(99)
    assert record(tmp_path / "two", steps=100, policy="acting:dice")["action"].equal(one)
    assert not record(tmp_path / "three", steps=100, policy="acting:dice", seed=1)["action"].equal(one)


def test_actions_beyond_the_bounds_are_kept(tmp_path, here):
    dataset = record(tmp_path / "root", "Pendulum-v1", steps=50, policy="acting:torque")
    assert (dataset["action"].numpy() == 3.0).all()


# -- policies that do not ------------------------------------------------------------------------------------------

BAD_ACTIONS = [
    ("CartPole-v1", "float_for_discrete", "0.5: its dtype is float64"),
    ("CartPole-v1", "no_such_action", "2: there is no such action"),
    ("CartPole-v1", "wrong_shape", r"its shape is \(2,\), not \(\)"),
    ("CartPole-v1", "nothing", "None: its dtype is object"),
    ("CartPole-v1", "text", "'left': its dtype is <U4"),
    ("Pendulum-v1", "nan", "it is not finite"),
    ("Pendulum-v1", "nothing", r"its shape is \(\), not \(1,\)"),
    ("tests/Everything-v0", "nothing", "not a dict of move, pick"),
]


@pytest.mark.parametrize(("name", "function", "said"), BAD_ACTIONS)
def test_bad_actions(tmp_path, here, name, function, said):
    with pytest.raises(UsageError, match=said) as caught:
        record(tmp_path / "root", name, steps=50, policy=f"acting:{function}")
    assert function in str(caught.value) and caught.value.hint and "takes" in caught.value.hint
    assert_clean(tmp_path / "root")


def test_one_action_for_two_environments(tmp_path, here):
    with pytest.raises(UsageError, match=r"its shape is \(\), not \(2,\)") as caught:
        record(tmp_path / "root", steps=50, num_envs=2, policy="acting:one_for_two")
    assert "2 of Discrete(2), stacked" in (caught.value.hint or "")


def test_a_policy_that_raises(tmp_path, here):
    with pytest.raises(RbdataError, match="the policy acting:fails failed: KeyError: 'weights'"):
        record(tmp_path / "root", steps=50, policy="acting:fails")
    assert list((tmp_path / "root").iterdir()) == []  # no empty folder either
    assert_clean(tmp_path / "root")
    assert len(record(tmp_path / "root", steps=20, policy="acting:lean")) == 20  # other options, nothing in the way


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("acting", "names no"),
        ("acting:", "names no"),
        ("acting:missing", "there is no 'missing'"),
        ("acting:number", "is not a function but int"),
        ("nowhere:act", "there is no module 'nowhere'"),
        ("nowhere.py:act", "there is no file .*nowhere.py"),
        (7, "policy is 7"),
    ],
)
def test_policies_that_cannot_be_found(tmp_path, here, policy, said):
    with pytest.raises(UsageError, match=said):
        record(tmp_path / "root", steps=50, policy=policy)
    assert_clean(tmp_path / "root")


@pytest.mark.parametrize("policy", ["broken:act", "broken.py:act"])
@pytest.mark.parametrize("procs", [0, 1])
def test_policies_that_cannot_be_imported(tmp_path, here, policy, procs):
    with pytest.raises(FunctionError, match="no_such_thing"):
        record(tmp_path / "root", steps=50, policy=policy, procs=procs)
    assert_clean(tmp_path / "root")


# -- environments --------------------------------------------------------------------------------------------------


def test_names_and_ids():
    ids = catalogue.known_ids("gymnasium")
    assert "gymnasium/CartPole-v1" in ids and len(ids) == 9
    assert all(name in gymnasium.registry for name in GymnasiumSource().names() if not name.startswith("ALE/"))
    assert catalogue.resolve("CartPole-v1")[0] == "gymnasium/CartPole-v1"
    assert catalogue.resolve("gymnasium/my_package:Thing-v3")[0] == "gymnasium/my_package:Thing-v3"
    assert catalogue.resolve("hopper-medium-v2")[0] == "d4rl/hopper-medium-v2"  # any name could be an environment's
    with pytest.raises(DatasetNotFoundError):
        catalogue.resolve("gymnasium/no such thing")


def test_an_unknown_environment_is_named_with_what_gymnasium_says(tmp_path):
    for name, said in (
        ("CartPool-v1", "Did you mean: `CartPole`"),
        ("CartPole-v99", "v99"),
        ("Nowhere/Thing-v0", "Nowhere"),
    ):
        with pytest.raises(DatasetNotFoundError, match=f"{name}.*{said}") as caught:
            record(tmp_path, name)
        assert "pprint_registry" in (caught.value.hint or "")
    assert_clean(tmp_path)


def test_an_environment_of_a_module_in_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "my_envs.py").write_text(
        textwrap.dedent("""
        import gymnasium, gymnasium_envs
        gymnasium.register("Mine-v0", gymnasium_envs.Counter)
        """)
    )
    monkeypatch.chdir(tmp_path)
    assert len(record(tmp_path / "root", "my_envs:Mine-v0", steps=10)) == 10
    sys.modules.pop("my_envs")
    with pytest.raises(MissingExtraError, match=r"cannot be made: .*absent_package"):
        record(tmp_path / "root", "absent_package:Mine-v0")


def test_an_environment_that_wants_a_package(tmp_path):
    def needs(**_):
        raise gymnasium.error.DependencyNotInstalled("Box2D is not installed")

    gymnasium.register("tests/Needs-v0", needs)
    with pytest.raises(MissingExtraError, match="Box2D is not installed"):
        record(tmp_path, "tests/Needs-v0")
    with pytest.raises(UsageError, match="does not take colour"):
        record(tmp_path, env_args={"colour": 3})


def test_the_package_of_a_known_family_is_imported_or_named(tmp_path, monkeypatch):
    """As for `Dataset.make_env`."""
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(MissingExtraError) as caught:
        record(tmp_path, "MiniGrid-Nowhere-v0")
    assert caught.value.hint == "pip install minigrid"
    pytest.importorskip("ale_py")
    assert len(record(tmp_path, "PongNoFrameskip-v4", steps=4, codec="raw")) == 4


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "failed in step, after 3 steps: RuntimeError: the simulation blew up"),
        ("shape", r"gave observation of shape \(2,\), its space says \(3,\)"),
        ("dtype", "gave observation as complex"),
        ("reward", "not one finite number"),
        ("vector reward", "failed in step"),
    ],
)
def test_an_environment_that_fails(tmp_path, how, said):
    with pytest.raises(RbdataError, match=said):
        record(tmp_path, "tests/Broken-v0", steps=20, env_args={"how": how})
    assert_clean(tmp_path)


def test_spaces_without_rows_of_one_size(tmp_path):
    with pytest.raises(UsageError, match="Sequence spaces cannot be stored"):
        record(tmp_path, "tests/Unstorable-v0")


# -- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "extra",
    [
        {"steps": 0},
        {"steps": 1.5},
        {"steps": True},
        {"num_envs": 0},
        {"num_envs": 11, "steps": 10},
        {"num_envs": 5000, "steps": 10_000},
        {"seed": -1},
        {"epsilon": 1.5},
        {"epsilon": "often"},
        {"env_args": [1]},
        {"text": "words"},
        {"colour": "red"},
    ],
)
def test_options_that_make_no_sense(tmp_path, extra):
    with pytest.raises(UsageError, match=next(iter(extra))):
        record(tmp_path, **extra)
    assert_clean(tmp_path)


def test_other_options_that_make_no_sense(tmp_path):
    with pytest.raises(UsageError, match="shards"):
        record(tmp_path, parts=(1,))
    with pytest.raises(UsageError, match="ted"):
        record(tmp_path, layout="ted", codec="zstd")


def test_options_are_part_of_what_a_recording_is(tmp_path):
    first = record(tmp_path, steps=50)
    options = first.manifest.source["options"]
    assert (options["steps"], options["policy"], options["num_envs"], options["seed"]) == (50, "random", 1, 0)
    assert record(tmp_path).manifest.provenance == first.manifest.provenance  # what is there is enough
    with pytest.raises(DatasetExistsError, match="steps"):
        record(tmp_path, steps=60)
    assert len(record(tmp_path, steps=60, force=True)) == 60


def test_a_dry_run_writes_nothing(tmp_path):
    request = Request(
        "gymnasium/CartPole-v1", root=tmp_path, options=ConvertOptions(extra={"steps": 1000}), dry_run=True
    )
    estimate = download(request).estimate
    assert estimate is not None and estimate.steps == 1000 and estimate.fetch_bytes == 0
    assert not any(tmp_path.iterdir())
    written = record(tmp_path, steps=1000)
    on_disk = written.manifest.bytes
    assert estimate.disk_bytes == pytest.approx(on_disk, rel=0.25)


def test_a_mirror_in_the_environment_is_no_matter(tmp_path, monkeypatch):
    monkeypatch.setenv("RBDATA_MIRROR", str(tmp_path / "mirror"))
    (tmp_path / "mirror").mkdir()
    assert len(record(tmp_path / "root", steps=10)) == 10
