"""Ensembles: which members are drawn, states, datasets beside memory, and what is refused."""

from __future__ import annotations

import contextlib
import time

import pytest
import rbdata
import torch
from rbdata.errors import RbdataError, ReadOnlyError, SamplingError, SchemaError, UsageError
from rbdata.storage.replay import (
    CompressedListStorage,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SamplerEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    StorageEnsemble,
    TensorDictReplayBuffer,
    WriterEnsemble,
)
from replay_tools import chi_square, equal, rollout
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("buffer"), make_episodes([10, 30, 7, 20]))


def members(*sizes):
    buffers = []
    for number, size in enumerate(sizes):
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(size), batch_size=4, seed=number)
        buffer.extend(rollout([size], first=1000 * number))
        buffers.append(buffer)
    return buffers


def test_members_are_drawn_by_p():
    ensemble = ReplayBufferEnsemble(*members(10, 20, 30), p=[1, 3, 6], batch_size=20, num_buffer_sampled=10, seed=0)
    counts = torch.zeros(3)
    for _ in range(500):
        batch = ensemble.sample()
        assert batch.batch_size == (10, 2)
        ids = batch["index", "buffer_ids"]
        assert bool((batch["action"] // 1000 == ids).all())
        assert bool((batch["action"] % 1000 == batch["index", "index"]).all())
        counts += torch.bincount(ids[:, 0], minlength=3)
    assert chi_square(counts, torch.tensor([0.1, 0.3, 0.6]) * 5000) < 5


def test_ensembles_repeat_and_restore(tmp_path):
    make = lambda seed: ReplayBufferEnsemble(*members(10, 20), batch_size=8, seed=seed)  # noqa: E731
    first, second, third = make(3), make(3), make(4)
    assert all(equal(first.sample(), second.sample()) for _ in range(10))
    third.load_state_dict(first.state_dict())
    first.dumps(tmp_path / "ensemble")
    fourth = make(9)
    fourth.loads(tmp_path / "ensemble")
    for _ in range(5):
        batch = first.sample()
        assert equal(batch, third.sample()) and equal(batch, fourth.sample())
    with pytest.raises(UsageError, match="2 members, the ensemble 1"):
        ReplayBufferEnsemble(*members(10), batch_size=4).loads(tmp_path / "ensemble")


def test_ensembles_of_datasets_and_memory(folder):
    dataset = rbdata.load(folder, seed=1).append_transform(lambda batch: batch.select("observation", "action"))
    live = TensorDictReplayBuffer(storage=LazyTensorStorage(30), seed=2)
    live.extend(TensorDict({"observation": torch.zeros(30, 4), "action": torch.full((30,), -1)}, [30]))
    ensemble = ReplayBufferEnsemble(dataset, live, sample_from_all=True, batch_size=32, collate_fn=torch.cat)
    with pytest.raises(Exception):  # noqa: B017  the members' indices differ in what they keep
        ReplayBufferEnsemble(dataset, live, sample_from_all=True, batch_size=31).sample()
    live.append_transform(lambda batch: batch.select("observation", "action"))
    assert ensemble.sample().batch_size == (32,)
    assert len(ensemble) == 2 and ensemble[1] is live and len(ensemble[:1]) == 1 and len(ensemble[0]) == 67


def test_ensemble_errors():
    pair = members(10, 20)
    for options in ({"p": [1]}, {"p": [0, 0]}, {"p": [-1, 2]}, {"p": [1, 1], "sample_from_all": True}):
        with pytest.raises(UsageError):
            ReplayBufferEnsemble(*pair, **options)
    with pytest.raises(UsageError, match="needs buffers"):
        ReplayBufferEnsemble()
    ensemble = ReplayBufferEnsemble(*pair, batch_size=5)
    with pytest.raises(SamplingError, match="divided"):
        ensemble.sample()
    with pytest.raises(ReadOnlyError):
        ensemble.extend(rollout([3]))
    with pytest.raises(UsageError) as caught:
        ReplayBufferEnsemble(ensemble, pair[0])
    assert "ensemble.buffers" in str(caught.value.hint)
    with pytest.raises(TypeError, match="colour"):
        ReplayBufferEnsemble(*pair, colour="red")  # type: ignore[call-arg]


def test_members_of_unlike_keys_give_a_lazy_stack():
    """As in TorchRL: what all members have can be read of the whole, what only some have of their parts."""
    pair = members(10, 20)
    pair[1].append_transform(lambda batch: batch.exclude("action"))
    batch = ReplayBufferEnsemble(*pair, batch_size=4, sample_from_all=True).sample()
    assert batch.batch_size == (2, 2) and batch["index", "buffer_ids"].tolist() == [[0, 0], [1, 1]]
    assert "observation" in batch and "action" not in batch and "action" in batch[0]
    with pytest.raises(KeyError):
        batch["action"]


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
def test_members_rows_and_priorities(kind):
    """Batches say which member's row each record is, also those of plain buffers; priorities go back to the members."""
    buffers = [
        kind(storage=LazyTensorStorage(20), sampler=PrioritizedSampler(20, 1, 1, eps=0), seed=number)
        for number in range(3)
    ]
    for number, buffer in enumerate(buffers):
        buffer.extend(TensorDict({"x": torch.arange(20) + 100 * number}, [20]))
    ensemble = ReplayBufferEnsemble(*buffers, batch_size=12, seed=0)
    batch = ensemble.sample()
    assert torch.equal(batch["index", "buffer_ids"] * 100 + batch["index", "index"], batch["x"])
    ensemble.update_priority(batch["index"], (batch["x"] + 2).float())
    batch["td_error"] = (batch["x"] + 5).float()
    ensemble.update_tensordict_priority(batch)
    for value in batch["x"].flatten().tolist():
        sampler = buffers[value // 100].sampler
        assert isinstance(sampler, PrioritizedSampler)
        assert float(sampler.tree.values[value % 100]) == value + 5


def test_prefetching_members_changes_nothing():
    def make(**options) -> ReplayBufferEnsemble:
        return ReplayBufferEnsemble(*members(10, 20), batch_size=8, seed=3, **options)

    plain, ahead = make(), make(prefetch=2)
    assert all(equal(plain.sample(), ahead.sample()) for _ in range(30))
    with pytest.raises(UsageError, match="batch_size"):
        ReplayBufferEnsemble(*members(10), prefetch=2)
    for buffer in ahead.buffers:
        buffer.close()


def plain(size, first=0, **options) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=LazyTensorStorage(size), **options)
    buffer.extend(TensorDict({"x": torch.arange(size) + first, "episode": torch.arange(size) // 10}, [size]))
    return buffer


def test_an_ensemble_of_parts():
    """Made of storages, samplers and writers, as TorchRL's; indexed by member, and by member and row."""
    pair = [plain(10), plain(20, 100)]
    ensemble = ReplayBufferEnsemble(
        storages=StorageEnsemble(*(buffer.storage for buffer in pair), transforms=[None, lambda batch: batch + 1000]),
        samplers=SamplerEnsemble(*(buffer.sampler for buffer in pair), p=[1, 1], num_buffer_sampled=4),
        writers=WriterEnsemble(*(buffer.writer for buffer in pair)),
        batch_size=8,
        delayed_init=False,
    )
    batch, info = ensemble.sample(return_info=True)
    assert batch.batch_size == (4, 2) and equal(batch["index"], info["index"])
    assert torch.equal(batch["x"], batch["index", "index"] + 1100 * batch["index", "buffer_ids"])
    assert ensemble[1].storage is pair[1].storage and ensemble[:] is ensemble
    assert ensemble[:, :3]["x"].tolist() == [[0, 1, 2], [1100, 1101, 1102]] and ensemble[1, 2]["x"] == 1102
    some = ensemble[torch.tensor([1])]
    assert len(some) == 1 and some.num_buffer_sampled == 4 and bool((some.sample()["x"] >= 1100).all())
    for part, kind in ((ensemble.storage, StorageEnsemble), (ensemble.sampler, SamplerEnsemble)):
        assert isinstance(part, kind) and len(part) == 2 and isinstance(part[[-1, 0]], kind)
    assert ensemble.writer[0] is pair[0].writer and ensemble.write_count == 30
    assert [len(rows) for rows in ensemble.storage[:, :3]] == [3, 3]
    index, _ = ensemble.sampler.sample(ensemble.storage, 8)
    for (member, rows), own in zip(ensemble.storage.get(index), index):
        assert torch.equal(rows["x"], own["index"] + 1100 * member)
    for bad in (2, [0.5], [[0]]):
        with pytest.raises((IndexError, UsageError)):
            ensemble[bad]
    ensemble.sampler.p = [0, 1]
    assert bool((ensemble.sample()["index", "buffer_ids"] == 1).all())


def test_members_by_what_they_hold():
    """``p="sampleable"``: as many parts of a member as it has records, or starts of slices; none of one that is too small."""
    ensemble = ReplayBufferEnsemble(plain(10), plain(30), p="sampleable", num_buffer_sampled=100, seed=0)
    ensemble[0].empty()
    assert bool((ensemble.sample(100)["index", "buffer_ids"] == 1).all())
    ensemble[0].extend(plain(10)[:])
    ids = torch.cat([ensemble.sample(100)["index", "buffer_ids"][:, 0] for _ in range(10)])
    assert chi_square(torch.bincount(ids), torch.tensor([0.25, 0.75]) * 1000) < 4
    ensemble = ReplayBufferEnsemble(
        *(plain(size, sampler=SliceSampler(slice_len=10)) for size in (8, 20)), p="sampleable"
    )
    assert bool((ensemble.sample(20)["index", "buffer_ids"] == 1).all())
    ensemble[1].empty()
    with pytest.raises(SamplingError, match="no member"):
        ensemble.sample(20)


@pytest.mark.parametrize("of", ["ensemble", "members"])
def test_members_that_share_a_function_call_it_one_after_the_other(of):
    inside, alone = [], []

    def collate(records):
        inside.append(records)
        time.sleep(0.002)
        alone.append(len(inside) == 1)
        inside.pop()
        return records

    own = 2 if of == "members" else None
    buffers = [plain(10, collate_fn=collate, prefetch=own, batch_size=4) for _ in range(3)]
    ensemble = ReplayBufferEnsemble(*buffers, batch_size=12, sample_from_all=True, prefetch=2 if own is None else None)
    for _ in range(20):
        ensemble.sample()
    assert len(alone) >= 60 and all(alone)


def test_members_by_what_their_new_samplers_can_draw():
    ensemble = ReplayBufferEnsemble(plain(8), plain(20), p="sampleable", seed=0)
    sampler = SliceSampler(slice_len=10)
    for member in ensemble.buffers:
        member.set_sampler(SliceSampler(slice_len=10))
    ensemble[0].set_sampler(sampler)
    assert ensemble.sampler[0] is sampler
    assert bool((ensemble.sample(20)["index", "buffer_ids"] == 1).all())


def test_parts_are_filled_up_by_the_next_pass():
    ensemble = ReplayBufferEnsemble(plain(10, sampler=SamplerWithoutReplacement()), batch_size=4, sample_from_all=True)
    drawn = torch.cat([ensemble.sample()["x"][0] for _ in range(5)])
    assert all(sorted(part.tolist()) == list(range(10)) for part in drawn.split(10))


def test_what_samplers_say_is_in_the_batch():
    """Also that of plain members, as in TorchRL; and in the info."""
    buffer = plain(20, sampler=SliceSampler(slice_len=5))
    batch, info = ReplayBufferEnsemble(buffer, num_buffer_sampled=2).sample(20, return_info=True)
    assert batch["next", "truncated"].squeeze(-1).nonzero()[:, 1].tolist() == [4, 9, 4, 9]
    assert torch.equal(info["next", "truncated"], batch["next", "truncated"])


SAMPLERS = {
    "uniform": RandomSampler,
    "passes": SamplerWithoutReplacement,
    "slices": lambda: SliceSampler(slice_len=2),
    "short slices": lambda: SliceSampler(slice_len=4, strict_length=False, pad_output=True),
    "priorities": lambda: PrioritizedSampler(40, 0.7, 0.5),
}


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("unlike", ["nothing", "key", "dtype", "device", "transform"])
def test_a_batch_is_the_same_with_and_without_its_info(kind, sampler, unlike):
    """Without the info, parts that are only read are joined leaf by leaf; the batch does not show it."""

    def make():
        buffers = []
        for size in (30, 13, 40):
            storage = LazyTensorStorage(size, device="cpu" if unlike == "device" and size == 13 else None)
            buffers.append(kind(storage=storage, sampler=SAMPLERS[sampler]()))
            data = rollout([size - 8, 8], first=100 * size)
            if size == 13 and unlike == "key":
                data["more"] = torch.zeros(len(data))
            if size == 13 and unlike == "dtype":
                data["action"] = data["action"].double()
            buffers[-1].extend(data)
        if unlike == "transform":
            buffers[1].append_transform(lambda batch: batch.set("action", batch["action"] + 1))
        return ReplayBufferEnsemble(*buffers, num_buffer_sampled=3, batch_size=12, seed=0)

    with_info, alone = make(), make()
    for _ in range(12):
        one, other = with_info.sample(return_info=True)[0], alone.sample()
        assert type(one) is type(other) and one.device == other.device and one.batch_size == other.batch_size
        assert set(map(str, one.keys(True, True))) == set(map(str, other.keys(True, True)))
        for part, same in zip(one.unbind(0), other.unbind(0), strict=True):
            assert part.device == same.device
            for key, leaf in part.items(True, True):
                assert leaf.dtype == same[key].dtype and torch.equal(leaf, same[key]), key


@pytest.mark.parametrize("routing", [{"routing_key": "task"}, {"routing_dim": 1}])
def test_records_are_shared_out(routing):
    ensemble = ReplayBufferEnsemble(
        *(TensorDictReplayBuffer(storage=LazyTensorStorage(9)) for _ in range(3)), **routing
    )
    data = TensorDict({"x": torch.arange(6).view(2, 3), "task": torch.arange(3).expand(2, 3).contiguous()}, [2, 3])
    written = ensemble.extend(data)
    assert written["buffer_ids"].tolist() == [0, 1, 2, 0, 1, 2] and written["index"].tolist() == [0, 0, 0, 1, 1, 1]
    assert [buffer["x"].tolist() for buffer in ensemble.buffers] == [[0, 3], [1, 4], [2, 5]]
    data["task"] += 1
    if "routing_key" in routing:
        assert ensemble.add(data[0, 0])["index"] == 2
    with pytest.raises(SchemaError):
        ensemble.extend(data if "routing_key" in routing else data[:, :2])


@pytest.mark.parametrize("kind", ["ReplayBuffer", "TensorDictReplayBuffer"])
@pytest.mark.parametrize("sampler", ["RandomSampler", "SamplerWithoutReplacement", "SliceSampler"])
def test_batches_look_like_torchrls(kind, sampler):
    """Keys and shapes, also of the info; slices without the last dimension of 1 that they have there."""
    looks = []
    for library in (pytest.importorskip("torchrl.data"), rbdata):
        buffers = []
        for size in (20, 30):
            options = {"slice_len": 5} if sampler == "SliceSampler" else {}
            storage = library.LazyTensorStorage(size)
            buffers.append(getattr(library, kind)(storage=storage, sampler=getattr(library, sampler)(**options)))
            buffers[-1].extend(rollout([10] * (size // 10)))
        ensemble = library.ReplayBufferEnsemble(*buffers, num_buffer_sampled=3)
        batch, info = ensemble.sample(30, return_info=True)
        assert torch.equal(info["index", "buffer_ids"].reshape(-1), batch["index", "buffer_ids"].reshape(-1))
        looks.append(
            (batch.shape[:2], {key: leaf.shape[:2] for key, leaf in batch.items(True, True)}, set(info.keys()))
        )
    assert looks[0] == looks[1]


def test_unlike_members_in_lists_and_in_tensors():
    """Batches of lists name no device, those of tensors do."""
    lists = TensorDictReplayBuffer(storage=ListStorage(20))
    tensors = TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=PrioritizedSampler(20, 0.7, 0.5))
    for buffer in (lists, tensors):
        buffer.extend(rollout([13]))
    assert ReplayBufferEnsemble(lists, tensors, sample_from_all=True).sample(8).batch_size == (2, 4)


def test_one_generator_for_all():
    first, second = (
        ReplayBufferEnsemble(plain(10), plain(20), generator=torch.Generator().manual_seed(1)) for _ in range(2)
    )
    assert all(equal(first.sample(6), second.sample(6)) for _ in range(3))


@pytest.mark.parametrize("name", ["1/storage/action.memmap", "1/rbdata_checkpoint.json", "rng/state.json"])
def test_no_member_of_a_damaged_checkpoint_is_loaded(tmp_path, name):
    saved = ReplayBufferEnsemble(*members(10, 20), batch_size=4)
    saved.dumps(tmp_path / "ensemble")
    (tmp_path / "ensemble" / name).write_bytes(b"{}")
    ensemble = ReplayBufferEnsemble(*members(10, 20), batch_size=4)
    ensemble.buffers[0].empty()
    with pytest.raises(RbdataError):
        ensemble.loads(tmp_path / "ensemble")
    assert not len(ensemble.buffers[0])


class _Scaled(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(size))

    def forward(self, batch):
        return batch.set("scale", self.scale.detach().sum().expand(batch.batch_size))


def mixed(first: int = 0, *, rows: int = 20, keys: tuple[str, ...] = (), scales: int = 2) -> ReplayBufferEnsemble:
    """Members of every kind of storage, one without records, and a prioritized one, which the other arguments change."""
    storages = [LazyTensorStorage, LazyMemmapStorage, ListStorage, CompressedListStorage, LazyTensorStorage]
    buffers = [
        TensorDictReplayBuffer(storage=storage(20), sampler=SamplerWithoutReplacement(), batch_size=2)
        for storage in storages
    ]
    buffers.append(
        TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=PrioritizedSampler(rows, 0.7, 0.5), batch_size=2)
    )
    for number, buffer in enumerate(buffers):
        if number != 4 or first:
            buffer.extend(rollout([13], first=first).exclude(*keys) if number == 5 else rollout([13], first=first))
    buffers[5].update_priority(torch.arange(13), torch.linspace(1, 2, 13))
    ensemble = ReplayBufferEnsemble(
        *buffers, transform=_Scaled(scales), p=[1, 1, 1, 1, first, 1], num_buffer_sampled=1, seed=first
    )
    for _ in range(12):
        ensemble.sample(2)
    return ensemble


@pytest.mark.parametrize("how", ["loads", "load_state_dict"])
@pytest.mark.parametrize("other", [{"rows": 19}, {"keys": ("action",)}, {"scales": 3}, {}], ids=str)
def test_an_ensemble_that_refuses_is_as_before(tmp_path, other, how):
    """What the last member, or the ensemble itself, has no place for is found before the first member is changed."""
    source, ensemble, same = mixed(100, **other), mixed(), mixed()
    source.dumps(tmp_path / "ensemble")
    with pytest.raises(RbdataError) if other else contextlib.nullcontext():
        ensemble.loads(tmp_path / "ensemble") if how == "loads" else ensemble.load_state_dict(source.state_dict())
    if not other:
        ensemble.sampler.p = source.sampler.p
    same = same if other else source
    assert all(equal(ensemble.sample(2), same.sample(2)) for _ in range(9))
    for buffer, wanted in zip(ensemble.buffers, same.buffers):
        assert len(buffer) == len(wanted) and buffer.write_count == wanted.write_count
        assert not len(buffer) or equal(buffer[:], wanted[:])
        assert torch.equal(buffer.extend(rollout([3])), wanted.extend(rollout([3])))
        assert equal(buffer.sample(), wanted.sample())


def test_parts_of_members_that_are_refused_together():
    source, ensemble, same = mixed(100, rows=19, keys=("action",)), mixed(), mixed()
    for part in ("storage", "sampler"):
        with pytest.raises(RbdataError):
            getattr(ensemble, part).load_state_dict(getattr(source, part).state_dict())
    assert all(equal(ensemble.sample(2), same.sample(2)) for _ in range(9))


@pytest.mark.parametrize("replacement", [True, False])
def test_members_whose_transform_uses_its_memory_again(replacement):
    """Several parts of one member, and parts of two passes, each have the values of their own records."""
    room = torch.zeros(16)

    def number(batch):
        view = room[: len(batch)]
        return batch.set("number", view.copy_(batch["count"]))

    members = []
    for first in (0, 100):
        sampler = RandomSampler() if replacement else SamplerWithoutReplacement()
        member = TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=sampler, transform=number, batch_size=4)
        member.extend(TensorDict({"count": torch.arange(first, first + 10)}, [10]))
        members.append(member)
    ensemble = ReplayBufferEnsemble(*members, batch_size=12, num_buffer_sampled=3, p=[0.5, 0.5])
    for _ in range(20):
        batch = ensemble.sample()
        assert torch.equal(batch["number"].long(), batch["count"])


@pytest.mark.parametrize("name", ["sample", "_sample"])
def test_methods_of_members_that_would_not_be_called_are_refused(name):
    def own(self, *arguments, **options):
        return getattr(TensorDictReplayBuffer, name)(self, *arguments, **options)

    kind = type("Own", (TensorDictReplayBuffer,), {name: own})
    members = [TensorDictReplayBuffer(storage=LazyTensorStorage(8)), kind(storage=LazyTensorStorage(8))]
    with pytest.raises(UsageError, match=f"Own.{name}.. would never be called") as caught:
        ReplayBufferEnsemble(*members, batch_size=4)
    assert "sampler" in caught.value.hint


@pytest.mark.parametrize(
    ("part", "name"), [("storages", "get"), ("samplers", "sample"), ("samplers", "draw"), ("writers", "extend")]
)
def test_methods_of_ensembles_of_parts_that_would_not_be_called_are_refused(part, name):
    parts = {
        "storages": (rbdata.StorageEnsemble, lambda: LazyTensorStorage(8)),
        "samplers": (rbdata.SamplerEnsemble, rbdata.RandomSampler),
        "writers": (rbdata.WriterEnsemble, rbdata.RoundRobinWriter),
    }
    kinds = {key: kind for key, (kind, _) in parts.items()}
    kinds[part] = type("Own", (kinds[part],), {name: lambda self, *arguments: None})
    with pytest.raises(UsageError, match=f"Own.{name}.. would never be called"):
        ReplayBufferEnsemble(**{key: kinds[key](make(), make()) for key, (_, make) in parts.items()}, batch_size=4)
