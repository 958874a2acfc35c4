"""The compiled loops against the NumPy code, bit by bit; when they are compiled, and what happens where they cannot be."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import sys
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import SamplingError
from rbdata.storage.replay import (
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    TensorDictReplayBuffer,
)
from rbdata.storage.replay.samplers import sum_tree
from rbdata.storage.replay.samplers.sum_tree import SumTree
from replay_tools import equal, rollout

SIZES = [1, 15, 16, 17, 4096, 4097, 65_536, 65_537, 70_000]  # one to three levels, with full and other last rows


@pytest.fixture(scope="module")
def loops():
    """Compiled once for all tests here."""
    pytest.importorskip("numba")
    compiled = sum_tree.load_loops()
    assert compiled is not None
    return compiled


@pytest.fixture
def early(loops, monkeypatch):
    """Trees of any size use the loops, from this process's fourth draw on."""
    monkeypatch.setattr(sum_tree, "LARGE", 1)
    monkeypatch.setattr(sum_tree, "OFTEN", 4)
    monkeypatch.setattr(sum_tree, "_draws", 0)


@pytest.fixture
def unknown(monkeypatch):
    """As in a new process."""
    monkeypatch.setattr(sum_tree, "_loaded", [])
    monkeypatch.setattr(sum_tree, "_draws", 0)
    monkeypatch.setattr(sum_tree, "OFTEN", 2)
    monkeypatch.setattr(sum_tree, "LARGE", 100)


values = st.one_of(
    st.just(0.0),
    st.floats(0, 2),
    st.sampled_from([5e-324, 1e-310, 1e-300, 1.0, 1e16, 1e300]),  # next to each other, sums round
)


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[np.ndarray, np.ndarray, int, int]]:
    """Updates of 0 to 300 values, by indices that come again, and the sizes and seeds of the draws after them."""
    rounds = []
    for _ in range(draw(st.integers(1, 5))):
        count = draw(st.sampled_from([0, 1, 2, 16, 300]))
        among = draw(st.sampled_from([1, 3, 1 << 20]))
        few = draw(st.lists(values, min_size=1, max_size=6))
        random = np.random.default_rng(draw(st.integers(0, 99)))
        index = random.integers(0, among, count) * draw(st.sampled_from([1, 15, 16, 4096]))
        some = random.choice(few, count) * (random.random(count) if draw(st.booleans()) else 1)
        rounds.append((index, some, draw(st.sampled_from([0, 1, 2, 15, 256, 300])), draw(st.integers(0, 99))))
    return rounds


@settings(max_examples=60, deadline=None)
@given(size=st.sampled_from(SIZES), rounds=changes(), switch=st.integers(0, 5), filled=st.booleans())
def test_the_loops_are_the_numpy_code(loops, size, rounds, switch, filled):
    """Whenever a tree changes over; with all rows in use, or few."""
    plain, tree = SumTree(size), SumTree(size)
    if filled:
        every = torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
        for one in (plain, tree):
            one.fill(every)
    for number, (index, some, count, seed) in enumerate(rounds):
        if number == switch:
            tree._loops = loops
        results = []
        for one in (plain, tree):
            one.update(index % size, some)
            result = [one._nodes, np.array([one.total, one.smallest])]
            if one.total:
                generator = torch.Generator().manual_seed(seed)
                result += [*one.draw(count, generator), generator.get_state().numpy()]
                edges = one._sums()[: one._top + 1]  # where a sum ends and the next one begins
                result.append(one.find(edges))
            results.append(result)
        for left, right in zip(*results, strict=True):
            assert left.dtype == right.dtype and left.tobytes() == right.tobytes()


def test_the_last_of_equal_indices_and_the_least(loops):
    """Where an index comes twice, its last value stays; a least value that is gone is looked for again."""
    for index, some in (
        ([3, 3], [0.1, 5.0]),
        ([3, 3], [5.0, 0.1]),
        ([3, 4, 3], [0.1, 0.2, 9.0]),
        ([7], [0.0]),
        ([7, 8], [3.0, 0.5]),
        ([8, 7], [0.5, 0.5]),
    ):
        plain, tree = SumTree(5000), SumTree(5000)
        tree._loops = loops
        for one in (plain, tree):
            one.update(np.array([7, 9]), np.array([0.5, 2.0]))
            one.update(np.array(index), np.array(some))
        assert tree.smallest == plain.smallest == plain.values[plain.values > 0].min()
    with pytest.raises(IndexError):
        tree.update(np.array([1, 5008]), np.array([1.0, 1.0]))
    assert tree[np.array([1])] == 0
    tree.update(np.arange(0, 20)[::4], np.arange(0.0, 20.0)[::4])  # not contiguous
    assert tree[np.arange(0, 20, 4)].tolist() == [0, 4, 8, 12, 16]


@pytest.mark.parametrize("size", [1, 4096, 4097, 70_000])
def test_the_whole_mass_by_rounding(loops, size):
    plain, tree = SumTree(size), SumTree(size)
    tree._loops = loops
    for one in (plain, tree):
        one.update(np.array([0]), np.array([5e-324]))
    mass = np.array([tree.total])
    assert tree.find(mass) == plain.find(mass)
    assert set(tree.draw(50, torch.Generator().manual_seed(0))[0].tolist()) == {0}
    tree.update(np.array([0, size - 1]), np.array([1.7e308, 1.7e308]))
    if size > 1:
        with pytest.raises(SamplingError, match="larger than a float64"):
            tree.draw(4, torch.Generator())


