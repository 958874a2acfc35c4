"""What TorchRL's tutorials and its page on collectors do with buffers, with ours in place of theirs.

The collector, the environments and the transforms are TorchRL's; the buffer, its parts and `split_trajectories` are of the
library that an example is given. `same` examples return what both libraries must agree on.
"""

from __future__ import annotations

import logging
import tempfile
import time

import pytest
import rbdata as ours
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

theirs = pytest.importorskip("torchrl.data")
pytest.importorskip("gymnasium")
from torchrl.collectors import Collector  # noqa: E402
from torchrl.collectors.utils import split_trajectories  # noqa: E402
from torchrl.envs import GymEnv, SerialEnv, StepCounter, TransformedEnv, transforms  # noqa: E402
from torchrl.modules import RandomPolicy  # noqa: E402

logging.getLogger("torchrl").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore")


def cart_pole() -> TransformedEnv:
    return TransformedEnv(GymEnv("CartPole-v1"), StepCounter())


def collector(env=None, *, frames: int = 100, batches: int = 1, **more) -> Collector:
    env = env or cart_pole()
    env.set_seed(0)
    torch.manual_seed(0)
    return Collector(env, RandomPolicy(env.action_spec), frames_per_batch=frames, total_frames=batches * frames, **more)


@pytest.fixture(scope="module")
def frames() -> TensorDict:
    """A hundred steps of CartPole, several episodes, the last one open."""
    return next(iter(collector()))


def names(batch: TensorDict) -> list[str]:
    return sorted(map(str, batch.keys(True, True)))


def consecutive(batch: TensorDict, slices: int) -> bool:
    ids, steps = batch["collector", "traj_ids"].view(slices, -1), batch["step_count"].view(slices, -1)
    return bool((ids.diff() == 0).all() and (steps.diff() == 1).all())


# --- data collection and storage ---------------------------------------------------------------------------------------


def collected_frames_on_disk(lib, frames):
    with tempfile.TemporaryDirectory() as folder:
        buffer = lib.ReplayBuffer(storage=lib.LazyMemmapStorage(max_size=1000, scratch_dir=f"{folder}/buffer"))
        rows = buffer.extend(frames).tolist()
        batch = buffer.sample(batch_size=30)
        return (
            rows,
            len(buffer),
            names(batch),
            batch.shape,
            bool((buffer[:]["observation"] == frames["observation"]).all()),
        )


def trajectories_are_split(lib, frames):
    split = ours.split_trajectories if lib is ours else split_trajectories
    padded = split(frames)
    lengths = padded["collector", "mask"].sum(-1).tolist()
    rewards = [padded["next", "reward"][i, :n].sum().item() for i, n in enumerate(lengths)]
    nested = split(frames, as_nested=True)
    shapes = padded.shape, split(frames, as_nested=False).shape, nested.batch_size, type(nested)
    return shapes, lengths, rewards, names(padded), padded["next", "done"].sum().item()


def slices_of_collected_frames(lib, frames):
    sampler = lib.SliceSampler(slice_len=4, end_key=("next", "done"))
    buffer = lib.ReplayBuffer(storage=lib.LazyTensorStorage(max_size=10_000), sampler=sampler, batch_size=32)
    buffer.extend(frames)
    batch, info = buffer.sample(return_info=True)
    return batch.shape, consecutive(batch, 8), info["next", "truncated"].sum().item() >= 8


def in_the_background(lib, frames):
    sampler = lib.SliceSampler(slice_len=4, end_key=("next", "done"))
    buffer = lib.ReplayBuffer(storage=lib.LazyTensorStorage(max_size=10_000), sampler=sampler)
    started = collector(frames=20, batches=20, replay_buffer=buffer)
    started.start()
    end = time.monotonic() + 600
    while len(buffer) < 60 and time.monotonic() < end:
        time.sleep(0.01)
    batch = buffer.sample(batch_size=32)
    started.async_shutdown()
    return batch.shape, consecutive(batch, 8), len(buffer) >= 60


# --- collectors and replay buffers ---------------------------------------------------------------------------------------


def flattened_by_a_transform(lib, frames):
    buffer = lib.ReplayBuffer(storage=lib.LazyTensorStorage(60), transform=lambda batch: batch.reshape(-1))
    for batch in collector(frames=20, batches=4):
        buffer.extend(batch)
    return len(buffer), names(buffer.sample(7))


def one_environment(lib, frames):
    sampler = lib.SliceSampler(num_slices=4, traj_key=("collector", "traj_ids"))
    buffer = lib.ReplayBuffer(storage=lib.LazyTensorStorage(200), sampler=sampler)
    for batch in collector(frames=20, batches=2):
        buffer.extend(batch)
    return len(buffer), consecutive(buffer.sample(12), 4)


