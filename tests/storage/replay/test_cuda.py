"""What happens on a CUDA device equals what happens on the CPU. Skipped on machines without one (CI has none)."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading

import pytest
import rbdata
import torch
from rbdata.errors import SchemaError, UsageError
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict
from torch.testing import assert_close

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
DEVICE = torch.device("cuda", 0)
LENGTHS = [40, 3, 25, 1, 60, 17]


@pytest.fixture(scope="module", params=["flat", "raw", "zstd"])
def folder(request, tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("cuda"), make_episodes(LENGTHS), request.param)


def steps(count, start=0):
    """Steps ``start, start + 1, ...`` of episodes of ten, on the CPU."""
    number = torch.arange(start, start + count)
    done = (number % 10 == 9)[:, None]
    following = {
        "observation": torch.stack([number + 1, -number], 1).float(),
        "reward": number[:, None].float(),
        "done": done,
        "terminated": done,
        "truncated": torch.zeros_like(done),
    }
    leaves = {
        "observation": torch.stack([number, -number], 1).float(),
        "action": number[:, None] % 4,
        "episode": number // 10,
        "td_error": (number % 7 + 1).double(),
    }
    return TensorDict({**leaves, "next": TensorDict(following, [count])}, [count])


def same(found, expected, device=DEVICE):
    """The batches are equal, and ``found`` lies on the device."""
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    for key in expected.keys(True, True):
        assert found[key].device == torch.device(device), key
        assert_close(found[key].cpu(), expected[key].cpu(), rtol=0, atol=0, msg=str(key))


READINGS = {
    "plain": {"batch_size": 16},
    "frames": {"batch_size": 16, "frame_stack": 3},
    "n_step": {"batch_size": 16, "n_step": 3, "gamma": 0.9},
    "slices": {"batch_size": 16, "slice_len": 4, "strict_length": False},
    "padded": {"batch_size": 16, "slice_len": 4, "strict_length": False, "pad_output": True},
    "pass": {"batch_size": 16, "replacement": False},
    "priorities": {"batch_size": 16, "alpha": 0.6, "beta": 0.4},
    "goals": {"batch_size": 16, "goals": rbdata.Goals(goal_key="observation")},
    "normalized": {
        "batch_size": 16,
        "normalize": "observation",
        "reward_scale": 0.5,
        "extra": ["step", "return_to_go"],
    },
}


@pytest.mark.parametrize("prefetch, pin_memory", [(None, False), (0, True), (3, True)])
@pytest.mark.parametrize("reading", READINGS)
def test_batches_equal_those_of_the_cpu(folder, reading, prefetch, pin_memory):
    arguments = READINGS[reading]
    here = rbdata.load(folder, seed=1, **arguments)
    there = rbdata.load(folder, seed=1, device=DEVICE, prefetch=prefetch, pin_memory=pin_memory, **arguments)
    for _ in range(12):
        same(there.sample(), here.sample())
    there.close()


def test_an_iteration_and_its_state(folder):
    here = rbdata.load(folder, seed=1, batch_size=16, replacement=False)
    there = rbdata.load(folder, seed=1, batch_size=16, replacement=False, device="cuda")
    for found, expected in zip(there, here, strict=True):
        same(found, expected)
    there.sample()
    again = rbdata.load(folder, seed=5, batch_size=16, replacement=False, device="cuda")
    again.load_state_dict(there.state_dict())
    same(again.sample(), there.sample().cpu())


def test_prefetched_batches_survive_a_busy_allocator(folder):
    """Memory that a batch leaves behind is given to the next one in another stream: values must not be overwritten."""
    here = rbdata.load(folder, seed=3, batch_size=64)
    there = rbdata.load(folder, seed=3, batch_size=64, device="cuda", prefetch=4, pin_memory=True)
    work = torch.rand(1500, 1500, device=DEVICE)
    found = []
    for _ in range(200):
        batch = there.sample()
        for _ in range(3):
            work = (work @ work).clamp(0, 1)
        found.append(batch["observation"].float().sum(tuple(range(1, batch["observation"].ndim))))
        del batch
    for sums in found:
        values = here.sample()["observation"].float()
        assert_close(sums.cpu(), values.sum(tuple(range(1, values.ndim))), rtol=1e-4, atol=1e-3)
    there.close()


def test_mixtures_survive_a_busy_allocator(tmp_path):
    """As above, for batches of several datasets, which the caller's thread joins and moves."""
    places = [
        write_dataset(tmp_path / str(number), make_episodes([30, 20], seed=number), "flat") for number in range(2)
    ]
    here = rbdata.load(places, batch_size=64, seed=3)
    there = rbdata.load(places, batch_size=64, seed=3, device="cuda", pin_memory=True)
    work = torch.rand(1500, 1500, device=DEVICE)
    found = []
    for _ in range(200):
        for _ in range(5):
            work = (work @ work).clamp(0, 1)
        found.append(there.sample()["observation"].sum(1) + work[0, 0] * 0)
    for sums in found:
        assert_close(sums.cpu(), here.sample()["observation"].sum(1))


