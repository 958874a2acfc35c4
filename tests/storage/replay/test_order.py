"""A batch is a function of the seed, its number and the contents: however it is made, it is the same.

For fixed contents and one batch size: the batches of a plain loop over `sample` are those with any prefetching, from loaders
with any number of workers, and of a run that was saved after any batch and goes on in another way.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import rbdata
import torch
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rbdata import LazyMemmapStorage, LazyTensorStorage, RandomCropTensorDict, TensorDictReplayBuffer
from replay_tools import equal, rollout
from storage_tools import make_episodes, write_dataset

LENGTHS = [10, 30, 7, 20]
STEPS = sum(LENGTHS)
#: More than a pass of 67 steps in batches of 8, shared by two.
COUNT = 21
KINDS: dict[str, dict[str, Any]] = {
    "steps": {},
    "a pass": {"replacement": False},
    "a pass in order": {"replacement": False, "shuffle": False},
    "a pass in blocks": {"replacement": False, "shuffle": "blocks"},
    "a pass of full batches": {"replacement": False, "drop_last": True},
    "slices": {"slice_len": 4},
    "short slices": {"slice_len": 8, "strict_length": False},
    "a pass of slices": {"slice_len": 2, "replacement": False},
    "stacks and returns": {"frame_stack": 3, "n_step": 2},
    "windows": {"windows": {"observation": (-2, 0), "action": (0, 3)}},
    "goals": {"goals": rbdata.Goals(0.2, 0.5, 0.3, 0.9)},
}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    global FOLDER
    FOLDER = write_dataset(tmp_path_factory.mktemp("order"), make_episodes(LENGTHS))
    plain.cache_clear()
    return FOLDER


FOLDER = Path()


def made(kind: str, rank: int = 0, world: int = 1, *, seed: int = 5, **more: Any) -> TensorDictReplayBuffer:
    return rbdata.load(FOLDER, batch_size=8, seed=seed, rank=rank, world_size=world, **KINDS[kind], **more)


@lru_cache
def plain(kind: str, rank: int, world: int) -> list[Any]:
    """The batches of a loop over `sample`."""
    buffer = made(kind, rank, world)
    return [buffer.sample() for _ in range(COUNT)]


def batches(buffer: Any, workers: int | None) -> Generator[Any, None, None]:
    """Batches without end, from `sample` (None) or from a loader, pass after pass."""
    if workers is None:
        while True:
            yield buffer.sample()
    context = "fork" if workers else None
    loader = buffer.as_iterable().loader(num_workers=workers, multiprocessing_context=context)
    while True:
        yield from loader


def check(found: list[Any], wanted: list[Any]) -> None:
    assert [len(batch) for batch in found] == [len(batch) for batch in wanted]
    assert all(map(equal, found, wanted))


@pytest.mark.parametrize(
    "kind, prefetch, share", [*((kind, 4, (1, 2)) for kind in KINDS), ("steps", 1, (0, 1)), ("a pass", 1, (0, 1))]
)
def test_prefetching_and_checkpoints(tmp_path, kind, prefetch, share):
    """Places to stop at, also around the end of a pass, in turn with and without prefetching."""
    wanted = plain(kind, *share)
    with made(kind, *share, prefetch=prefetch) as buffer:
        check([buffer.sample() for _ in range(COUNT)], wanted)
    with made(kind, *share, prefetch=prefetch) as buffer:
        for place in range(COUNT - 1):
            if place in (0, 1, 3, 4, 5, 8, 9, 14, 19):
                with made(kind, *share, seed=99, prefetch=3 * (place % 2)) as resumed:
                    resumed.load_state_dict(buffer.state_dict())
                    check([resumed.sample()], wanted[place : place + 1])
            if place in (2, 10):
                buffer.dumps(tmp_path / "checkpoint")
                with made(kind, *share, seed=99) as resumed:
                    resumed.loads(tmp_path / "checkpoint")
                    check([resumed.sample() for _ in range(3)], wanted[place : place + 3])
            check([buffer.sample()], wanted[place : place + 1])


WORKERS = st.sampled_from([None, 0, 1, 2])
PREFETCH = st.sampled_from([0, 1, 4])


@settings(max_examples=examples(16), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(list(KINDS)),
    share=st.sampled_from([(0, 1), (0, 2), (1, 2)]),
    stop=st.integers(1, COUNT - 1),
    before=st.tuples(WORKERS, PREFETCH),
    after=st.tuples(WORKERS, PREFETCH),
)
def test_loaders_and_checkpoints(kind, share, stop, before, after):
    wanted = plain(kind, *share)
    with made(kind, *share, prefetch=before[1]) as buffer:
        running = batches(buffer, before[0])
        check(list(islice(running, stop)), wanted[:stop])
        state = buffer.state_dict()
        running.close()
    with made(kind, *share, seed=99, prefetch=after[1]) as resumed:
        resumed.load_state_dict(state)
        running = batches(resumed, after[0])
        check(list(islice(running, COUNT - stop)), wanted[stop:])
        running.close()


@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    workers=st.lists(WORKERS, min_size=1, max_size=3),
    size=st.integers(1, 40),
    kind=st.sampled_from(["a pass", "a pass in order", "a pass in blocks"]),
    prefetch=PREFETCH,
)
def test_every_step_once_a_pass_over_all_processes(workers, size, kind, prefetch):
    """Whatever the batch size, and however each process reads its share."""
    drawn = []
    for rank, number in enumerate(workers):
        share = {"rank": rank, "world_size": len(workers), "seed": 5, "prefetch": prefetch}
        with rbdata.load(FOLDER, batch_size=size, **KINDS[kind], **share) as buffer:
            if number is None:
                passed = iter(buffer)
            else:
                context = "fork" if number else None
                passed = iter(buffer.as_iterable().loader(num_workers=number, multiprocessing_context=context))
            drawn += [step for batch in passed for step in batch["index"].tolist()]
    assert sorted(drawn) == list(range(STEPS))


@pytest.mark.parametrize(
    "storage, options", [(LazyTensorStorage, {}), (LazyMemmapStorage, {"n_step": 2, "frame_stack": 2})]
)
def test_rings(storage, options):
    """A ring that has wrapped, and is not written meanwhile."""

    def ring(**more):
        around = rbdata.Around(**options)
        buffer = TensorDictReplayBuffer(storage=storage(40), batch_size=8, around=around, **{"seed": 3, **more})
        buffer.extend(rollout([25, 30]))
        return buffer

    alone = ring()
    wanted = [alone.sample() for _ in range(8)]
    for prefetch in (0, 4):
        with ring(prefetch=prefetch) as buffer:
            for place in range(8):
                with ring(seed=99, prefetch=4 - prefetch) as resumed:
                    resumed.load_state_dict(buffer.state_dict())
                    check([resumed.sample()], wanted[place : place + 1])
                check([buffer.sample()], wanted[place : place + 1])


def test_what_is_drawn_for_one_batch_changes_no_other():
    """A batch of another size takes its number; the others are what they would have been."""
    steady, mixed = made("steps"), made("steps")
    with pytest.warns(UserWarning, match="the argument wins"):
        for number in range(30):
            wanted = steady.sample()
            if number % 7 == 3:
                assert len(mixed.sample(5)) == 5
            else:
                assert equal(mixed.sample(), wanted)


@pytest.mark.parametrize("workers, prefetch", [(None, 0), (None, 4), (2, 1)])
def test_transforms_that_draw_get_the_numbers_of_their_batch(prefetch, workers):
    """Of several prefetch threads, none draws from a generator that the others, or the program, draw from as well."""

    def cropped(**more):
        buffer = made("slices", **more)
        buffer.append_transform(lambda batch: batch.reshape(2, 4)).append_transform(RandomCropTensorDict(2))
        return buffer

    alone = cropped()
    torch.manual_seed(0)
    wanted = [alone.sample() for _ in range(12)]
    torch.manual_seed(1)
    with cropped(prefetch=prefetch) as buffer:
        running = batches(buffer, workers)
        check(list(islice(running, 12)), wanted)
        running.close()
    assert len({tuple(batch["index"][:, 0].tolist()) for batch in wanted}) > 6
