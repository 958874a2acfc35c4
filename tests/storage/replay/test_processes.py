"""The runtime and other processes: what a seed gives there, what workers take in memory, what a kill leaves behind."""

from __future__ import annotations

import hashlib
import multiprocessing
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import rbdata
import torch
from checkpoint_tools import ROWS_OF_LARGE, dump_for_ever, large
from paths import SUPPORT
from rbdata.storage.replay import LazyTensorStorage, TensorDictReplayBuffer
from replay_tools import equal, own_memory
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict

HERE = [str(SUPPORT), str(Path(__file__).parent)]


def fingerprint(buffer, batches: int = 20) -> str:
    """A hash of all bytes of a buffer's next batches."""
    digest = hashlib.sha256()
    for _ in range(batches):
        for key, leaf in sorted(buffer.sample().items(True, True), key=lambda item: str(item[0])):
            digest.update(str(key).encode() + leaf.numpy().tobytes())
    return digest.hexdigest()


OPTIONS = [{}, {"slice_len": 3}, {"replacement": False}, {"alpha": 0.7, "beta": 0.5}, {"n_step": 3, "prefetch": 2}]


def test_a_program_of_its_own(tmp_path):
    """A seed gives the same batches there; it ends with batches on their way, and says nothing.

    `load` of a dataset on this machine imports no source, and nothing of the network: such a process starts in half the time.
    """
    folder = write_dataset(tmp_path, make_episodes([9, 4, 30, 24]))
    code = f"""
import sys
import rbdata
for place in ("my/test", {str(folder)!r}):
    rbdata.load(place, root={str(tmp_path)!r}, batch_size=4).sample()
print(*sys.modules)
sys.path.extend({HERE!r})
from test_processes import OPTIONS, fingerprint
for options in OPTIONS:
    with rbdata.load({str(folder)!r}, batch_size=6, seed=11, **options) as buffer:
        print(fingerprint(buffer))
buffer = rbdata.load({str(folder)!r}, batch_size=4, output="numpy", form="flat", prefetch=3)
buffer.sample()
"""
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    imported, *prints = there.stdout.splitlines()
    ours = [name.removeprefix("rbdata.") for name in imported.split() if name.startswith("rbdata.")]
    elsewhere = ("api", "cli", "preprocess", "datasets.")
    assert [name for name in ours if name.startswith(elsewhere)] == ["datasets.opening"] and len(ours) <= 50
    strange = {"jax", "requests", "urllib3", "fsspec", "huggingface_hub", "pyarrow", "h5py"}
    assert not strange & set(imported.split())
    here = []
    for options in OPTIONS:
        with rbdata.load(folder, batch_size=6, seed=11, **options) as buffer:
            here.append(fingerprint(buffer))
    assert (prints, there.stderr, there.returncode) == (here, "", 0)
    assert len(set(here)) == len(OPTIONS)


# -- workers do not copy the data --------------------------------------------------------------------------------------

MEGABYTES = 32


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the kernel does not tell")
@pytest.mark.parametrize("kind,start", [("memory", "forkserver"), ("dataset", "forkserver")])
def test_workers_have_no_copy_of_the_data(tmp_path, kind, start):
    """Beside a worker over few rows, one over 32 MB takes next to nothing more."""

    def own(rows: int) -> float:
        if kind == "dataset":
            episodes = make_episodes([rows], shape=(1024,))
            storage = write_dataset(tmp_path / str(rows), episodes, layout="raw", block=1024)
        else:
            storage = LazyTensorStorage(rows)
        buffer = TensorDictReplayBuffer(storage=storage, batch_size=64, seed=0, transform=own_memory)
        if kind == "memory":
            buffer.extend(TensorDict({"x": torch.ones(rows, 1024)}, [rows]))
        loader = buffer.as_iterable(3).loader(num_workers=1, multiprocessing_context=start)
        return max(int(batch["own"][0]) for batch in loader) / 1e6

    few, many = own(256), own(MEGABYTES * 256)
    assert many - few < MEGABYTES / 4, (few, many)


# -- kill -9 -----------------------------------------------------------------------------------------------------------


def test_a_kill_while_a_checkpoint_is_written(tmp_path):
    """SIGKILL at any moment: the last checkpoint that was finished is there and whole, or the next one is."""
    path, caught = tmp_path / "checkpoint", 0
    context = multiprocessing.get_context("forkserver")
    for attempt in range(40):
        if caught and attempt >= 4:
            break
        numbers, far_end = context.Pipe(duplex=False)
        writer = context.Process(target=dump_for_ever, args=(str(path), far_end))
        writer.start()
        far_end.close()
        done = [numbers.recv() for _ in range(1 + attempt % 2)][-1]
        time.sleep(0.013 * (attempt % 4 + 1))
        writer.kill()
        writer.join()
        with suppress(EOFError):
            while True:
                done = numbers.recv()
        caught += (
            len(list(tmp_path.iterdir())) > 1
        )  # the one that is being written, or the one that it takes the place of
        buffer: TensorDictReplayBuffer = large()
        buffer.loads(path)
        found = buffer["x"].unique().tolist()
        assert found in ([float(done)], [float(done + 1)]), (found, done)
        assert len(buffer) == ROWS_OF_LARGE
        buffer.sample()
    assert caught  # at least one of them was in the middle of it
    buffer.dumps(path)  # what the killed one left behind is cleaned up
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint"]
    other = large()
    other.loads(path)
    assert equal(other[:], buffer[:])
