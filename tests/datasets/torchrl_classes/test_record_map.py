"""``preprocess`` of the dataset classes: the same records, whatever the chunks and processes."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from functools import partial

import numpy as np
import psutil
import pytest
import torch
from processes import is_gone, wait_until
from rbdata import LazyTensorStorage, ListStorage, TensorStorage
from rbdata.datasets.torchrl_classes.record_map import map_records
from rbdata.errors import DiskSpaceError, UsageError, WorkerLostError
from tensordict import TensorDict


def data(rows: int = 11) -> TensorDict:
    return TensorDict({"a": torch.arange(rows), "next": {"b": torch.randn(rows, 3)}}, [rows])


def double(batch):
    return batch.select("a").set("twice", batch["a"] * 2)


@pytest.mark.parametrize("more", [{}, {"num_chunks": 4}, {"chunksize": 3}, {"chunksize": 0}, {"num_workers": 2}])
def test_chunks(more, tmp_path):
    source = data()
    mapped = map_records(
        TensorStorage(source), double, tmp_path, **{"num_workers": 0, "mp_start_method": "forkserver", **more}
    )
    whole = mapped.get(slice(None))
    assert whole["twice"].tolist() == [2 * i for i in range(11)]
    assert "twice" not in source.keys()  # noqa: SIM118
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.memmap", "meta.json", "twice.memmap"]


def die(batch):
    if len(batch) > 1:
        os._exit(3)
    return batch


def test_a_process_that_dies_is_an_error(tmp_path):
    with pytest.raises(WorkerLostError):
        map_records(TensorStorage(data()), die, tmp_path, num_workers=1, chunksize=4, mp_start_method="forkserver")


def test_a_killed_caller_takes_its_processes_with_it(tmp_path):
    code = """
import sys, time, torch
from rbdata import TensorStorage
from rbdata.datasets.torchrl_classes.record_map import map_records
from tensordict import TensorDict

def slow(batch):
    open(sys.argv[1] + "/at_work", "a").close()
    if batch["a"][0] > 0:
        time.sleep(600)
    return batch

if __name__ == "__main__":
    data = TensorDict({"a": torch.arange(8)}, [8])
    map_records(TensorStorage(data), slow, sys.argv[1] + "/out", num_workers=2, chunksize=2)
