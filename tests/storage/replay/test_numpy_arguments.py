"""NumPy's scalars as arguments are the numbers they hold: settings come from arrays, sweeps and configuration files."""

import numpy as np
import pytest
import rbdata
import torch
from rbdata.errors import UsageError
from tensordict import TensorDict

PLAIN = (int, float, bool)
NUMPY = [(np.int64, np.float64, np.bool_), (np.uint8, np.float32, np.bool_)]


def records(count=20):
    steps = torch.arange(count).view(count, 1)
    after = {"o": steps + 1.0, "reward": steps * 1.0, "done": steps % 5 == 4, "terminated": steps % 5 == 4}
    return TensorDict({"o": steps * 1.0, "version": steps[:, 0], "next": after}, [count])


def batches(**parts):
    buffer = rbdata.TensorDictReplayBuffer(
        **{"batch_size": 4, "storage": rbdata.LazyTensorStorage(30), "seed": 0} | parts
    )
    buffer.extend(records())
    return [buffer.sample() for _ in range(3)]


def priorities(whole, real, flag):
    buffer = rbdata.TensorDictPrioritizedReplayBuffer(
        alpha=real(0.5), beta=real(0.25), storage=rbdata.LazyTensorStorage(30), batch_size=whole(4), seed=0
    )
    buffer.extend(records())
    buffer.update_priority(whole(3), real(9.5))
    buffer.sampler.alpha = real(0.75)
    other = rbdata.TensorDictPrioritizedReplayBuffer(
        alpha=0.5, beta=0.5, storage=rbdata.LazyTensorStorage(30), batch_size=4, seed=0
    )
    other.load_state_dict(buffer.state_dict())
    return [buffer.sample(), other.sample(), buffer.sample(whole(3))]


def slices(whole, real, flag):
    sampler = rbdata.SliceSampler(slice_len=whole(4), strict_length=flag(False), span=(flag(False), flag(True)))
    buffer = rbdata.TensorDictReplayBuffer(
        storage=rbdata.LazyTensorStorage(30), sampler=sampler, batch_size=whole(8), seed=whole(3)
    )
    buffer.extend(records())
    first = buffer.sample()
    sampler.slice_len = whole(2)
    sampler.span = flag(False)
    return [first, buffer.sample()]


CASES = {
    "storage": lambda w, r, f: batches(storage=rbdata.LazyTensorStorage(w(30), ndim=w(1)), batch_size=w(5), seed=w(7)),
    "list": lambda w, r, f: batches(storage=rbdata.ListStorage(w(30)), prefetch=w(2)),
    "n_step": lambda w, r, f: batches(around=rbdata.Around(n_step=w(3), gamma=r(0.5))),
    "stack": lambda w, r, f: batches(around=rbdata.Around(frame_stack=w(3), stack_keys=["o"])),
    "windows": lambda w, r, f: batches(around=rbdata.Around(windows={"o": (-w(0), w(2))})),
    "shares": lambda w, r, f: batches(rank=w(1), world_size=w(2)),
    "prioritized": lambda w, r, f: batches(sampler=rbdata.PrioritizedSampler(w(30), r(0.5), r(0.25), eps=r(0.125))),
    "prioritized slices": lambda w, r, f: batches(
        sampler=rbdata.PrioritizedSliceSampler(w(30), r(0.5), r(0.25), num_slices=w(2), span=f(True))
    ),
    "pass": lambda w, r, f: batches(sampler=rbdata.SamplerWithoutReplacement(drop_last=f(True), shuffle=f(False))),
    "multi-step": lambda w, r, f: [rbdata.MultiStep(r(0.5), w(3))(records().view(2, 10))],
    "priorities": priorities,
    "slices": slices,
}


def same(one, other):
    keys = set(map(str, one.keys(True, True)))
    return keys == set(map(str, other.keys(True, True))) and bool(
        all(torch.equal(one[key], other[key]) for key in one.keys(True, True) if isinstance(one[key], torch.Tensor))
    )


@pytest.mark.parametrize("kinds", NUMPY)
@pytest.mark.parametrize("case", CASES)
def test_buffers(case, kinds):
    for found, wanted in zip(CASES[case](*kinds), CASES[case](*PLAIN), strict=True):
        assert same(found, wanted)


@pytest.mark.parametrize("kinds", NUMPY)
def test_datasets(tmp_path, kinds):
    steps = np.arange(12.0)
    leaves = {"observation": steps[:, None], "action": steps, "reward": steps, "terminated": steps % 4 == 3}
    for name in ("my/a", "my/b"):
        rbdata.from_arrays(leaves, name, root=tmp_path)

    def batch(whole, real, flag, name="my/a", **options):
        return rbdata.load(name, root=tmp_path, batch_size=whole(6), seed=whole(1), **options).sample()

    def goals(whole, real, flag):
        shares = {"current": real(0.25), "trajectory": real(0.5), "random": real(0.25)}
        return rbdata.Goals(**shares, geometric=real(0.5), negative=flag(True))

    for options in (
        lambda w, r, f: {"n_step": w(3), "gamma": r(0.5), "replacement": f(False)},
        lambda w, r, f: {"slice_len": w(3), "strict_length": f(True), "pad_output": f(False)},
        lambda w, r, f: {"reward_scale": w(2)},
        lambda w, r, f: {"reward_scale": r(0.5)},
        lambda w, r, f: {"normalize": {"observation": {"mean": r(1.5), "std": [r(2)]}}},
        lambda w, r, f: {"goals": goals(w, r, f)},
        lambda w, r, f: {"name": ["my/a", "my/b"], "weights": [r(0.25), r(0.75)]},
    ):
        assert same(batch(*kinds, **options(*kinds)), batch(*PLAIN, **options(*PLAIN)))


@pytest.mark.parametrize("wrong", [np.float64(3), True, np.bool_(True), "3", None, np.array([3])])
def test_what_is_no_whole_number_is_refused(wrong):
    for make in (
        lambda: rbdata.ListStorage(wrong) if wrong is not None else rbdata.LazyTensorStorage(None),
        lambda: rbdata.LazyTensorStorage(8, ndim=wrong),
        lambda: rbdata.MultiStep(0.9, wrong),
        lambda: rbdata.PrioritizedSampler(wrong, 0.5, 0.5),
        lambda: rbdata.SliceSampler(slice_len=wrong),
        lambda: rbdata.ReplayBuffer(batch_size=2, around=rbdata.Around(n_step=wrong or "none")),
    ):
        with pytest.raises(UsageError):
            make()
