"""Windows over dataset folders: stacks, n-step returns, slices and their combinations, against step-by-step references."""

from __future__ import annotations

import numpy as np
import pytest
import rbdata
import torch
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rbdata.errors import SamplingError, UsageError
from rbdata.storage.replay import LazyTensorStorage, TensorDictReplayBuffer
from replay_tools import Truth, equal, rollout, same
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict

LENGTHS = [3, 1, 7, 5, 2, 9]


LAYOUTS = ("flat", "raw", "zstd")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folders of one content in every layout, small rows and large ones, with the truth."""
    root = tmp_path_factory.mktemp("windows")
    made = {}
    for size, shape in (("small", (3,)), ("large", (20, 20, 3))):
        episodes = make_episodes(LENGTHS, shape=shape, dtype="uint8")
        for layout in (*LAYOUTS, "ted"):
            folder = write_dataset(root, episodes, layout, id=f"my/{size}-{layout}")
            made[size, layout] = (folder, Truth(episodes))
    return made


CASES = [
    ("small", "flat"),
    ("small", "raw"),
    ("large", "raw"),
    ("large", "zstd"),
    ("large", "ted"),
]


def check(batch, truth: Truth, *, k: int | None, n: int | None, gamma: float, ends=None) -> None:
    """Every key of every step of a batch."""
    index = batch["index"].tolist()
    last = [truth.last(step, n) if n else step for step in index]
    for name in ("action", "done", "terminated", "truncated"):
        assert same(batch[name], truth.columns[name][index]), name
    if k:
        assert same(batch["observation"], np.stack([truth.stack("observation", step, k) for step in index]))
        assert same(batch["next", "observation"], np.stack([truth.stack("next/observation", at, k) for at in last]))
    else:
        assert same(batch["observation"], truth.columns["observation"][index])
        assert same(batch["next", "observation"], truth.columns["next/observation"][last])
    if n:
        wanted = [truth.n_step_reward(step, n, gamma) for step in index]
        assert torch.allclose(batch["next", "reward"][:, 0], torch.tensor(wanted, dtype=torch.float32), atol=1e-5)
        assert same(batch["next", "original_reward"], truth.columns["next/reward"][index])
        taken = torch.tensor(last) - torch.tensor(index) + 1
        assert same(batch["steps_to_next_obs"], taken)
        assert torch.allclose(batch["gamma"], gamma ** taken.float())
    else:
        assert same(batch["next", "reward"], truth.columns["next/reward"][index])
    flags = {name: truth.columns["next/" + name][last].copy() for name in ("done", "terminated", "truncated")}
    if ends is not None:
        flags["done"][ends] = flags["truncated"][ends] = True
    for name, flag in flags.items():
        assert same(batch["next", name], flag), name


@pytest.mark.parametrize("size,layout", CASES)
@pytest.mark.parametrize("k, n", [(None, None), (4, None), (None, 3), (4, 3), (1, 1)])
@pytest.mark.parametrize("slices", [None, True, False], ids=["steps", "strict", "short"])
def test_every_combination(made, size, layout, k, n, slices):
    folder, truth = made[size, layout]
    options = {} if slices is None else {"slice_len": 4, "strict_length": slices}
    if n:
        options |= {"n_step": n, "gamma": 0.9}
    buffer = rbdata.load(folder, batch_size=12, frame_stack=k, seed=3, **options)
    for _ in range(2):
        batch = buffer.sample()
        ends = None
        if slices is not None:
            index = batch["index"]
            breaks = (index[1:] != index[:-1] + 1) | (torch.tensor(truth.starts)[None] == index[1:, None]).any(1)
            pieces = torch.tensor_split(index, (breaks.nonzero().squeeze(1) + 1).tolist())
            # Two slices that happen to follow each other look like one: cut them where they must be cut.
            if slices:
                assert len(index) == 12
                ends = [3, 7, 11]
            else:
                ends = (batch["next", "truncated"] & ~torch.as_tensor(truth.columns["next/truncated"][index])).squeeze(
                    1
                )
                ends = sorted({*ends.nonzero().squeeze(1).tolist(), len(index) - 1})
                assert all(len(piece) <= 12 for piece in pieces)
                flagged = batch["next", "truncated"].squeeze(1).nonzero().squeeze(1).tolist()
                ends = flagged
        check(batch, truth, k=k, n=n, gamma=0.9, ends=ends)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    k=st.one_of(st.none(), st.integers(1, 6)),
    n=st.one_of(st.none(), st.integers(1, 7)),
    layout=st.sampled_from(["flat", "raw", "zstd"]),
    seed=st.integers(0, 3),
)
def test_any_episode_lengths(tmp_path_factory, lengths, k, n, layout, seed):
    episodes = make_episodes(lengths, shape=(2,), dtype="float32", seed=seed)
    folder = write_dataset(tmp_path_factory.mktemp("any"), episodes, layout)
    truth = Truth(episodes)
    options = {"n_step": n, "gamma": 0.8} if n else {}
    everything = rbdata.load(folder, batch_size=sum(lengths), frame_stack=k, replacement=False, seed=seed, **options)
    batch = everything.sample()
    assert sorted(batch["index"].tolist()) == list(range(sum(lengths)))
    check(batch, truth, k=k, n=n, gamma=0.8)


def test_slices_stay_in_their_episode_and_all_starts_come(made):
    folder, truth = made["small", "flat"]
    buffer = rbdata.load(folder, batch_size=300, slice_len=3, seed=0)
    starts = set()
    for _ in range(10):
        for slice_ in buffer.sample()["index"].view(-1, 3).tolist():
            assert slice_ == list(range(slice_[0], slice_[0] + 3))
            assert truth.bounds(slice_[0]) == truth.bounds(slice_[-1])
            starts.add(slice_[0])
    assert starts == {s for s in range(sum(LENGTHS)) if s + 3 <= truth.bounds(s)[1]}


def test_padded_slices(made):
    folder, truth = made["small", "raw"]
    buffer = rbdata.load(folder, batch_size=40, slice_len=8, strict_length=False, pad_output=True, seed=1)
    batch = buffer.sample()
    mask = batch["collector", "mask"].view(5, 8)
    assert batch.batch_size == (40,)
    for slice_, real in zip(batch["index"].view(5, 8).tolist(), mask.tolist()):
        count = sum(real)
        assert real == [True] * count + [False] * (8 - count)
        assert slice_[:count] == list(range(slice_[0], slice_[0] + count))
        assert set(slice_[count:]) <= {slice_[count - 1]}
        assert truth.bounds(slice_[0]) == truth.bounds(slice_[-1])
    ends = batch["next", "truncated"].view(5, 8)
    assert all(bool(row[int(real.sum()) - 1]) for row, real in zip(ends, mask))


@pytest.mark.parametrize("span,shortest", [(True, 1), ((2, 0), 3), ((0, 2), 3), ((1, 1), 4)])
def test_spans_leave_the_episode_no_further_than_said(made, span, shortest):
    folder, truth = made["small", "flat"]
    buffer = rbdata.load(folder, batch_size=50, slice_len=5, span=span, seed=2)
    lengths = set()
    for _ in range(10):
        batch, info = buffer.sample(return_info=True)
        ends = info["next", "truncated"].squeeze(1)
        pieces = torch.tensor_split(batch["index"], (ends.nonzero().squeeze(1) + 1).tolist())[:-1]
        for piece in pieces:
            assert truth.bounds(int(piece[0])) == truth.bounds(int(piece[-1]))
            lengths.add(len(piece))
    assert min(lengths) == shortest
    assert max(lengths) == 5


@pytest.mark.parametrize(
    "options",
    [
        {"n_step": 0},
        {"n_step": 2, "gamma": 0.0},
        {"n_step": 2, "gamma": 1.5},
        {"frame_stack": 0},
        {"frame_stack": 2, "stack_keys": ["nothing"]},
        {"slice_len": 3, "num_slices": 2},
        {"slice_len": 0},
        {"slice_len": 3, "span": 3},
        {"slice_len": 3, "pad_output": True},
        {"slice_len": 3, "uniform_over": "days"},
        {"slice_len": 3, "uniform_over": "transitions", "replacement": False},
        {"strict_length": False},
        {"drop_last": True},
        {"beta": 0.5},
        {"alpha": 0.5, "replacement": False},
        {"rank": 2, "world_size": 2},
        {"replacement": False, "rank": 0, "world_size": 2},
        {"seed": 1, "generator": torch.Generator()},
        {"prefetch": -1},
    ],
    ids=lambda options: "-".join(options),
)
def test_options_that_make_no_sense(made, options):
    folder, _ = made["small", "flat"]
    with pytest.raises(UsageError):
        rbdata.load(folder, batch_size=6, **options).sample()


@pytest.mark.parametrize(
    "options,batch_size,words",
    [
        ({"slice_len": 5}, 12, "divided"),
        ({"num_slices": 5}, 12, "divided"),
        ({"slice_len": 12}, 12, "no episode has 12 steps; the longest has 9"),
        ({"replacement": False, "drop_last": True, "batch_size": 28}, 28, "28 cannot be drawn from 27"),
        ({}, 0, "at least 1"),
        ({}, True, "whole number"),
        ({}, 2.5, "whole number"),
    ],
)
def test_batches_that_cannot_be_drawn(made, options, batch_size, words):
    folder, _ = made["small", "flat"]
    with pytest.raises(SamplingError, match=words):
        rbdata.load(folder, seed=0, **options).sample(batch_size)


def test_no_batch_size(made):
    folder, _ = made["small", "flat"]
    buffer = rbdata.load(folder)
    with pytest.raises(UsageError, match="no batch size"):
        buffer.sample()
    with pytest.raises(UsageError, match="iteration needs"):
        next(iter(buffer))
    with pytest.raises(UsageError, match="prefetching needs"):
        rbdata.load(folder, prefetch=2)
    with pytest.raises(UsageError, match="drop_last needs"):
        rbdata.load(folder, replacement=False, drop_last=True)


def tensors(batch):
    return {key: value for key, value in batch.items(True, True) if isinstance(value, torch.Tensor)}


def bits(value):
    return value.contiguous().view(torch.uint8).clone()


@pytest.mark.parametrize(
    "options",
    [
        {"prefetch": 2},
        {"frame_stack": 3},
        {"n_step": 3, "frame_stack": 2, "prefetch": 2},
        {"slice_len": 8, "frame_stack": 3},
        {"slice_len": 4, "alpha": 0.6},
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", ["raw", "zstd", "memory"])
def test_no_leaf_shares_memory(tmp_path, layout, options):
    """A leaf that is changed in place changes no other leaf, no other batch, and not itself elsewhere."""
    if layout == "memory":
        if "slice_len" in options:
            return
        prefetch = options.pop("prefetch", 0) if (options := dict(options)) else 0
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(40), batch_size=8, seed=1, prefetch=prefetch, around=rbdata.Around(**options)
        )
        buffer.extend(rollout([10, 12, 15]))
    else:
        folder = write_dataset(tmp_path, make_episodes([10, 30, 7], shape=(24, 24), dtype="uint8"), layout)
        buffer = rbdata.load(folder, batch_size=8, seed=1, **options)
    with buffer:
        first, (batch, info), last = buffer.sample(), buffer.sample(return_info=True), buffer.sample()
        flags = {key: value for key, value in info.items() if isinstance(value, torch.Tensor)}
        groups = (tensors(first), tensors(batch), tensors(last), flags)
        every = [(place, key, value) for place, group in enumerate(groups) for key, value in group.items()]
        for key, leaf in tensors(batch).items():
            before = [bits(value) for _, _, value in every]
            new = torch.randint(0, 2, leaf.shape).to(leaf.dtype)
            leaf.copy_(new)
            assert torch.equal(leaf, new), key
            changed = [
                (place, other)
                for (place, other, value), old in zip(every, before)
                if (place, other) != (1, key) and not torch.equal(bits(value), old)
            ]
            assert not changed, key


@pytest.mark.parametrize(
    "change",
    [
        lambda leaf: leaf.numpy().fill(7),
        lambda leaf: leaf[2].zero_().add_(7),
        lambda leaf: leaf.data.fill_(7),
        lambda leaf: leaf.transpose(0, 1).fill_(7),
        lambda leaf: np.from_dlpack(leaf).fill(7),
        lambda leaf: leaf.share_memory_().fill_(7),
    ],
)
@pytest.mark.parametrize("layout", ["raw", "zstd"])
def test_stacks_do_not_share_memory_in_any_way(tmp_path, layout, change):
    """A stack and the one after it are copied when one is changed, by whatever way."""
    folder = write_dataset(tmp_path, make_episodes([10, 30, 7], shape=(24, 24), dtype="uint8"), layout)
    buffer = rbdata.load(folder, batch_size=8, seed=1, frame_stack=3)
    for changed, other in ((("observation",), ("next", "observation")), (("next", "observation"), ("observation",))):
        batch = buffer.sample()
        before, place = batch[other].clone(), batch[changed]
        change(place)
        assert torch.equal(batch[other], before)
        assert bool((place == 7).any()) and torch.equal(batch[changed], place)


WINDOWS = [{}, {"n_step": 3, "gamma": 0.9}, {"frame_stack": 3}, {"frame_stack": 2, "n_step": 2}]


@pytest.mark.parametrize("options", WINDOWS)
@pytest.mark.parametrize("case", CASES)
def test_batches_at_indices_are_those_that_are_sampled(made, case, options):
    folder, _ = made[case]
    plain, buffer = (rbdata.load(folder, batch_size=12, seed=3, transform=lambda td: td, **options) for _ in range(2))
    for _ in range(2):
        batch = buffer.sample()
        index = batch["index"]
        assert equal(buffer.sample_at(index), batch)
        assert equal(buffer.sample_at(index.tolist()), batch)
        assert equal(plain.sample(), batch)  # nothing was drawn
    one = buffer.sample_at(5)
    assert len(one) == 1
    for wrong in (len(buffer), -1, [0, 10**9]):
        for kind in (SamplingError, IndexError):
            with pytest.raises(kind, match=f"there are {len(buffer)} records"):
                buffer.sample_at(wrong)
    with pytest.raises(IndexError):
        buffer.sample_at(torch.ones(3, dtype=torch.bool))


def test_batches_at_indices_of_storages():
    for storage in (rbdata.LazyTensorStorage(12), rbdata.LazyMemmapStorage(12), rbdata.LazyTensorStorage(24, ndim=2)):
        buffer = rbdata.TensorDictReplayBuffer(
            storage=storage, batch_size=6, seed=0, around=rbdata.Around(n_step=2, frame_stack=2)
        )
        data = rollout([5, 4, 6])  # more than there is room for: the ring has wrapped
        buffer.extend(torch.stack([data, data]) if storage.ndim == 2 else data)
        for _ in range(4):
            batch = buffer.sample()
            assert equal(buffer.sample_at(batch["index"]), batch)


def test_numbers_beyond_the_second_dimension_are_not_those_of_other_records():
    sampler = rbdata.PrioritizedSampler(24, 1.0, 1.0)
    buffer = TensorDictReplayBuffer(storage=rbdata.LazyTensorStorage(24, ndim=2), sampler=sampler, batch_size=6)
    buffer.extend(torch.stack([rollout([5]), rollout([5])]))
    for wrong in ([[0, 2]], ([0], [2]), [[5, 0]], [[1, -1]]):
        with pytest.raises(SamplingError):
            buffer.sample_at(wrong)
    for change in (buffer.mark_update, lambda index: buffer.update_priority(index, torch.ones(1))):
        with pytest.raises(IndexError):
            change(torch.tensor([[0, 2]]))


def test_n_step_returns_of_whole_numbers():
    """Rewards that are whole numbers have returns with fractions."""
    steps = torch.arange(8.0)[:, None]
    after = {"observation": steps + 1, "reward": torch.ones(8, 1, dtype=torch.int64), "done": steps == 7}
    data = TensorDict({"observation": steps, "next": after}, [8])
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(8), batch_size=4, around=rbdata.Around(n_step=2, gamma=0.5)
    )
    buffer.extend(data)
    batch = buffer.sample_at([0, 7])
    assert batch["gamma"].tolist() == [0.25, 0.5] and batch["steps_to_next_obs"].tolist() == [2, 1]
    assert batch["next", "reward"].tolist() == [[1.5], [1.0]]
    assert rbdata.MultiStep(gamma=0.5, n_steps=2)(data)["next", "reward"].flatten().tolist() == [1.5] * 7 + [1.0]


def test_only_leaves_with_a_successor_are_stacked():
    steps = torch.arange(8.0)[:, None]
    data = {"observation": steps, "action": steps, "next": {"observation": steps + 1, "done": steps == 7}}
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(8),
        batch_size=4,
        around=rbdata.Around(frame_stack=3, stack_keys=["observation", "action"]),
    )
    buffer.extend(TensorDict(data, [8]))
    with pytest.raises(UsageError, match="action cannot be stacked"):
        buffer.sample()


def test_n_step_does_not_replace_what_records_have():
    """Such as the leaves of a collector's MultiStep, whose rewards are sums already."""
    steps = torch.arange(8.0)[:, None]
    after = {"observation": steps + 1, "reward": torch.ones(8, 1), "done": steps == 7}
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(8), batch_size=4, around=rbdata.Around(n_step=2))
    buffer.extend(rbdata.MultiStep(gamma=0.5, n_steps=2)(TensorDict({"observation": steps, "next": after}, [8])))
    with pytest.raises(UsageError, match=r"steps_to_next_obs.*which n_step would replace"):
        buffer.sample()


