"""The built-in functions through ``rbdata.preprocess`` and the command line, alone and in chains."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import rbdata
import torch
from function_tools import traits_of
from preprocess_tools import make_input, plain, run
from rbdata.cli import run as command_line
from rbdata.errors import UsageError
from rbdata.preprocess.functions import BUILTIN, find_builtin
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from ted_rules import check_invariants

ALONE = [
    ("clip_rewards", "zstd", {"sign": True}),
    ("filter_episodes", "flat", {"min_quantile": 0.4, "max_length": 15}),
    ("grayscale", "zstd", {}),
    ("identity", "flat", {}),
    ("n_step", "flat", {"n": 3}),
    ("normalize_observations", "raw", {"final": True, "clip": 3.0, "dtype": "float16"}),
    ("relabel_rewards", "flat", {"rule": "return_range", "keep": True}),
    ("resize_frames", "zstd", {"height": 12, "width": 8}),
    ("resize_frames", "ted", {"height": 30, "width": 25, "mode": "bilinear"}),
    ("returns_to_go", "flat", {"gamma": 0.9}),
    ("scale_rewards", "zstd", {"shift": 2.0}),
    ("select_keys", "flat", {"keys": "observation"}),
    ("subsample", "flat", {"every": 4}),
    ("subsample", "flat", {"fraction": 0.25, "seed": 7}),
    ("to_float", "raw", {}),
    ("to_float", "flat", {"keys": ["action"], "dtype": "float16"}),
    ("trim", "flat", {"key": "observation", "threshold": 1.5}),
]


def test_every_function_is_here():
    assert {name for name, _, _ in ALONE} == set(BUILTIN)


@pytest.mark.parametrize(("name", "layout", "args"), ALONE)
def test_alone(name, layout, args, tmp_path):
    make_input(tmp_path, layout, count=20)
    made = run(tmp_path, f"rbdata:{name}", args=args, batch_size=16, procs=0)
    function = partial(find_builtin(name), **args)
    statistics = made.statistics.get(name)
    fit = traits_of(find_builtin(name)).fit
    assert (statistics is not None) == (fit is not None and fit.needed(**args))
    if statistics is not None:
        function = partial(function, statistics=statistics)
    whole, lengths = plain(Dataset(tmp_path / "my/input"), function, traits_of(find_builtin(name)).per, 16)
    found = made.to_tensordict()
    assert set(found.keys(True, True)) == set(whole.keys(True, True))
    for key in whole.keys(True, True):
        assert found[key].dtype == whole[key].dtype
        assert torch.equal(found[key], whole[key]), key
    assert made.episodes.lengths.tolist() == lengths
    assert check_invariants(made.path, made.manifest) == []
    verify(made.path)
    assert made.manifest.lineage["functions"][0]["function"] == f"rbdata:{name}"


def test_normalized_data_are_normal(tmp_path):
    make_input(tmp_path)
    made = run(tmp_path, "rbdata:normalize_observations", args={"eps": 0}, batch_size=16, procs=0)
    rows = made["observation"].double()
    assert torch.allclose(rows.mean(0), torch.zeros(4, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(rows.std(0, correction=0), torch.ones(4, dtype=torch.float64), atol=1e-6)
    source = Dataset(tmp_path / "my/input")["observation"].double().numpy()
    # The manifest, the dataset and a buffer all have them.
    for statistics in (made.statistics, rbdata.load(made).dataset.statistics):
        known = statistics["normalize_observations"]["observation"]
        np.testing.assert_allclose(known["mean"], source.mean(0), rtol=1e-12)
        np.testing.assert_allclose(known["std"], source.std(0), rtol=1e-12)
        assert known["count"] == len(source)


def test_n_steps_are_those_of_the_runtime(tmp_path):
    make_input(tmp_path)
    made = run(tmp_path, "rbdata:n_step", args={"n": 4, "gamma": 0.9}, procs=0).to_tensordict()
    options = {"replacement": False, "shuffle": False, "batch_size": len(made)}
    batch = rbdata.load(tmp_path / "my/input", n_step=4, gamma=0.9, **options).sample()
    batch = batch[batch["index"].argsort()]
    keys = set(made.keys(True, True))
    assert keys == set(batch.keys(True, True)) - {"index"}
    for key in keys - {("next", "done"), ("next", "truncated")}:
        assert torch.equal(made[key], batch[key]), key


def test_a_chain_of_three_with_two_first_passes(tmp_path):
    make_input(tmp_path)
    functions = ["rbdata:filter_episodes", "rbdata:normalize_observations", "rbdata:returns_to_go"]
    args = {"min_quantile": 0.5, "returns_to_go.gamma": 0.9}
    made = run(tmp_path, functions, args=args, batch_size=16, procs=0)
    source = Dataset(tmp_path / "my/input")
    bound = np.quantile(source.episodes.returns, 0.5)
    kept = [source.episode(n) for n in range(len(source.episodes)) if source.episodes.returns[n] >= bound]
    assert made.episodes.lengths.tolist() == [len(td) for td in kept]
    rows = torch.cat(kept)["observation"].double().numpy()  # the second pass saw what the first function kept
    np.testing.assert_allclose(
        made.statistics["normalize_observations"]["observation"]["mean"], rows.mean(0), rtol=1e-9
    )
    truth = torch.cat([find_builtin("returns_to_go")(td, gamma=0.9)["return_to_go"] for td in kept])
    assert torch.equal(made["return_to_go"], truth)
    assert check_invariants(made.path, made.manifest) == []
    later = run(tmp_path, "rbdata:clip_rewards", source="my/output", dest="my/later")
    assert later.statistics == made.statistics  # a dataset made of this one still knows them


def test_frames_grey_small_and_float(tmp_path):
    make_input(tmp_path, "zstd")
    functions = ["rbdata:grayscale", "rbdata:resize_frames", "rbdata:to_float"]
    made = run(tmp_path, functions, args={"height": 16, "width": 16, "dtype": "float16"}, procs=2, batch_size=50)
    assert (made.schema["observation"].kind, made.schema["observation"].dtype) == ("state", "float16")
    td = Dataset(tmp_path / "my/input").to_tensordict()
    for function in (find_builtin("grayscale"), partial(find_builtin("resize_frames"), height=16, width=16)):
        td = function(td)
    td = find_builtin("to_float")(td, dtype="float16")
    assert torch.equal(made["next/observation"], td["next", "observation"])
    assert check_invariants(made.path, made.manifest) == []


@pytest.mark.parametrize(
    ("functions", "args", "why"),
    [
        ("rbdata:resize_frames", {"height": 8, "width": 8, "keys": "pixels"}, "no key 'pixels'"),
        ("rbdata:resize_frames", {"height": 8, "width": 8}, "no observation holds frames"),
        ("rbdata:resize_frames", {"height": 8}, "needs width"),
        ("rbdata:resize_frames", {"height": "8", "width": 8}, "height must be a whole number, and is '8'"),
        ("rbdata:filter_episodes", {}, "needs a condition"),
        (["rbdata:to_float", "rbdata:grayscale"], {}, "no observation holds colour frames"),
    ],
)
def test_invalid_requests_fail_before_anything_is_written(functions, args, why, tmp_path):
    make_input(tmp_path)
    with pytest.raises(UsageError, match=why):
        run(tmp_path, functions, args=args, procs=0)
    assert not (tmp_path / "my/output").exists()


def test_command_line(tmp_path, monkeypatch, capfd):
    make_input(tmp_path, "zstd")
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path))
    words = "preprocess my/input --fn rbdata:resize_frames --args height=12 --args width=12"
    words += " --fn rbdata:clip_rewards --dest my/small --procs 1 --json"
    assert command_line(words.split()) == 0
    json.loads(capfd.readouterr().out)
    made = Dataset(tmp_path / "my/small")
    assert made.schema["observation"].shape == (12, 12, 3)
    assert float(made["next/reward"].abs().max()) <= 1


def test_numbers_that_the_asked_dtype_does_not_hold():
    from rbdata.errors import SchemaError
    from tensordict import TensorDict

    flags = {flag: torch.zeros(3, 1, dtype=torch.bool) for flag in ("done", "terminated", "truncated")}
    after = {"observation": torch.zeros(3), "reward": torch.full((3, 1), 3e38), **flags}
    td = TensorDict({"observation": torch.tensor([0.0, torch.inf, 1.0]), **flags, "next": after}, [3])
    assert find_builtin("to_float")(td, dtype="float16")["observation"].tolist() == [0, torch.inf, 1]
    for value, dtype, scale in ((70000.0, "float16", None), (7000.0, "float16", 10), (1e39, "float32", 0.1)):
        td["observation"] = torch.tensor([0.0, torch.inf, value], dtype=torch.float64)
        with pytest.raises(SchemaError, match=rf"observation holds .*, which {dtype} does not"):
            find_builtin("to_float")(td, dtype=dtype, scale=scale)
    td["next", "done"][-1] = True
    with pytest.raises(SchemaError, match=r"return_to_go holds 9e\+38, which float32 does not"):
        find_builtin("returns_to_go")(td)
