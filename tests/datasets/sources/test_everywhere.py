"""One dataset of every low-dimensional source, none of them a fixture, in the hands of programs that know no rbdata."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import gymnasium
import gymnasium_envs
import numpy as np
import pytest
import torch
from atari_truth import write_run as write_ring
from d4rl_truth import make, to_dataset, write
from minari_tools import play, save
from minari_tools import write as write_minari
from openml_server import openml_server
from rbdata.datasets.acquire import download
from rbdata.datasets.audit.run import audit_datasets
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Request
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from rlu_writer import make_episodes
from rlu_writer import write_run as write_episodes
from ted_rules import check_invariants
from tensordict import TensorDict

torchrl = pytest.importorskip("torchrl.data")
gymnasium_envs.register()
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def get(tmp_path: Path, name: str, mirror: str | Path | None = None, **options) -> Dataset:
    request = Request(
        name, root=tmp_path / "root", mirror=mirror and str(mirror), procs=0, options=ConvertOptions(**options)
    )
    return Dataset(download(request).path)


def d4rl(**changes) -> Callable[[Path], Dataset]:
    def build(tmp_path: Path) -> Dataset:
        arrays = make([40, 25, 90, 7, 60], ["terminal", "timeout", "timeout", "terminal timeout", "none"], **changes)
        arrays["infos/qpos"] = np.arange(222 * 4, dtype="float64").reshape(222, 4)
        return to_dataset(write(tmp_path / "raw" / "x.hdf5", arrays), tmp_path)

    return build


def kitchen(tmp_path: Path) -> Dataset:
    arrays = make([40, 25, 90, 60], ["terminal"] * 4, width=60)
    del arrays["timeouts"]
    arrays.update(terminals=arrays["terminals"].astype("float32"), infos=np.arange(215))
    write(tmp_path / "mirror" / "kitchen" / "kitchen_microwave_kettle_light_slider-v0.hdf5", arrays, compression="gzip")
    return get(tmp_path, "d4rl/kitchen-partial-v0", tmp_path / "mirror")


def collected(env: str, data_format: str, **arguments) -> Callable[[Path], Dataset]:
    """Played here, stored by Minari."""

    def build(tmp_path: Path) -> Dataset:
        made = gymnasium.make(env, **arguments)
        save("tests/collected-v0", play(made, 6), made, data_format)
        return get(tmp_path, "minari/tests/collected-v0")

    return build


def nested(tmp_path: Path) -> Dataset:
    env = gymnasium_envs.Everything
    write_minari(
        "tests/nested-v0", env.observation_space["inner"], env.action_space, [9, 30, 14, 21], data_format="arrow"
    )
    return get(tmp_path, "minari/tests/nested-v0")


def table(name: str, **extra) -> Callable[[Path], Dataset]:
    def build(tmp_path: Path) -> Dataset:
        rng = np.random.default_rng(0)
        kinds = [("a b", None), ("colour", ["red", "dark blue", "it's"]), ("y", ["no", "yes"])]
        head = "".join(f"@attribute {_quoted(n)} {_kind(values)}\n" for n, values in kinds)
        rows = [(rng.normal(), rng.integers(3), rng.integers(2)) for _ in range(300)]
        if name == "sparse":
            body = "".join(f"{{0 {a}, 1 {_quoted(kinds[1][1][b])}, 2 {kinds[2][1][c]}}}\n" for a, b, c in rows)
        else:
            body = "".join(f"{a},{_quoted(kinds[1][1][b])},{kinds[2][1][c]}\n" for a, b, c in rows)
        with openml_server() as server:
            server.table(7, f"@relation t\n{head}@data\n{body}", default_target_attribute="y")
            dataset = get(tmp_path, "openml/7", server.url, extra=extra)
        assert dataset["action"].tolist() == [row[2] for row in rows]
        return dataset

    return build


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "\\'") + "'"


def _kind(values: list[str] | None) -> str:
    return "{" + ",".join(map(_quoted, values)) + "}" if values else "numeric"


def recorded(env: str, **extra) -> Callable[[Path], Dataset]:
    return lambda tmp_path: get(tmp_path, f"gymnasium/{env}", extra=extra)


def shards(tmp_path: Path) -> Dataset:
    write_ring(tmp_path / "mirror" / "dqn" / "Qbert" / "2" / "replay_logs", 80, [30, 45, 60, 25])
    return get(tmp_path, "atari/Qbert/2", tmp_path / "mirror", layout="ted")


def episodes(tmp_path: Path) -> Dataset:
    write_episodes(tmp_path / "mirror", [make_episodes([[30, 45], [60, 25]], cut=[(0, 1)])])
    return get(tmp_path, "atari/Qbert/1", tmp_path / "mirror", layout="ted")


SOURCES: dict[str, Callable[[Path], Dataset]] = {
    "d4rl, true successors": d4rl(successors=True, width=17),
    "d4rl, no time-outs": kitchen,
    "minari, infos": collected("tests/Counter-v0", "hdf5", lengths=(12, 30, 9)),
    "minari, truncated": collected("tests/Limited-v0", "arrow", lengths=(100,)),
    "minari, parquet": collected("Acrobot-v1", "parquet", max_episode_steps=60),
    "minari, nested": nested,
    "openml, sparse and standardised": table("sparse", standardize="all", one_hot=True),
    "gymnasium, several": recorded("Pendulum-v1", steps=700, num_envs=3),
    "gymnasium, tuple": recorded("Blackjack-v1", steps=300),
    "gymnasium, nested": recorded("tests/Everything-v0", steps=200, num_envs=2, env_args={"lengths": (9, 30)}),
    "atari": shards,
    "rl unplugged": episodes,
}
#: One-step episodes, or nearly so.
SHORT = {"openml, sparse and standardised": 1, "gymnasium, tuple": 1, "minari, truncated": 5}


@pytest.mark.parametrize("name", SOURCES)
def test_plain_ted_for_tensordict_and_torchrl(name, tmp_path):
    """No rbdata: tensordict opens it as full TED, TorchRL samples slices that never cross an episode."""
    dataset = SOURCES[name](tmp_path)
    assert check_invariants(dataset.path, dataset.manifest) == [] and verify(dataset.path).ok
    assert audit_datasets([dataset]).ok or name == "d4rl, no time-outs"  # whose rewards are numbers of rows
    if any(leaf.kind == "state" for leaf in dataset.schema):  # frames beside it: the rest is there all the same
        dataset = _as_ted(dataset, name, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        td = TensorDict.load_memmap(dataset.path)
    assert td.batch_size == (len(dataset),)
    keys = {"/".join(key) if isinstance(key, tuple) else key for key in td.keys(True, True)}
    assert keys == set(dataset.schema.names)
    for key in keys:
        assert torch.equal(td[tuple(key.split("/"))], dataset[key]) or torch.isnan(dataset[key]).any()
    length = SHORT.get(name, 6)
    sampler = torchrl.SliceSampler(slice_len=length, end_key=("next", "done"), strict_length=True)
    buffer = torchrl.ReplayBuffer(storage=torchrl.TensorStorage(td), sampler=sampler, batch_size=20 * length)
    episode_of = dataset.episode_of(torch.arange(len(dataset)))
    for _ in range(5):
        batch, info = buffer.sample(return_info=True)
        rows = torch.as_tensor(np.asarray(info["index"][0] if isinstance(info["index"], tuple) else info["index"]))
        rows = rows.reshape(20, length)
        assert (rows.diff(dim=1) == 1).all()
        assert (episode_of[rows].diff(dim=1) == 0).all()
        _check_ted(batch.reshape(20, length), [key for key in keys if key.split("/")[0] == "observation"])
        for key in ("action", "next/reward"):
            if key in keys:
                expected = dataset[key][rows].reshape(20, length, -1)
                assert torch.equal(batch[tuple(key.split("/"))].reshape(20, length, -1), expected)


def _as_ted(dataset: Dataset, name: str, tmp_path: Path) -> Dataset:
    assert name == "gymnasium, nested"
    extra = {"steps": 200, "num_envs": 2, "env_args": {"lengths": (9, 30)}}
    again = get(tmp_path / "ted", "gymnasium/tests/Everything-v0", layout="ted", extra=extra)
    assert torch.equal(again["observation/camera"], dataset["observation/camera"])
    return again


def _check_ted(batch: TensorDict, observations: list[str]) -> None:
    """What TED says of slices ``[n, T]``; the sampler itself marks a slice's last step truncated."""
    assert observations
    for flag in ("done", "terminated", "truncated"):
        assert batch[flag].dtype == batch["next", flag].dtype == torch.bool
        assert batch[flag].shape == batch["next", flag].shape == (*batch.shape, 1)
        assert not batch[flag].any()
    reward = batch["next", "reward"]
    assert reward.dtype == torch.float32 and reward.shape == (*batch.shape, 1) and reward.isfinite().all()
    after = batch["next"]
    assert torch.equal(after["done"], after["terminated"] | after["truncated"])
    assert not after["done"][:, :-1].any()
    for key in observations:
        path = tuple(key.split("/"))
        here, then = batch[path], after[path]
        assert here.dtype == then.dtype and here.ndim >= 3
        assert torch.equal(then[:, :-1], here[:, 1:])