def test_n_step_refuses_rewards_that_it_would_not_sum():
    """Such as those of each agent: the rewards of the last step stood beside the successor n steps later."""
    steps = torch.arange(8.0)[:, None]
    agents = {"reward": steps[:, None].expand(8, 3, 1)}
    after = {"observation": steps + 1, "reward": steps, "done": steps == 7, "agents": agents}
    data = TensorDict({"observation": steps, "next": after}, [8])

    def batch(records, n_step):
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(8), batch_size=4, around=rbdata.Around(n_step=n_step))
        buffer.extend(records)
        return buffer.sample()

    with pytest.raises(UsageError, match="n_step sums next/reward alone, not next/agents/reward"):
        batch(data, 2)
    single = batch(data, 1)
    assert same(single["next", "agents", "reward"][:, 0], single["observation"])
    assert ("next", "agents") not in batch(data.exclude(("next", "agents")), 2).keys(True)


def test_n_step_does_not_replace_what_a_dataset_has(tmp_path, monkeypatch):
    """Such as the discounts of a dataset of n-step rewards: those of single steps stood in their place."""
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path))
    write_dataset(tmp_path, make_episodes(LENGTHS), "flat", id="my/plain")
    rbdata.preprocess("my/plain", "rbdata:n_step", dest="my/three", args={"n": 3})
    with pytest.raises(UsageError, match=r"my/three has next/original_reward, steps_to_next_obs, gamma, which"):
        rbdata.load("my/three", batch_size=4, n_step=3).sample()
    assert "gamma" in rbdata.load("my/three", batch_size=4, n_step=3, keys=["observation", "action"]).sample()
    assert rbdata.load("my/three", batch_size=4).sample()["gamma"].max() < 0.999