def test_threads_with_streams_of_their_own(folder):
    buffer = rbdata.load(folder, batch_size=32, device="cuda", prefetch=2)
    rows = rbdata.load(folder, batch_size=32)
    errors = []

    def draw():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                batch = buffer.sample()
                try:
                    same(batch.select("observation"), rows[batch["index"].cpu()].select("observation"))
                except AssertionError as error:
                    errors.append(error)

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    buffer.close()


STORAGES = {
    "tensor": lambda device: rbdata.LazyTensorStorage(50, device=device),
    "list": lambda device: rbdata.ListStorage(50, device=device),
}
SAMPLERS = {
    "random": rbdata.RandomSampler,
    "pass": rbdata.SamplerWithoutReplacement,
    "prioritized": lambda: rbdata.PrioritizedSampler(50, 0.7, 0.5),
    "slices": lambda: rbdata.SliceSampler(slice_len=4, traj_key="episode", strict_length=False),
    "prioritized slices": lambda: rbdata.PrioritizedSliceSampler(
        50, 0.7, 0.5, slice_len=4, traj_key="episode", strict_length=False
    ),
}


def buffers(storage, sampler, **arguments):
    """The same buffer on the CPU and on the device."""
    return [
        rbdata.TensorDictReplayBuffer(
            storage=STORAGES[storage](device), sampler=SAMPLERS[sampler](), batch_size=16, seed=2, **arguments
        )
        for device in ("cpu", DEVICE)
    ]


@pytest.mark.parametrize("given", ["cpu", "cuda"])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("storage", STORAGES)
def test_storages_on_the_device(storage, sampler, given):
    priority = {"priority_key": "td_error"} if "prioritized" in sampler else {}
    here, there = buffers(storage, sampler, **priority)
    for start in (0, 30, 60):  # around the ring
        one, other = here.extend(steps(30, start)), there.extend(steps(30, start).to(given))
        assert_close(other.cpu(), one)
        for _ in range(3):
            expected, found = here.sample(), there.sample()
            same(
                found.select("observation", "action", "episode", "next"),
                expected.select("observation", "action", "episode", "next"),
            )
            assert_close(found["index"].cpu(), expected["index"])
            if priority:
                here.update_tensordict_priority(expected)
                there.update_tensordict_priority(found)
    for index in (3, slice(2, 9), [1, 5], torch.tensor([4, 2]), torch.tensor([4, 2], device=DEVICE), -1):
        rows = index.cpu() if isinstance(index, torch.Tensor) else index
        same(there[index].select("observation"), here[rows].select("observation"))
    there.add(steps(1, 7)[0].to(given))
    here.add(steps(1, 7)[0])
    assert len(there) == len(here) == 50


@pytest.mark.parametrize("arguments", [{"frame_stack": 3}, {"n_step": 3}], ids=str)
def test_windows_of_a_storage_on_the_device(arguments):
    here, there = buffers("tensor", "random", **arguments)
    for start in (0, 30, 60):
        here.extend(steps(30, start))
        there.extend(steps(30, start).to(DEVICE))
        for _ in range(3):
            expected, found = here.sample(), there.sample()
            same(found.select("observation", "next"), expected.select("observation", "next"))


