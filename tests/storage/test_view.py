"""Views: selected, concatenated and mixed datasets against the rows of the datasets that they are made of."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rbdata
import torch
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rbdata.errors import RbdataError, UsageError
from tensordict import TensorDict

EPISODES = 12


def made(name: str, seed: int, frames: bool, episodes: int = EPISODES) -> rbdata.Dataset:
    """A dataset of short episodes: terminated, truncated and (the last) cut; frames are stored once per state."""
    rng = np.random.default_rng(seed)

    def generate() -> Any:
        for number in range(episodes):
            n = int(rng.integers(1, 9))
            states = (
                rng.integers(0, 255, (n + 1, 36, 36), np.uint8)
                if frames
                else rng.normal(size=(n + 1, 3)).astype(np.float32)
            )
            last = np.arange(n) == n - 1
            yield {
                "observation": states,
                "action": rng.integers(0, 9, n),
                "reward": rng.normal(size=n).astype(np.float32),
                "terminated": last & (number % 2 == 0),
                "truncated": last & (number % 2 == 1),
            }

    rbdata.from_episodes(generate(), name)
    return rbdata.open_dataset(name)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("views")


@pytest.fixture(autouse=True)
def its_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RBDATA_ROOT", str(root))


@pytest.fixture(scope="module", params=["vectors", "frames"])
def pair(request: pytest.FixtureRequest, root: Path) -> tuple[rbdata.Dataset, rbdata.Dataset]:
    kind = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RBDATA_ROOT", str(root))
        return made(f"my/{kind}-a", 1, kind == "frames"), made(f"my/{kind}-b", 2, kind == "frames")


def assert_equal(found: TensorDict, wanted: TensorDict) -> None:
    keys = set(wanted.keys(True, True))
    assert set(found.keys(True, True)) == keys
    for key in keys:
        assert found[key].dtype == wanted[key].dtype
        assert torch.equal(found[key], wanted[key]), key


def episodes_of(dataset: rbdata.Dataset, numbers: Any) -> TensorDict:
    return torch.cat([dataset.episode(int(number)) for number in numbers])


NUMBERS = st.lists(st.integers(0, EPISODES - 1), min_size=1, max_size=10)


@settings(deadline=None, max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=NUMBERS, second=NUMBERS, seed=st.integers(0, 99))
def test_episodes_of_several_datasets(pair, first, second, seed):
    """Any episodes in any order, joined, selected from again: by block, row and window as their own datasets give them."""
    a, b = pair
    both = rbdata.concat([a.select(episodes=first), b, b.select(episodes=second)])
    wanted = torch.cat([episodes_of(a, first), b.to_tensordict(), episodes_of(b, second)])
    assert_equal(both.to_tensordict(), wanted)
    assert both.episodes.returns == pytest.approx(
        [*a.episodes.returns[first], *b.episodes.returns, *b.episodes.returns[second]]
    )
    index = torch.from_numpy(np.random.default_rng(seed).integers(0, len(both), 64))
    assert_equal(both[index], wanted[index])
    numbers = np.random.default_rng(seed).permutation(len(both.episodes))[:5]
    again = both.select(episodes=numbers)
    assert_equal(again.to_tensordict(), episodes_of(both, numbers))
    steps = torch.arange(len(again))
    windows = again.read(steps, before=2, after=1, keys=["observation", "action"])
    episode = again.episode_of(steps)
    at = steps[:, None] + torch.arange(-2, 2)
    inside = (at >= again.episode_starts[episode, None]) & (at < again.episode_starts[episode + 1, None])
    assert torch.equal(windows["mask"], inside)
    actions = again.to_tensordict()["action"][at.clamp(0, len(again) - 1)]
    assert torch.equal(windows["action"], actions.where(inside, torch.tensor(0)))


def test_what_a_program_gets_is_not_what_is_read_by(pair):
    """Numbers of episodes can be changed in place (``starts += 1``) only where they are copies."""
    for dataset in (pair[0], pair[0].select(episodes=[3, 1, 0]), rbdata.concat(pair)):
        expected = dataset[:]
        starts = dataset.episode_starts
        starts += 1
        for column in vars(dataset.episodes).values():
            with pytest.raises(ValueError, match="read-only"):
                column[:] = 0
        for one in (dataset, pickle.loads(pickle.dumps(dataset))):
            episodes = [one.episode(number) for number in range(len(one.episodes))]
            assert (torch.cat(episodes) == expected).all()
            assert rbdata.load(one, slice_len=1, batch_size=4).sample()["index"].max() < len(expected)


def test_windows_that_all_cross_an_edge(pair):
    a, b = pair
    shortest = [int(one.episodes.lengths.argmin()) for one in pair]
    both = rbdata.concat([a.select(episodes=shortest[:1]), b.select(episodes=shortest[1:])])
    longest = int(both.episodes.lengths.max())
    windows = both.read(torch.arange(len(both)), before=0, after=longest, keys=["action"])
    assert torch.equal(
        windows["mask"].sum(1), torch.cat([torch.arange(n, 0, -1) for n in both.episodes.lengths.tolist()])
    )
    actions = both.to_tensordict()["action"]
    for row, mask in enumerate(windows["mask"]):
        assert torch.equal(windows["action"][row][mask], actions[row : row + int(mask.sum())])


@settings(deadline=None, max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(low=st.integers(0, 20), count=st.integers(1, 40), by=st.integers(1, 3))
def test_steps(pair, low, count, by):
    """Steps that follow each other are an episode; one whose episode goes on is truncated there and counts as cut."""
    a, _ = pair
    steps = np.arange(low, min(low + count, len(a)), by)
    view = a.select(steps=steps)
    wanted = a[torch.from_numpy(steps)]
    found = view.to_tensordict()
    goes_on = ~a["next/done"][steps].view(-1)
    ends = torch.zeros(len(steps), dtype=torch.bool)
    ends[-1] = True
    ends[:-1] = torch.from_numpy(np.diff(steps) != 1) | ~goes_on[:-1]
    for flag in ("done", "truncated"):
        assert torch.equal(found["next", flag].view(-1), wanted["next", flag].view(-1) | (ends & goes_on))
    for key in ("action", "observation", ("next", "observation"), ("next", "reward"), ("next", "terminated")):
        assert torch.equal(found[key], wanted[key])
    assert len(view.episodes) == int(ends.sum())
    assert [one.outcome == "cut" for one in view.episodes] == goes_on[ends].tolist()
    edges = np.flatnonzero(ends.numpy()) + 1
    begins = steps[np.append(0, edges[:-1])]
    assert view.episodes.midway.tolist() == (~np.isin(begins, a.episode_starts)).tolist()
    sums = [float(part.sum()) for part in np.split(a["next/reward"].numpy()[steps].astype(float), edges[:-1])]
    assert view.episodes.returns == pytest.approx(sums, abs=1e-5)


@pytest.mark.parametrize("nothing", [torch.tensor([], dtype=torch.long), np.zeros(0, int), "mask"])
def test_no_rows(pair, nothing):
    both = rbdata.concat(pair)
    rows = both[np.zeros(len(both), bool) if isinstance(nothing, str) else nothing]
    assert rows.batch_size == (0,) and rows["observation"].shape[1:] == both["observation"].shape[1:]


def test_windows_of_a_batch_without_a_final_state(pair):
    buffer = rbdata.load(list(pair), batch_size=1, windows={"observation": (0, 0)}, seed=0)
    both = rbdata.concat(pair)
    for _ in range(20):
        batch = buffer.sample()
        assert torch.equal(batch["observation"][0], both[batch["index"]]["observation"])


@pytest.mark.parametrize(
    "condition",
    [{"top": 1.5}, {"top": 2.0}, {"min_return": float("nan")}, {"min_return": "5"}, {"max_length": [3]}, {"top": "1"}],
)
def test_conditions_that_are_no_numbers(pair, condition):
    with pytest.raises(UsageError):
        pair[0].episodes.where(**condition)


def test_where(pair):
    a, _ = pair
    table = a.episodes
    assert table.where().all()
    assert (table.where(min_return=0.0, max_length=5) == ((table.returns >= 0) & (table.lengths <= 5))).all()
    assert (table.where(outcome="terminated") == (table.outcomes == 1)).all()
    assert (table.where(outcome=["terminated", "truncated"]) == (table.outcomes < 3)).all()
    best = set(np.argsort(-table.returns, kind="stable")[:3].tolist())
    assert set(np.flatnonzero(table.where(top=3)).tolist()) == best
    assert table.where(top=0.25).sum() == 3
    assert table.where(top=0.01).sum() == 1
    assert table.where(top=1000).all()
    assert table.where(top=1.0).all()  # the share of all, as at the end of a sweep 0.1, 0.5, 1.0
    assert table.where(top=1).sum() == table.where(top=np.int64(1)).sum() == 1
    assert table.where(top=np.float32(0.5), min_return=np.float32(-1e9)).sum() == table.where(top=0.5).sum()
    odd = np.flatnonzero(table.outcomes == 2)
    assert set(np.flatnonzero(table.where(outcome="truncated", top=2))) == set(odd[np.argsort(-table.returns[odd])[:2]])


@pytest.mark.parametrize(
    "wrong", [{"top": 0}, {"top": -1}, {"top": 2.5}, {"top": True}, {"top": "x"}, {"outcome": "won"}, {"outcome": 1}]
)
def test_wrong_conditions(pair, wrong):
    with pytest.raises(UsageError):
        pair[0].episodes.where(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"episodes": [0], "steps": [0]},
        {"episodes": [EPISODES]},
        {"episodes": [-EPISODES - 1]},
        {"episodes": [0.5]},
        {"episodes": [[0]]},
        {"episodes": "all"},
        {"episodes": np.ones(3, bool)},
        {"steps": [10**9]},
        {"episodes": torch.tensor([number % 2 for number in range(EPISODES)], dtype=torch.uint8)},
        {"episodes": [0] * EPISODES},
    ],
    ids=str,
)
def test_wrong_selections(pair, wrong):
    with pytest.raises(UsageError):
        pair[0].select(**wrong)


def test_a_flag_is_no_mask_until_it_is_flat(pair):
    with pytest.raises(UsageError, match="one-dimensional") as caught:
        pair[0].select(steps=~pair[0]["next", "done"])
    assert ".reshape(-1)" in str(caught.value.hint)


def test_selections_are_given_in_any_way(pair):
    a, _ = pair
    mask = np.zeros(EPISODES, bool)
    mask[[2, 5]] = True
    ways = [
        [2, 5],
        (2, 5),
        np.array([2, 5], np.uint8),
        torch.tensor([2, 5]),
        mask,
        torch.from_numpy(mask),
        slice(2, 6, 3),
    ]
    for way in [*ways, range(2, 6, 3), [2 - EPISODES, 5]]:
        assert_equal(a.select(episodes=way).to_tensordict(), episodes_of(a, [2, 5]))
    assert len(a.select(episodes=3).episodes) == 1
    nothing = a.select(episodes=[])
    assert len(nothing) == 0
    assert not len(nothing.episodes)
    with pytest.raises(RbdataError):
        rbdata.load(nothing, batch_size=2).sample()


def test_unlike_datasets(pair, root):
    a, b = pair
    rbdata.preprocess(b, "rbdata:returns_to_go", dest="my/more", force=True)
    rbdata.preprocess(b, lambda td: td.set("action", td["action"].float()), dest="my/other", force=True)
    more, other = rbdata.open_dataset("my/more"), rbdata.open_dataset("my/other")
    with pytest.raises(UsageError, match=r"(?s)action \(int64.*float32.*return_to_go \(not in"):
        rbdata.concat([a, more, other])
    common = rbdata.concat([a, "my/more", other], keys="common")
    assert set(common.schema.names) == set(a.schema.names) - {"action"}
    assert torch.equal(common["next/reward"], torch.cat([a["next/reward"], b["next/reward"], b["next/reward"]]))
    halves = rbdata.preprocess(b, "rbdata:to_float", dest="my/halves", args={"dtype": "float16"}, force=True)
    with pytest.raises(UsageError, match=r"no observation in common: they differ in observation \("):
        rbdata.concat([a, halves], keys="common")
    for wrong in ([], "my/more", [a, 3], 7):
        with pytest.raises(UsageError):
            rbdata.concat(wrong)
    for call in (rbdata.verify, rbdata.open_dataset):
        with pytest.raises(UsageError, match="not by a Dataset"):
            call(a)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_view_is_pickled_and_reads_in_loader_workers(pair):
    a, b = pair
    view = rbdata.concat([a, b]).select(steps=slice(3, 70))
    again = pickle.loads(pickle.dumps(view))
    assert again.manifest.content == view.manifest.content
    assert_equal(again.to_tensordict(), view.to_tensordict())
    buffer = rbdata.load(view, batch_size=16, seed=0, replacement=False)
    seen = torch.cat(
        [batch["index"] for batch in buffer.as_iterable().loader(num_workers=2, multiprocessing_context="fork")]
    )
    assert sorted(seen.tolist()) == list(range(len(view)))


@pytest.mark.parametrize(
    "options", [{"slice_len": 3}, {"n_step": 3}, {"frame_stack": 3}, {"alpha": 0.6}, {"replacement": False}]
)
def test_batches_are_those_of_the_same_data_in_a_folder(pair, root, options):
    a, b = pair
    view = rbdata.concat([a, b]).select(episodes=[20, 3, 4, 5, 13, 0])
    view.save(f"my/saved-{a.id.removeprefix('my/')}")  # once: it is complete then
    one, other = (
        rbdata.load(source, batch_size=12, seed=5, **options)
        for source in (view, f"my/saved-{a.id.removeprefix('my/')}")
    )
    for _ in range(5):
        assert_equal(one.sample(), other.sample())


# -- saving ----------------------------------------------------------------------------------------------------------------


def test_saving(pair, root):
    a, b = pair
    view = rbdata.concat([a, b]).select(steps=slice(2, len(a) + 9)).select(episodes=slice(None, None, 2))
    path = view.save("my/view", force=True)
    saved = rbdata.open_dataset("my/view")
    assert path == saved.path
    assert rbdata.verify("my/view").ok
    assert_equal(saved.to_tensordict(), view.to_tensordict())
    for column in ("starts", "lengths", "outcomes", "midway"):
        assert (getattr(saved.episodes, column) == getattr(view.episodes, column)).all()
    made_from = saved.manifest.lineage["input"]
    assert [parent["id"] for parent in made_from["parents"]] == [a.id, b.id]
    assert [parent["content"] for parent in made_from["parents"]] == [a.manifest.content, b.manifest.content]
    assert view.save("my/view") == path  # complete: nothing is done
    with pytest.raises(RbdataError, match="another request"):
        a.save("my/view")


def test_compressed_rows_are_copied(pair, root):
    a, _ = pair
    if not a.schema.states:
        pytest.skip("no frames")
    a.select(episodes=[4, 2, 3]).save("my/copied", force=True)
    copied = rbdata.open_dataset("my/copied")
    for place, number in enumerate((4, 2, 3)):
        first, count = int(a.episodes.state_starts[number]), int(a.episodes.lengths[number]) + 1
        here = int(copied.episodes.state_starts[place])
        sources: Any = (a.rows["observation"], first), (copied.rows["observation"], here)
        wanted, found = (rows.stored(begin, begin + count) for rows, begin in sources)
        assert all((one == other).all() for one, other in zip(wanted, found))


def test_a_preprocess_run_reads_views(pair, root):
    a, b = pair
    rbdata.preprocess([a, b.id], "rbdata:scale_rewards", args={"scale": 2.0}, dest="my/two", force=True, procs=2)
    found = rbdata.open_dataset("my/two")
    assert torch.equal(found["next/reward"], 2 * torch.cat([a["next/reward"], b["next/reward"]]))
    best = a.select(episodes=a.episodes.where(top=0.5))
    rbdata.preprocess(best, ["rbdata:returns_to_go"], dest="my/best", force=True)
    assert torch.equal(rbdata.open_dataset("my/best")["action"], best["action"])
    assert rbdata.export(best, root / "best", "npz", force=True).exists()
    assert rbdata.inspect(best).episodes == len(best.episodes)


# -- mixtures --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", ["random", "exact"])
def test_shares(pair, shares):
    a, b = pair
    buffer = rbdata.load([a, b.id], weights=[9, 1], batch_size=50, seed=3, shares=shares)
    batches = [buffer.sample() for _ in range(400)]
    both = rbdata.concat([a, b])
    counts = np.array([int((batch["dataset"] == 1).sum()) for batch in batches])
    for batch in batches[:20]:
        assert torch.equal(batch["dataset"], (batch["index"] >= len(a)).long())
        assert torch.equal(batch["observation"], both[batch["index"]]["observation"])
    if shares == "exact":
        assert set(counts) == {5}
    else:  # binomial(50, 0.1)
        assert abs(counts.mean() - 5) < 5 * np.sqrt(4.5 / 400)
        assert 3.0 < counts.var() < 6.5
    rows = torch.cat([batch["index"] for batch in batches])
    for low, size in ((0, len(a)), (len(a), len(b))):  # every row of one dataset is as likely
        found = torch.bincount(rows[(rows >= low) & (rows < low + size)] - low, minlength=size).double()
        expected = found.sum() / size
        assert float(((found - expected) ** 2 / expected).sum()) < size + 6 * np.sqrt(2 * size)


def test_shares_that_are_no_whole_numbers_are_right_on_average(pair):
    buffer = rbdata.load(list(pair), weights=[0.77, 0.23], batch_size=10, seed=0, shares="exact")
    counts = [int(buffer.sample()["dataset"].sum()) for _ in range(2000)]
    assert set(counts) == {2, 3}
    assert np.mean(counts) == pytest.approx(2.3, abs=0.06)


def test_a_dataset_with_weight_zero_is_not_drawn(pair):
    for shares in ("random", "exact"):
        for weights in ([1.0, 0.0], [0.0, 1.0]):
            buffer = rbdata.load(list(pair), weights=weights, batch_size=64, seed=0, shares=shares)
            assert {int(one) for _ in range(20) for one in buffer.sample()["dataset"]} == {weights.index(1.0)}


def test_mixtures_repeat_by_their_seed_and_go_on_from_a_checkpoint(pair, tmp_path):
    one, other = (rbdata.load(list(pair), weights=[1, 3], batch_size=8, seed=4, n_step=2) for _ in range(2))
    for _ in range(3):
        assert_equal(one.sample(), other.sample())
    one.dumps(tmp_path / "checkpoint")
    wanted = one.sample()
    fresh = rbdata.load(list(pair), weights=[1, 3], batch_size=8, n_step=2)
    fresh.loads(tmp_path / "checkpoint")
    assert_equal(fresh.sample(), wanted)
    with pytest.raises(UsageError, match="belongs to"):
        rbdata.load(list(reversed(pair)), weights=[1, 3], batch_size=8, n_step=2).loads(tmp_path / "checkpoint")


@pytest.mark.parametrize(
    "wrong",
    [
        {"weights": [1]},
        {"weights": [1, -1]},
        {"weights": [0, 0]},
        {"weights": [1, float("nan")]},
        {"weights": ["a", 1]},
        {"weights": 3},
        {"weights": [1, 1], "shares": "half"},
        {"shares": "exact"},
        {"weights": [1, 1], "slice_len": 2},
        {"weights": [1, 1], "replacement": False},
        {"weights": [1, 1], "alpha": 0.5},
        {"download": True},
    ],
    ids=str,
)
def test_wrong_mixtures(pair, wrong):
    with pytest.raises(UsageError):
        rbdata.load(list(pair), batch_size=4, **wrong)


def test_weights_of_one_dataset(pair):
    with pytest.raises(UsageError, match="several datasets"):
        rbdata.load(pair[0], batch_size=4, weights=[1.0])


def test_views_in_inference_mode(pair):
    """Inference mode does not count changes in place, by which a view knows rows that it has looked up."""
    both = rbdata.concat(list(pair))
    rows = torch.tensor([0, len(both) - 1, 3])
    wanted = [both[rows], both[rows + 0 * rows]]
    with torch.inference_mode():
        rows = rows.clone()
        assert_equal(both[rows], wanted[0])
        rows[0] = 2
        assert_equal(both[rows], both[torch.tensor([2, len(both) - 1, 3])])
        mixed = rbdata.load(list(pair), weights=[0.5, 0.5], batch_size=8, seed=0)
        found = [mixed.sample() for _ in range(3)]
    mixed = rbdata.load(list(pair), weights=[0.5, 0.5], batch_size=8, seed=0)
    for batch in found:
        assert_equal(batch, mixed.sample())
