"""Rings of any shape in the order of time."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.storage.replay import (
    Around,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    SliceSampler,
    TensorDictReplayBuffer,
    TensorStorage,
)
from replay_tools import rollout


def make(kind: str, size: int, tmp_path, **more):
    if kind == "list":
        return ListStorage(size)
    if kind == "tensor":
        return TensorStorage(torch.zeros_like(rollout([size])), **more)
    return LazyTensorStorage(size, **more) if kind == "lazy" else LazyMemmapStorage(size, **more)


@pytest.mark.parametrize("make", [LazyTensorStorage, LazyMemmapStorage])
@settings(max_examples=examples(30), deadline=None)
@given(
    capacity=st.integers(2, 20),
    width=st.integers(1, 3),
    lengths=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=4),
    length=st.integers(1, 4),
    stack=st.one_of(st.none(), st.integers(1, 3)),
    n=st.one_of(st.none(), st.integers(1, 4)),
)
def test_windows_of_rings(make, capacity, width, lengths, length, stack, n):
    """Slices, stacks and n-step returns of rings that have wrapped, of one and more columns: never across an episode."""
    ndim = 1 if width == 1 else 2
    buffer = TensorDictReplayBuffer(
        storage=make(capacity * width, ndim=ndim),
        sampler=SliceSampler(slice_len=length, strict_length=False),
        batch_size=4 * length,
        around=Around(frame_stack=stack, **({"n_step": n, "gamma": 0.5} if n else {})),
    )
    for number, batch in enumerate(lengths):
        columns = [rollout(batch, first=1000 * number + 10_000 * env, open_end=True) for env in range(width)]
        buffer.extend(columns[0] if width == 1 else torch.stack(columns))
    whole = {int(row["action"]): row for row in buffer.storage.get(slice(None)).reshape(-1)}
    for _ in range(3):
        batch = buffer.sample()
        ends = [0, *(batch["next", "truncated"].squeeze(1).nonzero().squeeze(1) + 1).tolist()]
        assert ends[-1] == len(batch)
        for low, high in pairwise(ends):
            piece = batch[low:high]
            actions = piece["action"].tolist()
            assert actions == list(range(actions[0], actions[0] + len(actions)))
            assert len(piece["collector", "traj_ids"].unique()) == 1
            assert len(piece) <= length
        for row in batch:
            check_window(row, whole, stack, n)


def check_window(row, whole, stack, n) -> None:
    action, trajectory = int(row["action"]), int(row["collector", "traj_ids"])
    mine = {key: kept for key, kept in whole.items() if int(kept["collector", "traj_ids"]) == trajectory}
    last = action
    while last + 1 in mine and last + 1 < action + (n or 1):
        last += 1
    if n:
        rewards = [float(mine[at]["next", "reward"]) * 0.5 ** (at - action) for at in range(action, last + 1)]
        assert float(row["next", "reward"]) == pytest.approx(sum(rewards), rel=1e-5)
        assert int(row["steps_to_next_obs"]) == last - action + 1
    after = mine[last]["next", "observation"]
    if stack is None:
        assert torch.equal(row["observation"], mine[action]["observation"])
        assert torch.equal(row["next", "observation"], after)
        return
    first = min(mine)
    past = [mine[max(at, first)]["observation"] for at in range(action - stack + 1, action + 1)]
    assert torch.equal(row["observation"], torch.stack(past))
    past = [mine[max(at, first)]["observation"] for at in range(last - stack + 2, last + 1)]
    assert torch.equal(row["next", "observation"], torch.stack([*past, after]))