def test_batches_of_storages_elsewhere():
    """From the device to the CPU, and prefetched from the device to the device."""
    for storage_device, device, prefetch in ((DEVICE, "cpu", 0), (DEVICE, DEVICE, 3), ("cpu", DEVICE, 3)):
        here = rbdata.ReplayBuffer(storage=rbdata.LazyTensorStorage(50), batch_size=8, seed=4)
        there = rbdata.ReplayBuffer(
            storage=rbdata.LazyTensorStorage(50, device=storage_device),
            batch_size=8,
            seed=4,
            device=device,
            prefetch=prefetch,
        )
        here.extend(steps(60))
        there.extend(steps(60))
        for _ in range(5):
            same(there.sample(), here.sample(), device)
        there.close()


def test_batches_follow_the_program_without_prefetch(folder):
    """The same program gives the same batches on the device: by default nothing that may change is drawn ahead."""
    scale = {"observation": 1.0}

    def scaled(batch):
        batch["observation"] = batch["observation"] * scale["observation"]
        return batch

    def buffers(device):
        more = {} if device is None else {"device": device}
        ring = rbdata.TensorDictReplayBuffer(storage=rbdata.LazyTensorStorage(20), batch_size=8, seed=1, **more)
        ring.extend(steps(20))
        return (
            ring,
            rbdata.load(folder, batch_size=8, seed=1, **more),
            rbdata.load(folder, batch_size=8, seed=1, **more),
        )

    here, there = buffers(None), buffers(DEVICE)
    for turn in range(4):
        scale["observation"] = 1.0 + turn
        for expected, found in zip(here, there):
            same(found.sample(), expected.sample())
        for ring, _, changed in (here, there):
            if turn == 0:  # after a batch was made ahead
                changed.append_transform(scaled)
            ring.extend(steps(5, 100 * turn))
            ring[2] = steps(1, 7777)[0]


@pytest.mark.parametrize("device", [None, "cpu", "cuda"])
@pytest.mark.parametrize("prefetch", [None, 2])
def test_leaves_that_a_transform_made_on_the_device(folder, device, prefetch):
    """Memory of the device is not pinned; pinned memory that the transform uses again is copied before that."""
    kept = torch.zeros(8, pin_memory=True)
    weights = torch.arange(2.0, device=DEVICE)

    def computed(batch):
        kept.copy_(batch["next", "reward"][:, 0])
        batch["kept"] = kept
        batch["value"] = batch["observation"].float().flatten(1)[:, :1].to(DEVICE) * weights
        return batch

    arguments = {} if device is None else {"device": device}
    if prefetch is not None:
        arguments["prefetch"] = prefetch
    buffer = rbdata.load(folder, batch_size=8, seed=1, transform=computed, pin_memory=True, **arguments)
    plain = rbdata.load(folder, batch_size=8, seed=1)
    work = torch.rand(2000, 2000, device=DEVICE)
    found = []
    for _ in range(12):
        for _ in range(10):
            work = (work @ work).clamp(0, 1)
        batch = buffer.sample()
        if device is None:
            assert batch["observation"].is_pinned()
        found.append(batch if device == "cuda" else batch.clone())
    for batch in found:
        expected = plain.sample()
        assert_close(batch["kept"].cpu(), expected["next", "reward"][:, 0])
        value = expected["observation"].float().flatten(1)[:, :1] * torch.arange(2.0)
        assert_close(batch["value"].cpu(), value)
        if device is None:
            assert batch["value"].device == DEVICE
        else:
            assert {leaf.device.type for leaf in batch.values(True, True)} == {device}
    buffer.close()


def test_priorities_given_on_the_device():
    here = rbdata.PrioritizedReplayBuffer(
        alpha=0.7, beta=0.5, storage=rbdata.LazyTensorStorage(40), batch_size=16, seed=0
    )
    there = rbdata.PrioritizedReplayBuffer(
        alpha=0.7, beta=0.5, storage=rbdata.LazyTensorStorage(40, device=DEVICE), batch_size=16, seed=0
    )
    here.extend(steps(40))
    there.extend(steps(40).to(DEVICE))
    index = torch.tensor([3, 4, 30])
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        priority = torch.tensor([2, 50, 1], dtype=dtype)
        here.update_priority(index, priority)
        there.update_priority(index.to(DEVICE), priority.to(DEVICE))
        expected, info = here.sample(return_info=True)
        found, its_info = there.sample(return_info=True)
        same(found, expected)
        assert_close(torch.as_tensor(its_info["priority_weight"]).cpu(), torch.as_tensor(info["priority_weight"]))
        loss = (found["observation"].sum(1) * torch.as_tensor(its_info["priority_weight"]).to(DEVICE)).mean()
        assert torch.isfinite(loss)


