"""Compressed observations that a function leaves alone are copied as they are stored, whatever is done to everything else.

The inputs are compressed harder than preprocessing compresses: what was copied can be told from what was compressed again.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np
import preprocess_tools as tools
import pytest
import torch
from preprocess_tools import make_input, plain, run
from rbdata.errors import DamagedDatasetError
from rbdata.preprocess.functions import find_builtin
from rbdata.storage.codecs import zstd as codecs
from rbdata.storage.codecs.compressed import CompressedRows
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codecs, "LEVEL", 19)
        return make_input(tmp_path_factory.mktemp("input"), "zstd")


def frames(path: Path) -> list[bytes]:
    """The compressed rows of the observation."""
    folder = path / "observation"
    blob, offsets = (folder / "blob").read_bytes(), np.fromfile(folder / "offsets", "<i8")
    return [blob[low:high] for low, high in itertools.pairwise(offsets)]


def same_values(dataset: Dataset, source: Path, fn, per: str, batch: int) -> None:
    whole, lengths = plain(Dataset(source), fn, per, batch)
    assert dataset.episodes.lengths.tolist() == lengths
    got = dataset.to_tensordict()
    assert torch.equal(got["observation"], whole["observation"])
    assert torch.equal(got["next", "observation"], whole["next", "observation"])
    assert verify(dataset.path).ok


def rewards(td):
    td["next", "reward"] = td["next", "reward"] * 2
    return td


def paints_one(td):
    """Every batch that holds an action of 3 has one changed frame."""
    rows = (td["action"].reshape(len(td), -1)[:, 0] == 3).nonzero()
    if len(rows):
        td["observation"].numpy()[int(rows[0])] = 7  # behind torch's back
    return td


def drops_some(td):
    return None if len(td) % 3 == 0 else td


def backwards(td):
    """A whole episode in another order."""
    td["observation"] = td["observation"].flip(0).clone()
    td["next", "observation"] = torch.cat([td["observation"][1:], td["next", "observation"][-1:]])
    return td


def ends_early(td):
    """Other episodes: every one is two."""
    if len(td) > 4:
        td["next", "truncated"][2] = td["next", "done"][2] = True
    return td


@pytest.mark.parametrize("per, codec", [("batch", "auto"), ("sample", "zstd"), ("episode", "auto")])
def test_untouched(per, codec, source, tmp_path):
    made = run(tmp_path, rewards, source=source, per=per, batch_size=7, codec=codec)
    assert frames(made.path) == frames(source)
    same_values(made, source, rewards, per, 7)


class TestUnread:
    """Functions that need no observations do not wait for them to be decoded."""

    CHAIN = ("rbdata:clip_rewards", "rbdata:returns_to_go")

    def decoded(self, monkeypatch) -> list[int]:
        rows: list[int] = []
        decode = CompressedRows._decode

        def counted(self, which):
            rows.append(len(which))
            return decode(self, which)

        monkeypatch.setattr(CompressedRows, "_decode", counted)
        return rows

    @pytest.mark.parametrize("per", [None, "episode"])
    def test_copied(self, per, source, tmp_path, monkeypatch):
        decoded = self.decoded(monkeypatch)
        made = run(tmp_path, "rbdata:clip_rewards", source=source, per=per, batch_size=7)
        assert sum(decoded) < 60  # of 275, for the first look
        assert frames(made.path) == frames(source)
        same_values(made, source, find_builtin("clip_rewards"), "batch", 7)

    def test_chain_with_first_pass(self, source, tmp_path, monkeypatch):
        decoded = self.decoded(monkeypatch)
        functions = [*self.CHAIN, "rbdata:filter_episodes"]
        made = run(tmp_path, functions, source=source, args={"min_quantile": 0.5}, batch_size=20)
        assert sum(decoded) < 120
        assert 0 < len(made.episodes) < len(Dataset(source).episodes)
        assert set(frames(made.path)) <= set(frames(source))
        steps = made.to_tensordict()
        old = {row.numpy().tobytes() for row in Dataset(source).to_tensordict()["observation"]}
        assert {row.numpy().tobytes() for row in steps["observation"]} <= old
        assert verify(made.path).ok

    def test_decoded_where_it_must_be(self, source, tmp_path):
        raw = run(tmp_path, "rbdata:clip_rewards", source=source, codec="raw")
        same_values(raw, source, find_builtin("clip_rewards"), "batch", 7)
        chain = run(tmp_path, [*self.CHAIN, rewards], "my/chain", source=source)
        assert frames(chain.path) == frames(source)
        cut = run(tmp_path, "rbdata:clip_rewards", "my/cut", source=source, num_frames=100)
        assert torch.equal(cut.to_tensordict()["observation"], Dataset(source).to_tensordict()["observation"][:100])
        old = Dataset(source)
        pieces = [step for step in range(len(old)) if step % 3]
        view = old.select(steps=pieces)
        slices = run(tmp_path, "rbdata:clip_rewards", "my/slices", source=view)
        assert torch.equal(slices.to_tensordict()["observation"], old.to_tensordict()["observation"][pieces])
        for name in ("lengths", "outcomes", "midway"):
            assert getattr(slices.episodes, name).tolist() == getattr(view.episodes, name).tolist()
        assert 0 < slices.episodes.midway.sum() < len(slices.episodes)
        for made in (cut, slices, chain):
            assert verify(made.path).ok

    def test_damage_gets_no_new_checksum(self, source, tmp_path):
        copy = tmp_path / "copy"
        shutil.copytree(source, copy)
        blob = copy / "observation" / "blob"
        data = bytearray(blob.read_bytes())
        data[-3] ^= 1
        blob.write_bytes(data)
        with pytest.raises(DamagedDatasetError, match="blob: checksum mismatch"):
            run(tmp_path, "rbdata:clip_rewards", source=copy, batch_size=7)
        assert not (tmp_path / "my" / "output").exists()


def test_episodes_that_stay_are_copied(source, tmp_path):
    made = run(tmp_path, drops_some, source=source, per="episode", batch_size=50)
    same_values(made, source, drops_some, "episode", 50)
    assert set(frames(made.path)) <= set(frames(source))
    assert len(frames(made.path)) < len(frames(source))


def test_cut(source, tmp_path):
    """Where the end of an episode is of our making its last successor is a row of the input all the same."""
    made = run(tmp_path, rewards, source=source, batch_size=7, num_frames=123)
    old = Dataset(source).to_tensordict()[:123]
    assert torch.equal(made.to_tensordict()["observation"], old["observation"])
    assert torch.equal(made.to_tensordict()["next", "observation"], old["next", "observation"])
    assert frames(made.path) == frames(source)[: len(frames(made.path))]
    assert verify(made.path).ok


class TestTouched:
    """What the first batch promised is not believed."""

    def test_here_and_there(self, source, tmp_path):
        made = run(tmp_path, paints_one, source=source, batch_size=1, layout="ted", num_frames=100)
        before = Dataset(source).to_tensordict()[:100]
        painted = before["action"].reshape(len(before), -1)[:, 0] == 3
        got = made.to_tensordict()["observation"]
        assert bool((got[painted] == 7).all())
        assert torch.equal(got[~painted], before["observation"][~painted])

    def test_in_later_batches(self, source, tmp_path):
        """States that are changed alike on both sides, but not in the first batches: those alone are compressed again."""
        calls = []

        def later(td):
            calls.append(1)
            if len(calls) > 12:
                td["observation"].bitwise_xor_(1)
                td["next", "observation"].bitwise_xor_(1)
            return td

        lengths = Dataset(source).episodes.lengths
        made = run(tmp_path, later, source=source, per="episode", batch_size=1)
        old, new = Dataset(source).to_tensordict(), made.to_tensordict()
        changed = (old["observation"] != new["observation"]).flatten(1).any(1)
        first = int(changed.nonzero()[0])
        assert first in Dataset(source).episodes.starts.tolist()
        assert bool(changed[first:].all())
        assert torch.equal(new["observation"][first:], old["observation"][first:] ^ 1)
        states = first + int((Dataset(source).episodes.starts < first).sum())
        assert frames(made.path)[:states] == frames(source)[:states]
        assert len(lengths) == len(made.episodes)
        assert verify(made.path).ok

    @pytest.mark.parametrize("fn", [backwards, ends_early])
    def test_other_order_and_other_episodes(self, fn, source, tmp_path):
        made = run(tmp_path, fn, source=source, per="episode", batch_size=60)
        same_values(made, source, fn, "episode", 60)

    def test_other_dictionary(self, source, tmp_path):
        made = run(tmp_path, tools.in_place, source=source, codec="zstd", batch_size=7)
        same_values(made, source, tools.in_place, "batch", 7)
        assert (made.path / "observation" / "dictionary").read_bytes() != (
            source / "observation" / "dictionary"
        ).read_bytes()