def several_environments(lib, frames):
    sampler = lib.SliceSampler(num_slices=4, traj_key=("collector", "traj_ids"))
    buffer = lib.ReplayBuffer(storage=lib.LazyTensorStorage(200, ndim=2), sampler=sampler)
    for batch in collector(SerialEnv(2, cart_pole), frames=40, batches=2):
        buffer.extend(batch)
    ids, steps = (buffer[:]["collector", "traj_ids"], buffer[:]["step_count"])
    return len(buffer), tuple(ids.shape), tuple(steps.shape), consecutive(buffer.sample(12), 4)


def the_collector_writes(lib, frames):
    buffer = lib.ReplayBuffer(storage=lib.LazyTensorStorage(1000), batch_size=10)
    yielded = list(collector(frames=20, batches=3, replay_buffer=buffer))
    return yielded, len(buffer), buffer.write_count, buffer[:]["step_count"].flatten().tolist(), buffer.sample().shape


def whole_trajectories(lib, frames):
    sampler = lib.SliceSampler(slice_len=4, end_key=("next", "done"))
    buffer = lib.ReplayBuffer(storage=lib.LazyTensorStorage(1000), sampler=sampler, batch_size=16)
    for _ in collector(frames=30, batches=2, replay_buffer=buffer, trajs_per_batch=2):
        pass
    rows = buffer[:]
    starts = rows["step_count"].flatten() == 0
    return len(buffer) > 0, bool(rows["next", "done"][-1]), int(starts.sum()) == int(rows["next", "done"].sum())


# --- memory, recurrent policies, multi-step -----------------------------------------------------------------------------


def compact_observations(lib, frames):
    compact = next(iter(collector(compact_obs=True)))
    sampler = lib.SliceSampler(slice_len=5, traj_key=("collector", "traj_ids"))
    with tempfile.TemporaryDirectory() as folder:
        storages = lib.LazyTensorStorage(200), lib.LazyMemmapStorage(max_size=1_000, scratch_dir=folder)
        seen = []
        for storage in storages:
            buffer = lib.ReplayBuffer(
                storage=storage, sampler=sampler, transform=transforms.NextStateReconstructor(), batch_size=40
            )
            buffer.extend(compact)
            batch = buffer.sample().reshape(8, 5)
            inner = (batch["next", "observation"][:, :-1] == batch["observation"][:, 1:]).all()
            seen.append((bool(inner), bool(batch["next", "observation"][:, -1].isnan().all()), names(batch)))
        return seen


def differences_of_observations(lib, frames):
    env = TransformedEnv(GymEnv("CartPole-v1"), transforms.NextObservationDelta())
    rows = next(iter(collector(env)))
    buffer = lib.ReplayBuffer(
        storage=lib.LazyTensorStorage(200),
        sampler=lib.SliceSampler(slice_len=5, traj_key=("collector", "traj_ids")),
        transform=transforms.NextObservationDelta(in_keys=["observation"]),
        batch_size=40,
    )
    buffer.extend(rows)
    batch = buffer.sample()
    return names(rows), names(batch), bool(batch["next", "observation"].isnan().any())


def slices_for_a_recurrent_policy(lib, frames):
    from torchrl.modules import LSTMModule, set_recurrent_mode

    lstm = LSTMModule(
        input_size=4,
        hidden_size=3,
        in_keys=["observation", "h", "c"],
        out_keys=["features", ("next", "h"), ("next", "c")],
        python_based=True,
    )
    n = len(frames)
    rows = frames.clone()
    rows.update({"h": torch.zeros(n, 1, 3), "c": torch.zeros(n, 1, 3), "is_init": rows["step_count"] == 0})
    buffer = lib.TensorDictReplayBuffer(
        storage=lib.LazyTensorStorage(max_size=1024),
        sampler=lib.SliceSampler(slice_len=8, strict_length=False),
        batch_size=32,
    )
    buffer.extend(rows)
    batch = buffer.sample()
    with set_recurrent_mode(True), torch.no_grad():
        outputs = lstm(batch.clone())["features"]
    starts = batch["is_init"].flatten()
    marked = bool(starts[0] and starts.sum() >= 4)
    first = lstm(batch[0].clone())["features"]
    return marked, outputs.shape == (len(batch), 3), bool(torch.allclose(outputs[0], first, atol=1e-6))


def sampled_on_the_way_to_a_loss(lib, frames):
    buffer = lib.TensorDictReplayBuffer(
        storage=lib.LazyMemmapStorage(1000),
        sampler=lib.SliceSampler(slice_len=10, end_key=("next", "done"), cache_values=True, strict_length=False),
        batch_size=40,
        prefetch=3,
        transform=lambda batch: batch.to("cpu"),
    )
    value = TensorDictModule(torch.nn.Linear(4, 1), in_keys=["observation"], out_keys=["value"])
    losses = []
    for number, _ in enumerate(collector(frames=20, batches=3, storing_device="cpu", replay_buffer=buffer)):
        if number:
            batch = buffer.sample()
            # Collectors that earlier examples left may have left gradients off: generators end in any order.
            with torch.enable_grad():
                losses.append((value(batch)["value"] - batch["next", "reward"]).pow(2).mean())
            losses[-1].backward()
    return len(losses), bool(torch.stack(losses).isfinite().all())