def test_assignments():
    here, there = buffers("tensor", "random")
    here.extend(steps(50))
    there.extend(steps(50))
    for index in (3, slice(2, 9), torch.tensor([1, 4])):
        rows = steps(50, 100)[index]
        here[index] = rows
        there[index] = rows.to(DEVICE)
    mask = torch.arange(50) % 3 == 0
    here[mask] = steps(50, 200)[mask]
    there[mask.to(DEVICE)] = steps(50, 200)[mask]
    here["action"] = torch.arange(50)[:, None]
    there["action"] = torch.arange(50, device=DEVICE)[:, None]
    names = ["observation", "action", "next"]
    same(there[:].select(*names), here[:].select(*names))


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("sampler", ["random", "prioritized"])
def test_states_and_checkpoints(tmp_path, storage, sampler):
    _, buffer = buffers(storage, sampler)
    buffer.extend(steps(40).to(DEVICE))
    if sampler == "prioritized":
        buffer.update_priority(torch.arange(40, device=DEVICE), torch.arange(1, 41, device=DEVICE))
    buffer.dumps(tmp_path / "saved")
    torch.save(buffer.state_dict(), tmp_path / "state.pt")
    buffer.sample()
    for device in (DEVICE, torch.device("cpu")):
        loaded, told = (
            rbdata.TensorDictReplayBuffer(
                storage=STORAGES[storage](device), sampler=SAMPLERS[sampler](), batch_size=16, seed=9
            )
            for _ in range(2)
        )
        loaded.loads(tmp_path / "saved")
        told.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=False))
        same(loaded[:].select("observation"), buffer[:].select("observation"), device)
        same(told[:].select("observation"), buffer[:].select("observation"), device)
        expected = loaded.sample()
        same(told.sample(), expected, device)


def test_a_checkpoint_is_read_without_the_device(tmp_path):
    _, buffer = buffers("tensor", "random")
    buffer.extend(steps(40).to(DEVICE))
    buffer.dumps(tmp_path / "saved")
    program = (
        "import rbdata, torch, sys\n"
        "assert not torch.cuda.is_available()\n"
        "buffer = rbdata.TensorDictReplayBuffer(storage=rbdata.LazyTensorStorage(50), batch_size=4)\n"
        "buffer.loads(sys.argv[1])\n"
        "assert buffer[:]['observation'][:, 0].tolist() == list(range(40)), buffer[:]\n"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "saved")], check=True, env=environment, timeout=300)


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_copies(way):
    _, buffer = buffers("tensor", "random")
    buffer.extend(steps(40))
    other = pickle.loads(pickle.dumps(buffer)) if way == "pickle" else copy.deepcopy(buffer)
    same(other.sample(), buffer.sample())


def test_own_data_from_the_device(tmp_path):
    data = {
        "observation": torch.rand(30, 4, device=DEVICE),
        "action": torch.arange(30, device=DEVICE),
        "reward": torch.rand(30, device=DEVICE),
        "terminated": torch.arange(30, device=DEVICE) % 10 == 9,
    }
    made = rbdata.open_dataset(rbdata.from_arrays(data, "my/device", root=tmp_path))
    assert_close(torch.as_tensor(made["observation"][:]), data["observation"].cpu()[: len(made)])

    def episodes():
        for number in range(3):
            rows = slice(10 * number, 10 * number + 10)
            yield {
                "observation": torch.rand(11, 4, device=DEVICE),
                "action": data["action"][rows],
                "reward": data["reward"][rows],
                "terminated": data["terminated"][rows],
            }

    streamed = rbdata.open_dataset(rbdata.from_episodes(episodes(), "my/streamed", root=tmp_path))
    assert len(streamed) == 30
    assert_close(torch.as_tensor(streamed["action"][:]).flatten(), data["action"].cpu())
    record = steps(30).to(DEVICE).exclude("episode", "td_error")
    from_buffer = rbdata.open_dataset(rbdata.from_arrays(record, "my/ted", root=tmp_path))
    assert_close(torch.as_tensor(from_buffer["observation"][:]), steps(30)["observation"])


