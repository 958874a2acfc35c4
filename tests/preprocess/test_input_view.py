"""Steps as functions get them: windows as a sampler's, slices, first steps, ends."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import rbdata
import torch
from preprocess_tools import check_files, double_rewards, make_input, plain, run
from rbdata.errors import DamagedDatasetError
from rbdata.preprocess.request import Listener, PreprocessRequest
from rbdata.preprocess.run import preprocess
from rbdata.storage.dataset import Dataset
from rbdata.storage.episodes import CUT
from ted_rules import check_invariants


def test_an_input_that_is_replaced(tmp_path):
    """What is read of it must be what the manifest said at the beginning."""
    make_input(tmp_path, "zstd")
    other = make_input(tmp_path, "zstd", id="my/other", seed=1)

    def replace(_):
        (tmp_path / "my/input").rename(tmp_path / "my/old")
        shutil.copytree(other, tmp_path / "my/input")

    request = PreprocessRequest("my/input", ["rbdata:clip_rewards"], "my/output", root=tmp_path, procs=0)
    with pytest.raises(DamagedDatasetError, match="my/input/observation/blob: has"):
        preprocess(request, Listener(on_estimate=replace))
    assert not (tmp_path / "my/output").exists()


class TestWindows:
    @pytest.mark.parametrize(
        ("layout", "windows", "per"),
        [("zstd", {"frame_stack": 2, "n_step": 3, "gamma": 0.5}, "episode"), ("flat", {"frame_stack": 3}, "batch")],
    )
    def test_as_a_sampler_gives_them(self, inputs, layout, windows, per):
        options = {**windows, "per": per, "batch_size": 13, "force": True}
        dataset = run(inputs, lambda td: td, source=f"my/{layout}", dest="my/windowed", **options)
        options = {"replacement": False, "shuffle": False, "batch_size": len(dataset), **windows}
        expected = rbdata.load(f"my/{layout}", root=inputs, **options).sample()
        found = dataset.to_tensordict()
        for key, value in expected.exclude("index", "done", "terminated", "truncated").items(True, True):
            if key[-1] not in ("done", "truncated"):  # ended where the episode does, as TED wants it
                assert torch.equal(found[key], value), key
        assert dataset.manifest.lineage["windows"] == windows
        assert dataset.manifest.lineage["unchained"] == (["observation"] if "n_step" in windows else [])

    def test_slices(self, inputs):
        """Each is an episode to the function; the numbers are those of the input."""

        def fn(td, episode, step):
            assert bool(td["next", "done"][-1])
            return td.set("n", torch.full((len(td),), episode)).set("t", torch.arange(step, step + len(td)))

        options = {"slice_len": 4, "num_frames": 150, "per": "episode", "force": True}
        dataset = run(inputs, fn, source="my/zstd", dest="my/sliced", **options)
        source = Dataset(inputs / "my" / "zstd")
        lengths, left = [], 150
        for whole in source.episodes.lengths.tolist():
            here = min(whole, left)
            lengths += [min(4, here - low) for low in range(0, here, 4)]
            left -= here
        assert dataset.episodes.lengths.tolist() == lengths
        steps = torch.arange(150)
        assert torch.equal(dataset["t"], steps) and torch.equal(dataset["n"], source.episode_of(steps))
        for name in ("observation", "next/observation", "next/terminated"):
            assert torch.equal(dataset[name], source[name][:150])
        assert check_invariants(dataset.path, dataset.manifest) == []


class TestEpisodes:
    @pytest.mark.parametrize(("per", "number"), [("batch", 1), ("sample", 30), ("episode", 30), ("episode", 10_000)])
    def test_first_steps_only(self, inputs, per, number):
        dataset = run(inputs, double_rewards, source="my/flat", dest="my/first", num_frames=number, per=per, force=True)
        source = Dataset(inputs / "my" / "flat")
        count = min(number, len(source))
        assert len(dataset) == count
        assert torch.equal(dataset["next/reward"], source["next/reward"][:count] * 2)
        last = int(dataset.episodes.outcomes[-1])
        whole = count in np.cumsum(source.episodes.lengths)
        assert last == (source.episodes.outcomes[len(dataset.episodes) - 1] if whole else CUT)
        assert check_invariants(dataset.path, dataset.manifest) == []

    def test_early_ends_make_episodes(self, inputs):
        """A function may end episodes (at the loss of a life, say): frames then have more states."""

        def fn(td):
            td["next", "terminated"][::5] = True
            td["next", "done"] = td["next", "terminated"] | td["next", "truncated"]
            return td

        source = Dataset(inputs / "my" / "zstd")
        for per, size in (("batch", 11), ("episode", None)):
            dataset = run(inputs, fn, source="my/zstd", dest="my/ended", per=per, batch_size=size, force=True)
            whole, lengths = plain(source, fn, per, size or 0)
            check_files(dataset.path, whole, lengths)
            assert dataset.episodes.lengths.tolist() == lengths
            assert check_invariants(dataset.path, dataset.manifest) == []

    def test_ends_cannot_be_taken_away(self, inputs):
        """Where a function clears the flags of an end, the episode is truncated there, also at the edge of a batch."""

        def unended(td):
            for name in ("done", "terminated", "truncated"):
                td["next", name].zero_()
            return td[: len(td) // 2 + 1] if len(td) > 7 else td

        source = Dataset(inputs / "my" / "flat")
        for per, size in (("batch", 1), ("batch", 7), ("episode", None)):
            made = run(inputs, unended, source=source, dest="my/open", per=per, batch_size=size, force=True)
            lengths = source.episodes.lengths
            expected = np.where(lengths > 7, lengths // 2 + 1, lengths) if per == "episode" else lengths
            assert made.episodes.lengths.tolist() == expected.tolist()
            assert not bool(made["next/terminated"].any())
            assert made.manifest.counts["ended_episodes"] == len(lengths)

    def test_changed_ends_need_not_be_said_twice(self, inputs):
        def fn(td):
            td["next", "terminated"] = td["next", "terminated"] | (td["next", "reward"] > 1)
            return td

        dataset = run(inputs, fn, source="my/flat", dest="my/once", force=True)
        done = dataset["next/terminated"] | dataset["next/truncated"]
        assert torch.equal(dataset["next/done"], done)
