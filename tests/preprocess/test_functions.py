"""The ready-made functions against plain numpy, Pillow and torch."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from rbdata.errors import ResultError, SchemaError, UsageError
from rbdata.preprocess.functions import READY, ready
from rbdata.preprocess.functions.returns import discounted
from rbdata.storage.replay import MultiStep
from ted_tools import arrays, episode, episodes, ted_problems
from tensordict import TensorDict

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=6)
GAMMA = st.sampled_from([1.0, 0.99, 0.5, 1e-3])

clip_rewards, filter_episodes, grayscale, n_step = map(
    ready, ("clip_rewards", "filter_episodes", "grayscale", "n_step")
)
normalize, relabel, resize = map(ready, ("normalize_observations", "relabel_rewards", "resize_frames"))
returns_to_go, scale_rewards, select_keys = map(ready, ("returns_to_go", "scale_rewards", "select_keys"))
subsample, to_float = map(ready, ("subsample", "to_float"))


def fitted(function, parts, **args):
    """The statistics of a function over several parts, as the core finds them."""
    fit = function.ready.fit
    collected = [fit.collect(part, **args) for part in parts]
    merged = collected[0]
    for one in collected[1:]:
        merged = fit.merge(merged, one)
    return fit.finish(merged, **args)


def unchanged(before: dict, td: TensorDict) -> bool:
    return all(np.array_equal(before[name], rows) for name, rows in arrays(td).items())


# -- all of them ---------------------------------------------------------------------------------------------------------

CALLS = {
    "clip_rewards": {},
    "filter_episodes": {"min_length": 1},
    "grayscale": {"keys": "observation/pixels"},
    "n_step": {"n": 3},
    "normalize_observations": {"statistics": {"observation/vector": {"mean": [0.0] * 3, "std": [1.0] * 3, "count": 9}}},
    "relabel_rewards": {"rule": "even"},
    "resize_frames": {"height": 4, "width": 5},
    "returns_to_go": {},
    "scale_rewards": {"scale": 0.5},
    "select_keys": {"keys": "observation"},
    "subsample": {"every": 3},
    "to_float": {},
}


@pytest.mark.parametrize("name", sorted(READY))
def test_input_is_left_alone_and_output_is_ted(name):
    function = ready(name)
    td = episode(11, pixels=(8, 10, 3), outcome="truncated")
    before = arrays(td)
    out = function(td, **CALLS[name])
    assert unchanged(before, td)
    assert ted_problems(out) == []
    assert out.batch_size == (len(out["action"]) if "action" in out.keys() else 11,)  # noqa: SIM118
    for path, rows in arrays(out).items():
        assert np.isfinite(rows).all(), path


@pytest.mark.parametrize("name", sorted(READY))
def test_what_they_say_of_themselves(name):
    function = ready(name)
    assert function.ready.name == name
    args = {key: value for key, value in CALLS[name].items() if key != "statistics"}
    function.ready.check(**args)
    with pytest.raises(UsageError, match="takes no argument nonsense"):
        function.ready.check(**args, nonsense=1)
    with pytest.raises(UsageError, match="takes no argument statistics"):
        function.ready.check(**args, statistics={})
    assert function.ready.states == (function.on_state is not None)
    assert function.__doc__


def test_unknown_names_and_missing_arguments():
    with pytest.raises(UsageError, match="no ready-made function 'resize'"):
        ready("resize")
    with pytest.raises(UsageError, match="resize_frames needs height, width"):
        resize.ready.check()


@pytest.mark.parametrize("name", [name for name in READY if ready(name).ready.states])
def test_state_rows_are_changed_as_leaves_are(name):
    function, args = ready(name), CALLS[name]
    td = episode(7, pixels=(8, 10, 3))
    out = function(td, **args)
    assert function.ready.stateful(td, **{key: value for key, value in args.items() if key != "statistics"})
    for leaf in ("observation/vector", "observation/pixels"):
        path = tuple(leaf.split("/"))
        rows = torch.cat([td[path], td[("next", *path)][-1:]])
        states = function.on_state(leaf, rows, **args)
        assert torch.equal(states[:-1], out[path])
        assert torch.equal(states[1:], out[("next", *path)])


def test_keys_without_a_successor_are_not_left_to_states():
    td = episode(4)
    assert not to_float.ready.stateful(td, keys=["observation", "action"])
    assert to_float.ready.stateful(td, keys=["observation"])
    assert not n_step.ready.stateful(td)
    with pytest.raises(UsageError, match="no key 'pixels'"):
        to_float.ready.stateful(td, keys="pixels")


@pytest.mark.parametrize("name", ["to_float", "resize_frames", "grayscale", "normalize_observations"])
def test_keys_are_checked(name):
    function = ready(name)
    args = {key: value for key, value in CALLS[name].items() if key not in ("keys", "statistics")}
    for keys, why in [
        ("next/observation", "stands for its successor"),
        ([], "one key or several"),
        (3, "one key"),
        ([1], "must hold"),
    ]:
        with pytest.raises(UsageError, match=why):
            function.ready.check(**args, keys=keys)
    if name != "normalize_observations":
        with pytest.raises(UsageError, match="no key 'pixels'"):
            function(episode(3), **args, keys="pixels")


# -- rewards -------------------------------------------------------------------------------------------------------------


def test_scale_and_clip():
    td = episode(50)
    reward = td["next", "reward"].numpy()
    out = scale_rewards(td, scale=4, shift=-2)["next", "reward"]
    assert out.dtype == torch.float32
    np.testing.assert_allclose(out, 4 * (reward - 0.5), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(clip_rewards(td)["next", "reward"], np.clip(reward, -1, 1))
    np.testing.assert_array_equal(clip_rewards(td, low=None, high=0.25)["next", "reward"], np.minimum(reward, 0.25))
    np.testing.assert_array_equal(clip_rewards(td, sign=True)["next", "reward"], np.sign(reward))


@pytest.mark.parametrize(
    ("function", "args", "why"),
    [
        (scale_rewards, {}, "needs a scale or a shift"),
        (scale_rewards, {"scale": 0}, "scale=0"),
        (scale_rewards, {"scale": "2"}, "must be a number, and is '2'"),
        (scale_rewards, {"shift": float("nan")}, "must be a number"),
        (scale_rewards, {"scale": True}, "must be a number"),
        (clip_rewards, {"low": 2}, "low=2 is more than high=1"),
        (clip_rewards, {"low": None, "high": None}, "low, high, or both"),
        (clip_rewards, {"sign": True, "high": 5}, "nothing to do"),
        (clip_rewards, {"sign": 1}, "true or false"),
        (to_float, {"dtype": "bfloat16"}, "not one of float16, float32, float64"),
        (to_float, {"scale": 0}, "scale=0"),
        (resize, {"height": 0, "width": 4}, "height must be at least 1"),
        (resize, {"height": 4, "width": 4.5}, "width must be a whole number"),
        (resize, {"height": 4, "width": 4, "mode": "nearest"}, "mode is 'nearest'"),
        (resize, {"height": 4, "width": 4, "channels": "hwc"}, "channels is 'hwc'"),
        (grayscale, {"keep_channel": "yes"}, "true or false"),
        (normalize, {"eps": -1}, "eps must lie in"),
        (normalize, {"clip": 0}, "clip must be more than 0"),
        (normalize, {"over": "batch"}, "over is 'batch'"),
        (normalize, {"final": 1}, "true or false"),
        (returns_to_go, {"gamma": 0}, "gamma must be more than 0"),
        (returns_to_go, {"gamma": 1.5}, "gamma must lie in"),
        (returns_to_go, {"key": 3}, "must be a name"),
        (n_step, {"n": 0}, "n must be at least 1"),
        (n_step, {"n": True}, "whole number"),
        (n_step, {"n": 3, "gamma": -0.1}, "more than 0"),
        (relabel, {}, "a function or a rule"),
        (relabel, {"rule": "dense"}, "rule is 'dense'"),
        (relabel, {"rule": "shaping", "gamma": 0.9}, "needs a potential"),
        (relabel, {"rule": "shaping", "fn": len}, "needs the gamma"),
        (relabel, {"rule": "even", "gamma": 0.9}, "gamma goes with"),
        (relabel, {"rule": "even", "fn": len}, "nothing to do"),
        (relabel, {"fn": 3}, "must be a function"),
        (relabel, {"fn": len, "keep": 3}, "true or false"),
        (filter_episodes, {}, "something to filter by"),
        (filter_episodes, {"min_return": 2, "max_return": 1}, "nothing would be left"),
        (filter_episodes, {"min_length": 2.5}, "whole number"),
        (filter_episodes, {"min_quantile": 90}, r"must lie in \[0, 1\]"),
        (filter_episodes, {"min_quantile": 0.9, "max_quantile": 0.1}, "nothing would be left"),
        (filter_episodes, {"outcome": "success"}, "outcome is 'success'"),
        (select_keys, {}, "either keys or drop"),
        (select_keys, {"keys": "action", "drop": "info"}, "either keys or drop"),
        (select_keys, {"drop": ["reward", "done"]}, "cannot be dropped"),
        (subsample, {}, "either every"),
        (subsample, {"every": 2, "fraction": 0.5}, "either every"),
        (subsample, {"every": 0}, "at least 1"),
        (subsample, {"fraction": 1.1}, "must lie in"),
        (subsample, {"fraction": 0.5, "gamma": 0.9}, "gamma goes with every"),
        (subsample, {"fraction": 0.5, "seed": -1}, "seed must be at least 0"),
    ],
)
def test_arguments_that_make_no_sense(function, args, why):
    with pytest.raises(UsageError, match=why):
        function.ready.check(**args)
    with pytest.raises(UsageError, match=why):
        function(episode(4), **args)


# -- observations --------------------------------------------------------------------------------------------------------


def test_to_float():
    td = episode(5, pixels=(4, 4), dtype="float64")
    out = to_float(td)
    assert out["observation", "vector"].dtype == torch.float32
    np.testing.assert_array_equal(
        out["next", "observation", "vector"], td["next", "observation", "vector"].numpy().astype("f4")
    )
    np.testing.assert_allclose(out["observation", "pixels"], td["observation", "pixels"].numpy() / 255, rtol=1e-6)
    assert out["action"].dtype == torch.int64
    half = to_float(td, keys="observation/pixels,action", dtype="float16")
    assert half["action"].dtype == half["next", "observation", "pixels"].dtype == torch.float16
    assert half["observation", "vector"].dtype == torch.float64
    assert float((half["observation", "pixels"].double() - td["observation", "pixels"] / 255).abs().max()) < 3e-4
    assert torch.equal(to_float(td, keys="action", scale=0.5)["action"], td["action"] * 0.5)


@settings(deadline=None, max_examples=40)
@given(
    lengths=LENGTHS,
    cuts=st.lists(st.integers(1, 200), max_size=5),
    final=st.booleans(),
    dtype=st.sampled_from(["float32", "float64", "uint8"]),
)
def test_normalize_does_not_depend_on_the_cuts(lengths, cuts, final, dtype):
    whole = torch.cat(episodes(lengths, dtype=dtype))
    bounds = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    parts = [whole[low:high] for low, high in pairwise(bounds)]
    statistics = fitted(normalize, parts, final=final)["observation"]
    states = whole["observation"].numpy().astype("f8")
    if final:
        states = np.concatenate(
            [states, whole["next", "observation"][whole["next", "done"].squeeze(1)].numpy().astype("f8")]
        )
    assert statistics["count"] == len(states) == len(whole) + (len(lengths) if final else 0)
    np.testing.assert_allclose(statistics["mean"], states.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(statistics["std"], states.std(0), rtol=1e-9, atol=1e-12)
    out = normalize(whole, statistics={"observation": statistics}, clip=2.0)
    assert ted_problems(out) == []
    truth = np.clip(
        (whole["next", "observation"].numpy().astype("f8") - states.mean(0)) / (states.std(0) + 1e-3), -2, 2
    )
    np.testing.assert_allclose(out["next", "observation"], truth, rtol=1e-5, atol=1e-6)
    assert out["observation"].dtype == torch.float32


def test_normalize_keeps_its_digits_far_from_zero():
    rng = np.random.default_rng(0)
    values = 1e8 + rng.standard_normal((4000, 2))  # sums of squares would lose all of it
    td = TensorDict(
        {"observation": torch.from_numpy(values), "next": {"observation": torch.from_numpy(values)}}, [4000]
    )
    statistics = fitted(normalize, td.split(7))["observation"]
    np.testing.assert_allclose(statistics["std"], values.std(0), rtol=1e-7)
    np.testing.assert_allclose(statistics["mean"], values.mean(0), rtol=1e-14)


def test_normalize_frames_by_one_mean():
    td = episode(20, pixels=(6, 6, 3))
    statistics = fitted(normalize, td.split(3))
    frames = td["observation", "pixels"].numpy().astype("f8")
    assert statistics["observation/pixels"]["mean"] == pytest.approx(frames.mean(), rel=1e-12)
    assert statistics["observation/pixels"]["std"] == pytest.approx(frames.std(), rel=1e-9)
    assert np.shape(statistics["observation/vector"]["mean"]) == (3,)
    each = fitted(normalize, [td], over="element", keys="observation/pixels")
    np.testing.assert_allclose(each["observation/pixels"]["std"], frames.std(0), rtol=1e-9)
    assert list(each) == ["observation/pixels"]
    out = normalize(td, statistics=each, keys="observation/pixels")
    truth = (frames - frames.mean(0)) / (frames.std(0) + 1e-3)
    np.testing.assert_allclose(out["observation", "pixels"], truth, rtol=1e-4, atol=1e-4)
    assert torch.equal(out["observation", "vector"], td["observation", "vector"])


def test_normalize_a_live_observation():
    td = episode(30)
    statistics = fitted(normalize, [td])
    live = TensorDict({"observation": td["observation"][:2]}, [2])
    assert torch.equal(
        normalize(live, statistics=statistics)["observation"], normalize(td, statistics=statistics)["observation"][:2]
    )


def test_normalize_refuses():
    td = episode(5)
    with pytest.raises(UsageError, match="no statistics"):
        normalize(td)
    td["observation"][2, 1] = float("nan")
    with pytest.raises(UsageError, match="observation holds NaN"):
        fitted(normalize, [td])
    td["observation"][:] = 3.0
    with pytest.raises(UsageError, match="never change"):
        normalize(td, statistics=fitted(normalize, [td]), eps=0)
    assert torch.equal(normalize(td, statistics=fitted(normalize, [td]))["observation"], torch.zeros(5, 3))


# -- frames --------------------------------------------------------------------------------------------------------------


def frames(shape, count=6, seed=0):
    """Smooth pictures with noise, so that both kinds of mistakes show."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, (count, *shape))
    ramp = np.linspace(0, 255, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    return np.where(rng.random((count, *shape)) < 0.5, noise, ramp).astype("uint8")


def as_td(rows):
    return TensorDict({"pixels": torch.from_numpy(rows), "next": {"pixels": torch.from_numpy(rows)}}, [len(rows)])


def by_pillow(rows, height, width, how):
    return np.stack([np.asarray(Image.fromarray(row).resize((width, height), how)) for row in rows])


# Pillow's box weighs a pixel fully or not at all: it is the mean of what is covered where sizes divide.
@pytest.mark.parametrize(
    ("mode", "size"),
    [
        *[("area", size) for size in [(42, 42), (28, 21), (84, 42), (12, 7), (1, 1)]],
        *[("bilinear", size) for size in [(42, 42), (28, 21), (84, 42), (50, 33), (64, 100), (1, 1), (120, 130)]],
    ],
)
@pytest.mark.parametrize("channels", [(), (3,)])
def test_resize_is_pillows(mode, size, channels):
    rows = frames((84, 84, *channels))
    out = resize(as_td(rows), height=size[0], width=size[1], mode=mode)
    assert out["pixels"].dtype == torch.uint8
    assert out["pixels"].shape == (6, *size, *channels)
    truth = by_pillow(rows, *size, {"area": Image.Resampling.BOX, "bilinear": Image.Resampling.BILINEAR}[mode])
    # Pillow rounds twice (columns, then rows), in fixed point.
    assert np.abs(out["next", "pixels"].numpy().astype(int) - truth).max() <= 1


def test_area_is_the_mean_of_what_is_covered():
    rows = frames((84, 60), count=2)
    for height, width in [(42, 30), (50, 37), (100, 90), (21, 60), (17, 7)]:
        out = resize(as_td(rows), height=height, width=width)["pixels"].numpy()
        # Every pixel repeated as often as the new size asks for, then plain means.
        fine = rows.repeat(height, 1).repeat(width, 2).astype("f8")
        truth = fine.reshape(2, height, 84, width, 60).mean((2, 4))
        assert np.abs(out - truth).max() <= 0.501, (height, width)


@pytest.mark.parametrize("tile", [(2, 2), (3, 3), (4, 2), (7, 12), (84, 84)])
def test_tiles_are_exact(tile):
    rows = frames((84, 84))
    out = resize(as_td(rows), height=84 // tile[0], width=84 // tile[1])["pixels"].numpy()
    sums = rows.astype(int).reshape(6, 84 // tile[0], tile[0], 84 // tile[1], tile[1]).sum((2, 4))
    size = tile[0] * tile[1]
    np.testing.assert_array_equal(out, (2 * sums + size) // (2 * size))


def test_resize_layouts():
    rows = frames((20, 24, 3))
    truth = resize(as_td(rows), height=7, width=9)["pixels"]
    planes = torch.from_numpy(rows).movedim(-1, 1).contiguous()
    assert torch.equal(resize(as_td(planes.numpy()), height=7, width=9)["pixels"].movedim(1, -1), truth)
    stack = np.stack([rows[..., 0], rows[..., 1]], 1)
    assert torch.equal(resize(as_td(stack), height=7, width=9)["pixels"][:, 1], truth[..., 1])
    cameras = np.stack([rows, rows], 1)
    assert torch.equal(resize(as_td(cameras), height=7, width=9)["pixels"][:, 1], truth)
    narrow = frames((20, 3))  # two dimensions are never channels
    assert resize(as_td(narrow), height=10, width=2)["pixels"].shape == (6, 10, 2)
    odd = frames((20, 24, 3))
    assert resize(as_td(odd), height=12, width=2, channels="first")["pixels"].shape == (6, 20, 12, 2)
    real = resize(as_td(rows.astype("f4") / 255), height=7, width=9, keys="pixels")["pixels"]
    assert real.dtype == torch.float32
    assert np.abs(real.numpy() * 255 - truth.numpy()).max() < 0.51


def test_resize_refuses():
    with pytest.raises(UsageError, match="no observation holds frames") as caught:
        resize(episode(3), height=4, width=4)
    assert "observation [3]" in caught.value.hint
    with pytest.raises(UsageError, match="they are no frames"):
        resize(episode(3), height=4, width=4, keys="observation")
    with pytest.raises(UsageError, match=r"dtype torch\.int16"):
        resize(as_td(frames((8, 8)).astype("int16")), height=4, width=4, keys="pixels")
    with pytest.raises(UsageError, match="no room for channels"):
        resize(as_td(frames((8, 8))), height=4, width=4, channels="last")


def test_grayscale_is_pillows():
    rows = frames((30, 20, 3))
    truth = np.stack([np.asarray(Image.fromarray(row).convert("L")) for row in rows])
    np.testing.assert_array_equal(grayscale(as_td(rows))["next", "pixels"], truth)
    planes = np.ascontiguousarray(np.moveaxis(rows, -1, 1))
    np.testing.assert_array_equal(grayscale(as_td(planes))["pixels"], truth)
    kept = grayscale(as_td(planes), keep_channel=True)["pixels"]
    assert kept.shape == (6, 1, 30, 20)
    np.testing.assert_array_equal(kept[:, 0], truth)
    assert grayscale(as_td(rows), keep_channel=True)["pixels"].shape == (6, 30, 20, 1)
    alpha = np.concatenate([rows, rows[..., :1]], -1)
    np.testing.assert_array_equal(grayscale(as_td(alpha))["pixels"], truth)
    np.testing.assert_array_equal(grayscale(as_td(rows[..., :1]))["pixels"], rows[..., 0])
    real = grayscale(as_td(rows.astype("f4")), keys="pixels")["pixels"]
    assert np.abs(real.numpy() - truth).max() <= 0.51


def test_grayscale_refuses():
    for rows in (frames((4, 8, 8)), frames((8, 8))):  # a stack of frames, and one that is grey
        with pytest.raises(UsageError, match="no observation holds colour frames"):
            grayscale(as_td(rows))
        with pytest.raises(UsageError, match="no 3 colour channels"):
            grayscale(as_td(rows), keys="pixels")


# -- whole episodes ------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(length=st.integers(1, 300), gamma=GAMMA)
def test_returns_to_go(length, gamma):
    td = episode(length)
    out = returns_to_go(td, gamma=gamma)
    reward, later, truth = td["next", "reward"].numpy().astype("f8"), 0.0, np.zeros((length, 1))
    for step in reversed(range(length)):
        later = reward[step, 0] + gamma * later
        truth[step] = later
    np.testing.assert_allclose(out["return_to_go"], truth, rtol=1e-6, atol=1e-6)
    assert out["return_to_go"].dtype == torch.float32
    assert ted_problems(out) == []


def test_returns_to_go_of_long_episodes():
    reward = torch.ones(27_000, 1, dtype=torch.float64)
    for gamma in (0.5, 0.99, 0.9999):
        truth = (1 - gamma ** np.arange(27_000, 0, -1.0)) / (1 - gamma)
        np.testing.assert_allclose(discounted(reward, gamma)[:, 0], truth, rtol=1e-9)


def test_returns_to_go_under_another_name():
    td = episode(3)
    assert "rtg" in returns_to_go(td, key="rtg").keys()  # noqa: SIM118
    with pytest.raises(UsageError, match="there is a action already"):
        returns_to_go(td, key="action")
    with pytest.raises(SchemaError):
        returns_to_go(td, key="return to go")
    with pytest.raises(SchemaError, match="no next/reward"):
        returns_to_go(td.exclude(("next", "reward")))


@settings(deadline=None, max_examples=60)
@given(
    length=st.integers(1, 40), n=st.integers(1, 60), gamma=GAMMA, outcome=st.sampled_from(["terminated", "truncated"])
)
def test_n_step(length, n, gamma, outcome):
    td = episode(length, outcome=outcome)
    out, was = arrays(n_step(td, n=n, gamma=gamma)), arrays(td)
    for step in range(length):
        taken = min(n, length - step)
        last = step + taken - 1
        total = sum(gamma**k * float(was["next/reward"][step + k, 0]) for k in range(taken))
        assert out["next/reward"][step, 0] == pytest.approx(total, rel=1e-6, abs=1e-6)
        assert out["steps_to_next_obs"][step] == taken
        assert out["gamma"][step] == np.float32(gamma**taken)
        assert out["next/original_reward"][step] == was["next/reward"][step]
        assert (out["next/observation"][step] == was["next/observation"][last]).all()
        assert (out["observation"][step] == was["observation"][step]).all()
        assert out["next/terminated"][step] == was["next/terminated"][last]
        if n > 1:
            assert out["next/done"][step]
            assert out["next/truncated"][step] != out["next/terminated"][step]
    assert ted_problems(n_step(td, n=n, gamma=gamma)) == []


@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_n_step_is_multi_steps(n):
    td = episode(23)
    ours, theirs = n_step(td, n=n, gamma=0.9), MultiStep(0.9, n)(td)
    for key in [("next", "observation"), ("next", "original_reward"), "steps_to_next_obs", "gamma", "observation"]:
        assert torch.equal(ours[key], theirs[key]), key
    assert torch.allclose(ours["next", "reward"], theirs["next", "reward"], atol=1e-6)


def test_n_step_beside_torchrl():
    post = pytest.importorskip("torchrl.data.postprocs")
    td = episode(23)
    theirs = post.MultiStep(gamma=0.9, n_steps=4)(td.unsqueeze(0).clone())[0]
    ours = n_step(td, n=4, gamma=0.9)
    assert torch.equal(ours["next", "observation"], theirs["next", "observation"])
    assert torch.equal(ours["steps_to_next_obs"], theirs["steps_to_next_obs"].reshape(-1).long())
    assert torch.allclose(ours["next", "reward"], theirs["next", "reward"], atol=1e-5)
    assert torch.allclose(ours["gamma"], theirs["gamma"].reshape(-1))


@settings(deadline=None, max_examples=60)
@given(
    length=st.integers(1, 40),
    every=st.integers(1, 45),
    gamma=GAMMA,
    outcome=st.sampled_from(["terminated", "truncated"]),
)
def test_every_kth_step(length, every, gamma, outcome):
    td = episode(length, outcome=outcome)
    result = subsample(td, every=every, gamma=gamma)
    assert ted_problems(result) == []
    out, was = arrays(result), arrays(td)
    assert len(result) == -(-length // every)
    for row in range(len(result)):
        first, end = row * every, min((row + 1) * every, length)
        total = sum(gamma**k * float(was["next/reward"][first + k, 0]) for k in range(end - first))
        assert out["next/reward"][row, 0] == pytest.approx(total, rel=1e-6, abs=1e-6)
        assert out["action"][row] == was["action"][first]
        assert (out["observation"][row] == was["observation"][first]).all()
        assert (out["next/observation"][row] == was["next/observation"][end - 1]).all()
        assert out["next/terminated"][row] == was["next/terminated"][end - 1]
        assert out["next/truncated"][row] == was["next/truncated"][end - 1]
        assert out["steps_to_next_obs"][row] == end - first
        assert out["gamma"][row] == np.float32(gamma ** (end - first))
    if gamma == 1:
        assert out["next/reward"].sum() == pytest.approx(was["next/reward"].sum(), rel=1e-5, abs=1e-5)


def test_a_fraction_of_the_episodes():
    all_of_them = episodes([3 + number % 5 for number in range(200)])

    def kept(fraction, seed=0, order=None):
        parts = all_of_them if order is None else [all_of_them[at] for at in order]
        statistics = fitted(subsample, parts, fraction=fraction, seed=seed)
        places = [
            at
            for at, td in enumerate(parts)
            if subsample(td, fraction=fraction, seed=seed, statistics=statistics) is not None
        ]
        assert statistics["kept"] == len(places)
        return {at if order is None else order[at] for at in places}

    assert len(kept(0.1)) == 20
    assert kept(0.1) < kept(0.3) < kept(1.0) == set(range(200))
    assert kept(0.1) != kept(0.1, seed=1)
    assert len(kept(1e-6)) == 1
    assert kept(0.3) == kept(0.3, order=np.random.default_rng(0).permutation(200).tolist())
    # Any episode has the same chance: over many seeds each comes about as often.
    times = np.zeros(200)
    for seed in range(50):
        times[list(kept(0.5, seed))] += 1
    assert abs(times.mean() - 25) < 1e-9
    assert times.std() == pytest.approx(np.sqrt(50 * 0.25), rel=0.25)
    with pytest.raises(UsageError, match="no statistics"):
        subsample(all_of_them[0], fraction=0.5)


@settings(deadline=None, max_examples=40)
@given(lengths=LENGTHS, low=st.floats(0, 1), high=st.floats(0, 1))
def test_filter_by_quantile(lengths, low, high):
    low, high = sorted([low, high])
    tds = episodes(lengths)
    returns = np.array([td["next", "reward"].numpy().astype("f8").sum() for td in tds])
    statistics = fitted(filter_episodes, tds, min_quantile=low, max_quantile=high)
    kept = [filter_episodes(td, statistics=statistics, min_quantile=low, max_quantile=high) for td in tds]
    bounds = np.quantile(returns, [low, high])
    for value, td in zip(returns, kept):
        assert (td is not None) == (bounds[0] <= value <= bounds[1])
    assert statistics["episodes"] == len(tds)


def test_filter_by_the_rest():
    short, long = episode(3, outcome="truncated"), episode(9)
    assert filter_episodes(short, min_length=3) is short
    assert filter_episodes(short, min_length=4) is None
    assert filter_episodes(long, max_length=8) is None
    assert filter_episodes(long, outcome="terminated", min_length=9, max_length=9) is long
    assert filter_episodes(short, outcome="terminated") is None
    assert filter_episodes(short, outcome="truncated") is short
    total = float(short["next", "reward"].double().sum())
    assert filter_episodes(short, min_return=total, max_return=total) is short
    assert filter_episodes(short, min_return=total + 1e-6) is None
    with pytest.raises(UsageError, match="no statistics"):
        filter_episodes(short, min_quantile=0.5)
    assert not filter_episodes.ready.fit.needed(min_length=3)
    assert filter_episodes.ready.fit.needed(max_quantile=0.3)


# -- relabelling ---------------------------------------------------------------------------------------------------------


def distance(td):
    return -td["observation"].norm(dim=-1)


def wrong(td):
    return td["observation"]


def test_relabel_rules():
    td, cut = episode(8), episode(8, outcome="truncated", seed=1)
    reward = td["next", "reward"].numpy().astype("f8")[:, 0]
    got = {
        rule: relabel(td, rule=rule)["next", "reward"].numpy()[:, 0]
        for rule in ("success", "steps_to_goal", "delayed", "even")
    }
    np.testing.assert_array_equal(got["success"], [0] * 7 + [1])
    np.testing.assert_array_equal(got["steps_to_goal"], [-1] * 7 + [0])
    np.testing.assert_allclose(got["delayed"], [0] * 7 + [reward.sum()], rtol=1e-6)
    np.testing.assert_allclose(got["even"], [reward.mean()] * 8, rtol=1e-6)
    assert not relabel(cut, rule="success")["next", "reward"].any()
    statistics = fitted(relabel, [td, cut], rule="return_range")
    returns = [td["next", "reward"].double().sum().item(), cut["next", "reward"].double().sum().item()]
    scaled = relabel(td, rule="return_range", statistics=statistics)["next", "reward"].numpy()[:, 0]
    np.testing.assert_allclose(scaled, reward * 1000 / abs(returns[0] - returns[1]), rtol=1e-6)
    with pytest.raises(UsageError, match="nothing to divide by"):
        fitted(relabel, [td, td], rule="return_range")
    with pytest.raises(UsageError, match="no statistics"):
        relabel(td, rule="return_range")


def test_relabel_by_a_function(tmp_path, monkeypatch):
    td = episode(6)
    out = relabel(td, fn=distance, keep=True)
    np.testing.assert_allclose(
        out["next", "reward"][:, 0], -np.linalg.norm(td["observation"].numpy(), axis=1), rtol=1e-6
    )
    assert out["next", "reward"].dtype == torch.float32
    assert torch.equal(out["next", "original_reward"], td["next", "reward"])
    (tmp_path / "mine_for_relabelling.py").write_text("def reward(td):\n    return td['observation'][:, :1] * 2\n")
    monkeypatch.chdir(tmp_path)
    named = relabel(td, fn="mine_for_relabelling.py:reward")
    assert torch.equal(named["next", "reward"], td["observation"][:, :1] * 2)
    with pytest.raises(ResultError, match=r"tensor \[6\] or \[6, 1\] for 6 steps, not \[6, 3\]"):
        relabel(td, fn=wrong)
    with pytest.raises(UsageError):
        relabel.ready.check(fn="no_such_module_at_all:fn")


@pytest.mark.parametrize("outcome", ["terminated", "truncated"])
def test_shaping_leaves_returns_what_they_are_but_for_the_start(outcome):
    td, gamma = episode(12, outcome=outcome), 0.9
    shaped = relabel(td, rule="shaping", fn=distance, gamma=gamma)["next", "reward"].numpy().astype("f8")[:, 0]
    reward = td["next", "reward"].numpy().astype("f8")[:, 0]
    phi = -np.linalg.norm(td["observation"].numpy().astype("f8"), axis=1)
    after = -np.linalg.norm(td["next", "observation"].numpy().astype("f8"), axis=1)
    if outcome == "terminated":
        after[-1] = 0
    np.testing.assert_allclose(shaped, reward + gamma * after - phi, rtol=1e-5, atol=1e-6)
    # Telescoping: discounted sums differ by the potential at both ends.
    powers = gamma ** np.arange(12)
    assert (powers * (shaped - reward)).sum() == pytest.approx(gamma**12 * after[-1] - phi[0], abs=1e-5)


# -- keys ----------------------------------------------------------------------------------------------------------------


def test_select_keys():
    td = episode(4, pixels=(4, 4))
    td["info", "speed"] = torch.zeros(4)
    td["next", "cost"] = torch.zeros(4)
    flags = {"done", "terminated", "truncated", "next/done", "next/terminated", "next/truncated", "next/reward"}
    everything = set(arrays(td))
    pixels = {"observation/pixels", "next/observation/pixels"}
    vector = {"observation/vector", "next/observation/vector"}
    assert set(arrays(select_keys(td, keys="observation/pixels, action"))) == flags | pixels | {"action"}
    assert set(arrays(select_keys(td, keys=[("observation", "vector"), "cost"]))) == flags | vector | {"next/cost"}
    assert set(arrays(select_keys(td, keys="observation"))) == flags | pixels | vector
    assert set(arrays(select_keys(td, drop=["info", "cost"]))) == everything - {"info/speed", "next/cost"}
    with pytest.raises(UsageError, match="no key 'pixels'"):
        select_keys(td, drop="pixels")