def on_the_device(batch):
    """A batch function that computes on the device."""
    batch["observation"] = (batch["observation"].float().cuda() * 2 + 1).cpu()
    return batch


def left_on_the_device(batch):
    batch["observation"] = batch["observation"].float().cuda() * 2 + 1
    return batch


@pytest.mark.parametrize("procs", [1, 2])
def test_preprocess(folder, tmp_path, procs):
    torch.zeros(1, device=DEVICE)  # CUDA is in use here before workers start
    with pytest.raises(SchemaError, match="on the device cuda"):
        rbdata.preprocess(folder, left_on_the_device, dest="my/left", root=tmp_path, procs=procs)
    made = rbdata.open_dataset(rbdata.preprocess(folder, on_the_device, dest="my/made", root=tmp_path, procs=procs))
    source = rbdata.open_dataset(folder)
    assert_close(
        torch.as_tensor(made["observation"][:]).float(), torch.as_tensor(source["observation"][:]).float() * 2 + 1
    )


def test_a_policy_on_the_device(tmp_path):
    weight = torch.full((1,), 1.5, device=DEVICE)

    def policy(observation):
        return (weight * torch.as_tensor(observation[:1], device=DEVICE).sign()).clamp(-2, 2)

    recorded = rbdata.open_dataset(
        rbdata.record("Pendulum-v1", policy, name="recorded", steps=60, root=tmp_path, seed=0)
    )
    action = torch.as_tensor(recorded["action"][:]).flatten()
    assert_close(action.abs(), torch.full_like(action, 1.5))


def double(batch):
    batch["observation"] = batch["observation"] * 2
    return batch


def test_transforms_run_before_the_copy_and_modules_where_they_are(folder):
    plain = rbdata.load(folder, batch_size=16, seed=1)
    buffer = rbdata.load(folder, batch_size=16, seed=1, device="cuda", prefetch=2, transform=double)
    for _ in range(4):
        same(buffer.sample().select("observation"), double(plain.sample()).select("observation"))
    buffer.close()


def test_workers_of_a_loader_cannot_use_the_device(folder):
    """A worker is a forked process, which cannot use CUDA once its parent has."""
    torch.zeros(1, device=DEVICE)
    buffer = rbdata.load(folder, batch_size=16, seed=1, replacement=False, device="cuda")
    with pytest.raises(UsageError, match="forked process"):
        list(buffer.as_iterable().loader(num_workers=2))


def test_the_default_device_of_a_program(folder):
    plain = rbdata.load(folder, batch_size=16, seed=1, frame_stack=2)
    torch.set_default_device("cuda")
    try:
        there = rbdata.load(folder, batch_size=16, seed=1, frame_stack=2, device="cuda")
        for _ in range(4):
            same(there.sample(), plain.sample())
        buffer = rbdata.ReplayBuffer(storage=rbdata.LazyTensorStorage(50, device="cuda"), batch_size=8)
        buffer.extend(steps(40))
        assert buffer.sample()["observation"].is_cuda
    finally:
        torch.set_default_device(None)


def test_a_loader_pins(folder):
    loader = rbdata.load(folder, batch_size=16, seed=1).as_iterable().loader(num_workers=1, pin_memory=True)
    batch = next(iter(loader))
    assert batch["observation"].is_pinned()
    assert batch.to("cuda", non_blocking=True)["observation"].is_cuda


def test_a_generator_of_the_device_is_refused(folder):
    generator = torch.Generator(DEVICE).manual_seed(0)
    with pytest.raises(UsageError, match="drawn on the CPU"):
        rbdata.load(folder, batch_size=4, generator=generator)
    with pytest.raises(UsageError, match="drawn on the CPU"):
        rbdata.ReplayBufferEnsemble(rbdata.load(folder), rbdata.load(folder), batch_size=4, generator=generator)


def test_devices_that_are_not_there(folder):
    with pytest.raises(UsageError, match="cannot be used"):
        rbdata.load(folder, batch_size=4, device=f"cuda:{torch.cuda.device_count()}")