"""
    (tmp_path / "script.py").write_text(code)
    caller = subprocess.Popen([sys.executable, tmp_path / "script.py", tmp_path])
    try:
        wait_until(lambda: len(psutil.Process(caller.pid).children()) == 3)  # two, and the resource tracker
        time.sleep(0.5)
        children = psutil.Process(caller.pid).children()
    finally:
        caller.kill()
        caller.wait()
    wait_until(lambda: all(is_gone(child.pid) for child in children))


def test_a_disk_too_full_for_the_records(tmp_path, monkeypatch):
    def allocate(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    with pytest.raises(DiskSpaceError, match="no room for 11 records"):
        map_records(TensorStorage(data()), double, tmp_path, num_workers=0)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_seeds_do_not_depend_on_the_processes(method, tmp_path):
    def noise(batch):
        noise = torch.stack([torch.rand(len(batch)), torch.as_tensor(np.random.rand(len(batch))).float()], 1)
        return batch.select("a").set("noise", noise).set("more", torch.full((len(batch),), random.random()))

    def run(folder, workers):
        seeded = torch.Generator().manual_seed(3)
        storage = TensorStorage(data())
        more = {"num_workers": workers, "chunksize": 4, "mp_start_method": method}
        return map_records(storage, noise, folder, generator=seeded, **more).get(slice(None))

    before = random.getstate(), np.random.get_state()[1].tolist()
    here, there = run(tmp_path / "1", 0), run(tmp_path / "2", 2)
    assert bool((here == there).all()) and len(here["noise"].unique()) == 22
    assert before == (random.getstate(), np.random.get_state()[1].tolist())


def test_workers_have_the_settings_of_torch(tmp_path):
    def third(batch):
        return batch.select("a").set("third", torch.full((len(batch),), 1 / 3).double())

    torch.set_default_dtype(torch.float64)
    try:
        more = {"num_workers": 1, "mp_start_method": "forkserver"}
        mapped = map_records(TensorStorage(data()), third, tmp_path / "double", **more)
    finally:
        torch.set_default_dtype(torch.float32)
    assert (mapped[:]["third"] == 1 / 3).all()
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(UsageError, match="autocast is on"):
        map_records(TensorStorage(data()), third, tmp_path / "autocast", **more)


def test_the_first_frames_changed_in_place(tmp_path):
    storage = LazyTensorStorage(20)
    storage.set(range(11), data())

    def change(batch):
        batch["next", "b"].zero_()

    mapped = map_records(storage, change, tmp_path, num_frames=4, num_workers=0)
    assert len(mapped) == 4
    assert not mapped.get(slice(None))["next", "b"].any()
    assert storage.get(slice(None))["next", "b"].all()


class Scaled(np.ndarray):
    """An array whose scale its pickle leaves out."""

    scale = 1.0


def test_an_array_that_would_lose_its_attributes_is_refused(tmp_path):
    weights = np.ones(1).view(Scaled)
    weights.scale = 3.0
    fn = partial(scaled, weights)
    mapped = map_records(TensorStorage(data()), fn, tmp_path / "here", num_workers=0)
    assert torch.equal(mapped[:]["a"], 3 * data()["a"])
    with pytest.raises(UsageError, match="leaves out: scale"):
        map_records(TensorStorage(data()), fn, tmp_path / "there", num_workers=1, mp_start_method="forkserver")


def scaled(weights, td):
    return td.set("a", td["a"] * int(weights.scale))


def test_what_cannot_be_mapped(tmp_path):
    for storage, fn, more, words in (
        (TensorStorage(data()), lambda batch: batch[:0], {}, "for record 0"),
        (TensorStorage(data()), double, {"dim": 1}, "dimension 0"),
        (ListStorage(3), double, {}, "no records that are mapped"),
        (TensorStorage(torch.zeros(3)), double, {}, "no records that are mapped"),
    ):
        with pytest.raises(UsageError, match=words):
            map_records(storage, fn, tmp_path / "out", **more)


def _from_fourth(td, change):
    """The batch, changed in the chunks that begin with record 4 or a later one."""
    return change(td) if td["a"].reshape(-1)[0] >= 4 else td.set("x", td["a"].clone())


UNLIKE = {
    "come with y": lambda td: td.set("x", td["a"]).set("y", td["a"]),
    "come without b": lambda td: td.set("x", td["a"]).exclude("b"),
    "come without x": lambda td: td,
    "key x: got float64": lambda td: td.set("x", td["a"].double()),
    r"key x: got float32 \[1\]": lambda td: td.set("x", td["a"].unsqueeze(-1)),
    "key x: ": lambda td: td.set("x", "text"),
    "come with text": lambda td: td.set("x", td["a"]).set_non_tensor("text", "here alone"),
    "a dict": lambda td: {"a": td["a"], "b": td["b"], "x": td["a"]},
}


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("words", UNLIKE)
def test_records_unlike_the_first_ones_are_refused(words, single, tmp_path):
    data = TensorDict({"a": torch.arange(10.0), "b": torch.arange(10)}, [10])
    change = UNLIKE[words]
    with pytest.raises(UsageError, match=f"record(s?) 4.*{words}|{words} for record(s?) 4"):
        map_records(
            TensorStorage(data),
            partial(_from_fourth, change=change),
            tmp_path / "out",
            num_workers=0,
            chunksize=0 if single else 2,
        )


def test_batches_of_other_lengths_are_refused(tmp_path):
    data = TensorDict({"a": torch.arange(10.0)}, [10])
    for change in (lambda td: td[:1], lambda td: torch.cat([td, td]), lambda td: td[0]):
        fn = partial(_from_fourth, change=change)
        with pytest.raises(UsageError, match=r"a batch of \[.*\] for records 4 to 5"):
            map_records(TensorStorage(data), fn, tmp_path / "out", num_workers=0, chunksize=2)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_function_has_not_been_called_before(workers, tmp_path):
    calls = []

    def number(td):
        calls.append(len(td))
        return td.set("call", torch.full((len(td),), len(calls))).set_non_tensor("text", "same")

    data = TensorDict({"a": torch.arange(6.0)}, [6])
    more = {"num_workers": workers, "chunksize": 2, "mp_start_method": "forkserver"}
    mapped = map_records(TensorStorage(data), number, tmp_path / "out", **more)
    found = mapped.get(slice(None))
    assert found["call"].tolist() == [1, 1, 2, 2, 3, 3] and found["text"] == ["same"] * 6


def test_values_and_keys_that_files_cannot_hold(tmp_path):
    data = TensorDict({"a": torch.arange(6.0)}, [6])
    cases = {"key text: the records have": lambda td: td.set_non_tensor("text", str(td["a"]))}
    cases["'shape' is reserved"] = lambda td: td.set("shape", td["a"])
    cases["text is a object"] = lambda td: td.set_non_tensor("text", object())
    for number, (words, fn) in enumerate(cases.items()):
        with pytest.raises(UsageError, match=words):
            map_records(TensorStorage(data), fn, tmp_path / str(number), num_workers=0, chunksize=2)