def multi_step_after_collection(lib, frames):
    rows = next(iter(collector(frames=10, postproc=lib.MultiStep(n_steps=4, gamma=0.99))))
    return rows["step_count"].tolist(), rows["next", "step_count"].tolist(), rows["next", "reward"].flatten().tolist()


def multi_step_on_the_way_in(lib, frames):
    multi_step = transforms.MultiStepTransform(n_steps=3, gamma=0.95)
    buffer = lib.ReplayBuffer(storage=lib.LazyTensorStorage(100, ndim=2), transform=multi_step)
    env = TransformedEnv(SerialEnv(2, lambda: GymEnv("CartPole-v1")), StepCounter())
    env.set_seed(0)
    torch.manual_seed(0)
    start = env.reset()
    for _ in range(2):
        rows = env.rollout(max_steps=12, break_when_any_done=False, tensordict=start, auto_reset=False)
        buffer.extend(rows)
        start = rows[..., -1]["next"]
    rows = buffer[:]
    return rows["step_count"].squeeze(-1).tolist(), rows["next", "step_count"].squeeze(-1).tolist()


def stacks_of_frames_on_the_way_out(lib, frames):
    stack = transforms.CatFrames(dim=-1, N=4, in_keys=["observation", ("next", "observation")])
    buffer = lib.TensorDictReplayBuffer(storage=lib.LazyTensorStorage(100), transform=stack, batch_size=1)
    buffer.add(frames[:10])
    batch = buffer.sample(1)
    return batch.shape, batch["observation"].flatten().tolist(), batch["next", "observation"].flatten().tolist()


def pixels_on_the_way_out(lib, frames):
    both = ["pixels", ("next", "pixels")]
    floats = ["small", ("next", "small")]
    chain = transforms.Compose(
        transforms.ToTensorImage(in_keys=both, out_keys=floats), transforms.GrayScale(in_keys=floats)
    )
    pixels = torch.arange(10 * 8 * 8 * 3, dtype=torch.uint8).view(10, 8, 8, 3)
    rows = TensorDict({"pixels": pixels, "next": TensorDict({"pixels": pixels.flip(0)}, [10])}, [10])
    buffer = lib.TensorDictReplayBuffer(storage=lib.LazyTensorStorage(1000), transform=chain, batch_size=16)
    buffer.extend(rows)
    batch = buffer.sample()
    return batch["small"].shape, batch["next", "small"].dtype, batch["pixels"].dtype, names(buffer.storage[:])


def returns_on_the_way_in(lib, frames):
    buffer = lib.ReplayBuffer(
        storage=lib.LazyTensorStorage(100), transform=transforms.Reward2GoTransform(gamma=0.5, out_keys=["to_go"])
    )
    done = torch.tensor([[False, False, True], [True, False, True]])[..., None]
    buffer.extend(TensorDict({"next": {"done": done, "reward": torch.ones(2, 3, 1)}}, [2, 3]))
    return buffer[:]["to_go"].squeeze(-1).tolist(), buffer.sample(1).shape


def burn_in_on_the_way_out(lib, frames):
    from torchrl.modules import GRUModule

    gru = GRUModule(
        input_size=3,
        hidden_size=2,
        in_keys=["observation", "hidden"],
        out_keys=["features", ("next", "hidden")],
        default_recurrent_mode=True,
    )
    buffer = lib.TensorDictReplayBuffer(storage=lib.LazyMemmapStorage(2), batch_size=1)
    buffer.append_transform(transforms.BurnInTransform(modules=[gru], burn_in=5))
    rows = {"observation": torch.ones(2, 10, 3), "hidden": torch.zeros(2, 10, 1, 2), "is_init": torch.zeros(2, 10, 1)}
    buffer.extend(TensorDict(rows, [2, 10]))
    batch = buffer.sample(1)
    return batch.shape, bool(batch["hidden"].abs().sum() > 0)


def ted_hooks_over_a_rollout(lib, frames):
    with tempfile.TemporaryDirectory() as folder:
        buffer = lib.ReplayBuffer(storage=lib.LazyMemmapStorage(100))
        buffer.register_save_hook(lib.TED2Flat())
        buffer.extend(frames)
        buffer.dumps(folder)
        flat = TensorDict.load_memmap(f"{folder}/storage")
        other = lib.ReplayBuffer(storage=lib.LazyMemmapStorage(100))
        other.register_load_hook(lib.Flat2TED())
        other.load(folder)
        same = bool((buffer[:] == other[:]).all())
        return names(flat), flat["observation"].tolist(), flat["done"].flatten().tolist(), same


SHARED = {"cart_pole", "collector", "frames", "names", "consecutive"}
EXAMPLES = [value for value in list(globals().values()) if getattr(value, "__module__", None) == __name__]
EXAMPLES = [example for example in EXAMPLES if getattr(example, "__name__", "frames") not in SHARED]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.__name__)
def test_example(example, frames):
    assert example(ours, frames) == example(theirs, frames)