@pytest.mark.parametrize("options", [{}, {"n_step": 2}, {"slice_len": 2}, {"slice_len": 2, "n_step": 2}], ids=str)
def test_only_the_named_leaves_are_stacked(tmp_path, options):
    """Large frames are stored once per state, vectors once per step: what is stacked does not depend on that."""
    rng = np.random.default_rng(0)
    episodes = []
    for count in (1, 4, 9):
        frames = rng.integers(0, 255, (count + 1, 40, 40), np.uint8)
        vectors = rng.normal(size=(count + 1, 3)).astype(np.float32)
        last = np.arange(count) == count - 1
        observation = {"pixels": frames, "vector": vectors}
        episodes.append({"observation": observation, "action": last, "reward": last * 1.0, "terminated": last})
    folder = rbdata.from_episodes(iter(episodes), "my/both", root=tmp_path)
    kinds = {leaf.name: leaf.kind for leaf in rbdata.open_dataset(folder).schema.leaves}
    assert kinds["observation/pixels"] == "state" and kinds["observation/vector"] == "step"

    def sampled(**more):
        return rbdata.load(folder, batch_size=8, seed=0, **options, **more).sample()

    plain, stacked = sampled(), sampled(frame_stack=3)
    names = ("pixels", "vector")
    for keys in (["observation/pixels"], [("observation", "vector")], "observation/vector", None):
        batch = sampled(frame_stack=3, stack_keys=keys)
        named = names if keys is None else ["pixels"] if "pixels" in keys[0] else ["vector"]
        for name in names:
            wanted = stacked if name in named else plain
            assert torch.equal(batch["observation", name], wanted["observation", name])
            assert torch.equal(batch["next", "observation", name], wanted["next", "observation", name])
    with pytest.raises(UsageError, match="goes with frame_stack"):
        sampled(stack_keys=["observation/pixels"])
    for keys, message in (([], "no observation to stack"), ("pixels", "unknown key to stack: pixels")):
        with pytest.raises(UsageError, match=message):
            sampled(frame_stack=3, stack_keys=keys)


