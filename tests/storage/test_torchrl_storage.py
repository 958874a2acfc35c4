"""A dataset of compressed frames in TorchRL's own buffers."""

from __future__ import annotations

import pytest
import rbdata
import torch
from rbdata.errors import ReadOnlyError
from storage_tools import make_episodes, write_dataset

torchrl = pytest.importorskip("torchrl.data")

LENGTHS = [5, 9, 30]
DONE = {"end_key": ("next", "done"), "cache_values": True}
SAMPLERS = {
    "random": torchrl.RandomSampler,
    "without replacement": torchrl.SamplerWithoutReplacement,
    "slices": lambda: torchrl.SliceSampler(slice_len=4, **DONE),
    "short slices": lambda: torchrl.SliceSampler(slice_len=8, strict_length=False, **DONE),
    "slices without replacement": lambda: torchrl.SliceSamplerWithoutReplacement(slice_len=4, end_key=("next", "done")),
}


@pytest.fixture(scope="module", params=["zstd", "raw"])
def dataset(request, tmp_path_factory):
    episodes = make_episodes(LENGTHS, shape=(20, 20, 3), dtype="uint8")
    return rbdata.open_dataset(write_dataset(tmp_path_factory.mktemp("torchrl"), episodes, request.param))


def made(dataset, sampler, kind=torchrl.TensorDictReplayBuffer, **options):
    storage, writer = rbdata.torchrl_storage(dataset), torchrl.ImmutableDatasetWriter()
    return kind(storage=storage, sampler=SAMPLERS[sampler](), writer=writer, **options)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("kind", [torchrl.ReplayBuffer, torchrl.TensorDictReplayBuffer])
def test_batches_are_rows_of_the_dataset(dataset, sampler, kind):
    buffer = made(dataset, sampler, kind, batch_size=8)
    for _ in range(5):
        batch, info = buffer.sample(return_info=True)
        index = torch.as_tensor(info["index"][0] if isinstance(info["index"], tuple) else info["index"]).reshape(-1)
        rows = dataset[index]
        for key in ("observation", "action", ("next", "observation"), ("next", "reward")):
            assert torch.equal(batch[key], rows[key])
        if "slices" in sampler:
            episode = dataset.episode_of(index)
            cuts = (index.diff() != 1).nonzero().flatten() + 1
            for piece, steps in zip(episode.tensor_split(cuts), index.tensor_split(cuts)):
                assert len(piece.unique()) == 1 or len(steps) > 4  # two slices may lie beside each other


def test_a_pass_has_every_step_once(dataset):
    buffer = made(dataset, "without replacement", batch_size=10)
    drawn = torch.cat([batch["index"] for batch in buffer])
    assert sorted(drawn.tolist()) == list(range(len(dataset)))


def test_ensembles_and_single_rows(dataset):
    members = [made(dataset, "random") for _ in range(2)]
    ensemble = torchrl.ReplayBufferEnsemble(*members, sample_from_all=True, batch_size=8)
    batch = ensemble.sample()
    assert batch.batch_size == (2, 4)
    assert torch.equal(batch["observation"][0], dataset[batch["index", "index"][0]]["observation"])
    buffer = members[0]
    assert len(buffer) == len(dataset) and torch.equal(buffer[3]["observation"], dataset[3]["observation"])
    assert torch.equal(buffer[2:5]["action"], dataset["action"][2:5])


def test_nothing_is_written(dataset):
    row = dataset[:3]
    with pytest.raises(RuntimeError, match="doesn't allow writing"):
        made(dataset, "random").extend(row)
    with pytest.raises(ReadOnlyError, match="doesn't allow writing"):
        torchrl.TensorDictReplayBuffer(storage=rbdata.torchrl_storage(dataset.path)).extend(row)