def batches(sampler: PrioritizedSampler) -> list:
    """Batches of a buffer that grows, is emptied and gets priorities."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9000), sampler=sampler, batch_size=32, seed=3)
    drawn, generator = [], torch.Generator().manual_seed(5)
    for step in range(24):
        if step % 8 == 0:
            buffer.extend(rollout([30, 20, 50], first=1000 * step))
        if step == 17:
            buffer.empty()
            buffer.extend(rollout([40, 40]))
        drawn.append(buffer.sample())
        buffer.update_priority(drawn[-1]["index"], torch.rand(32, generator=generator))
    return drawn


@pytest.mark.parametrize("slices", [False, True])
def test_batches_are_the_same(early, monkeypatch, slices):
    def sampler() -> PrioritizedSampler:
        if slices:
            return PrioritizedSliceSampler(60, 0.7, 0.5, slice_len=8)
        return PrioritizedSampler(60, 0.7, 0.5)

    compiled = sampler()
    found = batches(compiled)
    assert (vars(compiled)["_starts"] if slices else compiled.tree)._loops is not None
    monkeypatch.setattr(sum_tree, "OFTEN", 1 << 40)
    plain = sampler()
    assert all(equal(left, right) for left, right in zip(found, batches(plain), strict=True))
    assert plain.tree._loops is None


def test_buffers_with_compiled_loops_travel(early):
    """Pickled, as to spawned processes, and to forked ones."""
    sampler = PrioritizedSampler(100, 0.7, 0.5)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler, batch_size=16, seed=0)
    buffer.extend(rollout([60, 40]))
    for _ in range(6):
        buffer.update_priority(buffer.sample()["index"], torch.rand(16))
    assert sampler.tree._loops is not None
    copy = pickle.loads(pickle.dumps(buffer))
    assert vars(copy.sampler)["tree"]._loops is None
    context = multiprocessing.get_context("fork")
    near, far = context.Pipe(duplex=False)
    child = context.Process(target=send_batches, args=(buffer, far))
    child.start()
    assert near.poll(60)
    theirs = near.recv()
    child.join(60)
    ours = [buffer.sample()["index"].tolist() for _ in range(5)]
    assert child.exitcode == 0 and theirs == ours == [copy.sample()["index"].tolist() for _ in range(5)]


def send_batches(buffer: TensorDictReplayBuffer, far) -> None:
    far.send([buffer.sample()["index"].tolist() for _ in range(5)])


class TestWhenTheyAreCompiled:
    def test_for_large_trees_that_are_drawn_from_often(self, loops, unknown, monkeypatch):
        monkeypatch.setattr(sum_tree, "_compile", lambda: loops)
        small, large, other = SumTree(99), SumTree(100), SumTree(100)
        for tree in (small, large, other):
            tree.fill(torch.ones(tree.size, dtype=torch.float64))
        generator = torch.Generator()
        for _ in range(5):
            small.draw(1, generator)
        large.draw(1, generator)
        assert large._loops is None and not sum_tree._loaded
        other.draw(1, generator)  # the second of this process: trees come and go with the buffer's contents
        large.draw(1, generator)
        small.draw(1, generator)
        assert (small._loops, large._loops, other._loops) == (None, loops, loops)

    def test_nothing_is_kept_in_files(self, loops):
        """numba's files of compiled code are pickles."""
        assert loops.find.stats.cache_path is None and loops.update.stats.cache_path is None

    @pytest.mark.parametrize("fault", ["ImportError()", "RuntimeError('not this processor')", None])
    def test_without_a_numba_that_works(self, unknown, monkeypatch, tmp_path, caplog, fault):
        """NumPy draws; it is tried once, and noted for who looks for it."""
        monkeypatch.setitem(sys.modules, "numba", None)  # not installed
        if fault is not None:
            (tmp_path / "numba.py").write_text(f"raise {fault}")
            monkeypatch.syspath_prepend(tmp_path)
            monkeypatch.delitem(sys.modules, "numba")
        tree = SumTree(1000)
        tree.update(np.array([5]), np.array([1.0]))
        with caplog.at_level(logging.DEBUG, sum_tree.__name__):
            for _ in range(10):
                assert tree.draw(3, torch.Generator())[0].tolist() == [5, 5, 5]
        assert tree._loops is None
        assert [record.levelno for record in caplog.records] == [logging.DEBUG]

    def test_others_do_not_wait(self, loops, unknown, monkeypatch):
        """While one thread compiles, the others draw by NumPy, and a fork waits."""
        begun, go_on = threading.Event(), threading.Event()

        def compile_slowly() -> sum_tree.Loops:
            begun.set()
            assert go_on.wait(60)
            return loops

        monkeypatch.setattr(sum_tree, "_compile", compile_slowly)
        thread = threading.Thread(target=sum_tree.load_loops)
        thread.start()
        assert begun.wait(60)
        assert sum_tree.load_loops() is None
        threading.Timer(0.2, go_on.set).start()
        began = time.monotonic()
        child = multiprocessing.get_context("fork").Process(target=exit_with_loops)
        child.start()
        assert time.monotonic() - began >= 0.2
        child.join(60)
        thread.join(60)
        assert child.exitcode == 7 and sum_tree.load_loops() is loops


def exit_with_loops() -> None:
    sys.exit(7 if sum_tree.load_loops() is not None else 1)