@pytest.mark.parametrize(
    "shape, dtype", [((), torch.uint16), ((3,), torch.uint64), ((0,), torch.complex64), ((3,), torch.float8_e5m2)]
)
def test_windows_of_dtypes_that_torch_cannot_fill(dtype, shape):
    """Depth frames are uint16: torch has neither ``index_fill_`` nor ``index_put_`` for it."""
    size, width = 6, dtype.itemsize
    memory = torch.arange(size * max(1, int(np.prod(shape))) * width, dtype=torch.uint8)
    values = memory.view(dtype).view(size, -1)[:, : int(np.prod(shape))].reshape(size, *shape)
    done = torch.tensor([[False], [False], [True]] * 2)
    data = TensorDict({"observation": values, "next": {"observation": values.roll(-1, 0), "done": done}}, [size])

    def made(**options):
        around = rbdata.Around(**options)
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(size), batch_size=size, around=around)
        buffer.extend(data)
        return buffer.sample_at(range(size))

    def bits(tensor):
        return tensor.contiguous().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []

    zero = torch.zeros_like(values[0])
    stacks = made(frame_stack=2, padding="zero")["observation"]
    repeating = made(frame_stack=2)["observation"]
    padded = made(windows={"observation": (-1, 1)}, padding="zero")["observation"]
    repeated = made(windows={"observation": (-1, 1)})["observation"]
    for step in range(size):
        first = step % 3 == 0
        before = zero if first else values[step - 1]
        after = values[(step + 1) % size]
        assert [bits(each) for each in stacks[step]] == [bits(before), bits(values[step])]
        assert [bits(each) for each in padded[step]] == [bits(before), bits(values[step]), bits(after)]
        nearest = values[step] if first else values[step - 1]
        assert [bits(each) for each in repeating[step]] == [bits(nearest), bits(values[step])]
        assert [bits(each) for each in repeated[step]] == [bits(nearest), bits(values[step]), bits(after)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
def test_windows_without_the_last_state_of_an_episode(dtype):
    """No row to replace is no error, whatever strides its tensor has."""
    values = torch.arange(12).to(dtype).view(6, 2)
    flags = {"done": torch.tensor([[False]] * 5 + [[True]])}
    data = TensorDict({"observation": values, "next": {"observation": values + 2, **flags}}, [6])
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(6), batch_size=2, around=rbdata.Around(windows={"observation": (-1, 1)})
    )
    buffer.extend(data)
    assert torch.equal(buffer.sample_at([2])["observation"][0], values[1:4])
    assert torch.equal(buffer.sample_at([2, 4])["observation"][1], values[3:6])
    assert torch.equal(buffer.sample_at([5])["observation"][0], torch.cat([values[4:], values[-1:] + 2]))
