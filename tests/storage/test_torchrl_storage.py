"""A dataset of compressed frames in TorchRL's own buffers."""

from __future__ import annotations

import pytest
import rbdata
import torch
from rbdata.errors import DatasetNotFoundError, ReadOnlyError, UsageError
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


@pytest.mark.parametrize("sampler", ["random", "without replacement", "slices"])
@pytest.mark.parametrize("files", [False, True])
def test_a_checkpoint_goes_on_where_it_was(dataset, sampler, files, tmp_path):
    """It has the place in the order of batches; the data stay in the dataset."""
    buffer, other = (made(dataset, sampler, batch_size=8) for _ in range(2))
    buffer.set_rng(torch.Generator().manual_seed(0))
    buffer.sample()
    if files:
        buffer.dumps(tmp_path / "checkpoint")
        other.loads(tmp_path / "checkpoint")
        assert [one.name for one in (tmp_path / "checkpoint" / "storage").iterdir()] == ["dataset.json"]
    else:
        torch.save(buffer.state_dict(), tmp_path / "state.pt")
        other.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert torch.equal(other.sample()["index"], buffer.sample()["index"])
    assert dataset.id in str(buffer) and "allow" not in str(buffer)


def test_the_state_of_another_dataset_is_refused(dataset):
    state = made(dataset.select(steps=slice(0, 20)), "random").state_dict()
    with pytest.raises(UsageError, match=r"with 20 steps, not to"):
        made(dataset, "random").load_state_dict(state)


def test_given_by_id_by_path_and_open(dataset, tmp_path):
    rows = torch.arange(6.0).view(6, 1)
    arrays = {"observation": rows, "action": rows, "reward": rows, "terminated": rows == 5}
    path = rbdata.from_arrays(arrays, "my/six", root=tmp_path)
    for given, where in (("my/six", {"root": tmp_path}), (path, {}), (rbdata.open_dataset(path), {})):
        assert len(rbdata.torchrl_storage(given, **where)) == 6
    with pytest.raises(DatasetNotFoundError, match="my/seven"):
        rbdata.torchrl_storage("my/seven", root=tmp_path)
    with pytest.raises(UsageError, match="root is for ids"):
        rbdata.torchrl_storage(dataset, root=tmp_path)
