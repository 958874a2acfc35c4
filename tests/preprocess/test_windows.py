"""What functions see and what a result may be: windows, slices, first steps, seeds, chunks, chains, lineage."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
import rbdata
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from preprocess_tools import check_files, double_rewards, make_input, plain, run
from rbdata.cli import run as command
from rbdata.preprocess.chunks import batches, cut
from rbdata.preprocess.episode_view import view_episodes
from rbdata.storage.dataset import Dataset
from rbdata.storage.episodes import CUT, TERMINATED
from rbdata.storage.integrity import verify
from rbdata.storage.manifest import read_manifest
from rbdata.storage.ted import check_invariants
from storage_tools import make_episodes, table, write_dataset


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    root = tmp_path_factory.mktemp("windows")
    for layout in ("flat", "zstd"):
        make_input(root, layout, id=f"my/{layout}")
    return root


def sampled(root, source, **options):
    """What a sampler gives for every step, in order."""
    size = len(Dataset(root / source))
    buffer = rbdata.load(source, root=root, replacement=False, shuffle=False, batch_size=size, **options)
    return next(iter(buffer))


class TestWindows:
    @pytest.mark.parametrize("layout", ["flat", "zstd"])
    @pytest.mark.parametrize(
        "windows", [{"frame_stack": 3}, {"n_step": 4, "gamma": 0.9}, {"frame_stack": 2, "n_step": 3, "gamma": 0.5}]
    )
    @pytest.mark.parametrize("per", ["batch", "episode"])
    def test_as_a_sampler_gives_them(self, shared, layout, windows, per):
        from rbdata.preprocess.read_options import ReadOptions

        dataset = run(
            shared,
            lambda td: td,
            source=f"my/{layout}",
            dest="my/windowed",
            read_options=ReadOptions(**windows),
            per=per,
            batch_size=13,
            force=True,
        )
        expected = sampled(shared, f"my/{layout}", **windows).exclude("index", "done", "terminated", "truncated")
        found = dataset.to_tensordict()
        for key, value in expected.items(True, True):
            if key[-1] not in ("done", "truncated"):  # ended where the episode does, as TED wants it
                assert torch.equal(found[key], value), key
        assert bool((found["next", "done"] | ~expected["next", "done"]).all())
        assert verify(dataset.path).ok
        if "n_step" in windows:
            assert dataset.manifest.lineage["unchained"] == ["observation"]
        elif layout == "zstd":
            assert dataset.schema["observation"].kind == "state"

    @pytest.mark.parametrize("layout", ["flat", "zstd"])
    @pytest.mark.parametrize("length", [1, 4, 100])
    def test_slices(self, shared, layout, length):
        from rbdata.preprocess.read_options import ReadOptions

        seen = []

        def fn(td):
            seen.append(len(td))
            assert bool(td["next", "done"][-1])
            return td

        dataset = run(
            shared,
            fn,
            source=f"my/{layout}",
            dest="my/sliced",
            read_options=ReadOptions(slice_len=length),
            per="episode",
            procs=1,
            force=True,
        )
        source = Dataset(shared / "my" / layout)
        expected = [
            min(length, whole - low) for whole in source.episodes.length.tolist() for low in range(0, whole, length)
        ]
        assert dataset.episodes.length.tolist() == expected
        assert torch.equal(dataset["observation"], source["observation"])
        assert torch.equal(dataset["next/observation"], source["next/observation"])
        assert torch.equal(dataset["next/terminated"], source["next/terminated"])
        assert check_invariants(dataset) == []

    @pytest.mark.parametrize("per", ["batch", "sample", "episode"])
    @pytest.mark.parametrize("number", [1, 30, 10_000])
    def test_first_steps_only(self, shared, per, number):
        dataset = run(shared, double_rewards, source="my/flat", dest="my/first", num_frames=number, per=per, force=True)
        source = Dataset(shared / "my" / "flat")
        count = min(number, len(source))
        assert len(dataset) == count
        assert torch.equal(dataset["next/reward"], source["next/reward"][:count] * 2)
        last = int(dataset.episodes.outcome[-1])
        whole = count in np.cumsum(source.episodes.length)
        assert last == (source.episodes.outcome[len(dataset.episodes) - 1] if whole else CUT)
        assert check_invariants(dataset) == []

    def test_early_ends_make_episodes(self, shared):
        """A function may end episodes (at the loss of a life, say): frames then have more states."""

        def fn(td):
            td["next", "terminated"][::5] = True
            td["next", "done"] = td["next", "terminated"] | td["next", "truncated"]
            return td

        source = Dataset(shared / "my" / "zstd")
        for per, size in (("batch", 11), ("episode", None)):
            dataset = run(shared, fn, source="my/zstd", dest="my/ended", per=per, batch_size=size, force=True)
            whole, lengths = plain(source, fn, per, size or 0)
            check_files(dataset.path, whole, lengths)
            assert dataset.episodes.length.tolist() == lengths
            assert check_invariants(dataset) == []

    def test_changed_ends_need_not_be_said_twice(self, shared):
        def fn(td):
            td["next", "terminated"] = td["next", "terminated"] | (td["next", "reward"] > 1)
            return td

        dataset = run(shared, fn, source="my/flat", dest="my/once", force=True)
        done = dataset["next/terminated"] | dataset["next/truncated"]
        assert torch.equal(dataset["next/done"], done)


class TestLayout:
    def test_successors_that_do_not_follow(self, shared):
        """As with a random crop: both are stored, raw, and the manifest says so."""

        def fn(td):
            td["next", "observation"] = 255 - td["next", "observation"]
            return td

        source = Dataset(shared / "my" / "zstd")
        dataset = run(shared, fn, source="my/zstd", dest="my/broken", force=True)
        assert not dataset.schema.states
        assert torch.equal(dataset["next/observation"], 255 - source["next/observation"])
        assert torch.equal(dataset["observation"], source["observation"])
        assert dataset.manifest.lineage["unchained"] == ["observation"]
        assert "makes no sense" in dataset.manifest.notes[0] or "make no sense" in dataset.manifest.notes[0]
        assert verify(dataset.path).ok

    def test_ted(self, shared):
        dataset = run(shared, lambda td: td, source="my/zstd", dest="my/ted", layout="ted", force=True)
        source = Dataset(shared / "my" / "zstd")
        from tensordict import TensorDict

        assert not dataset.schema.states
        plain_folder = TensorDict.load_memmap(dataset.path)
        assert torch.equal(plain_folder["next", "observation"], source["next/observation"])

    def test_auto_codec_by_what_it_saves(self, shared, tmp_path):
        noise = torch.Generator().manual_seed(0)

        def random_frames(td):
            frames = torch.rand(len(td), 300, generator=noise)
            return td.set("frames", frames).set(("next", "frames"), frames.roll(-1, 0))

        def even_frames(td):
            return td.set("frames", torch.zeros(len(td), 300)).set(("next", "frames"), torch.zeros(len(td), 300))

        options = {"source": "my/flat", "force": True, "per": "episode"}
        even = run(shared, even_frames, dest="my/even", **options)
        assert even.schema["frames"].to_json()["codec"] == "zstd"
        rough = run(shared, random_frames, dest="my/rough", layout="auto", procs=1, **options)
        leaf = rough.schema.get("frames")
        assert leaf is not None and leaf.codec == "raw"


class TestChains:
    def test_ready_functions_on_states_equal_those_on_steps(self, shared):
        """Each stored state is changed once; that must be the same as changing observation and successor."""
        functions = ["rbdata:grayscale", "rbdata:resize_frames", "rbdata:to_float"]
        args = {"height": 12, "width": 10}
        ready = run(shared, functions, source="my/zstd", dest="my/ready", args=args, batch_size=9, force=True)

        def same(td):
            from rbdata.preprocess.functions import find_builtin

            td = find_builtin("grayscale")(td)
            return find_builtin("to_float")(find_builtin("resize_frames")(td, **args))

        own = run(shared, same, source="my/zstd", dest="my/own", batch_size=9, force=True)
        assert torch.equal(ready["observation"], own["observation"])
        assert torch.equal(ready["next/observation"], own["next/observation"])
        assert verify(ready.path).ok

    def test_a_first_pass_sees_what_comes_before_it(self, shared):
        def shifted(td):
            td["observation"] = td["observation"] + 1000
            td["next", "observation"] = td["next", "observation"] + 1000
            return td

        dataset = run(
            shared,
            [shifted, "rbdata:normalize_observations", "rbdata:scale_rewards"],
            source="my/flat",
            dest="my/normal",
            args={"scale_rewards.scale": 3},
            batch_size=5,
            procs=1,
            force=True,
        )
        source = Dataset(shared / "my" / "flat")
        found = dataset.statistics["normalize_observations"]["observation"]
        assert torch.allclose(torch.tensor(found["mean"]), source["observation"].double().mean(0).float() + 1000)
        assert torch.allclose(dataset["observation"].mean(0), torch.zeros(4), atol=1e-3)
        assert torch.equal(dataset["next/reward"], source["next/reward"] * 3)
        buffer = rbdata.load("my/normal", root=shared, batch_size=4)
        assert buffer.dataset.statistics == dataset.statistics
        # A dataset made of this one still knows them.
        later = run(shared, double_rewards, source="my/normal", dest="my/later", force=True)
        assert later.statistics == dataset.statistics


class TestLineage:
    def test_is_complete(self, shared, capsys):
        source = read_manifest(shared / "my" / "flat")
        dataset = run(
            shared, "rbdata:scale_rewards", source="my/flat", dest="my/scaled", args={"scale": 2}, seed=7, force=True
        )
        lineage = dataset.manifest.lineage
        assert lineage["input"]["id"] == "my/flat"
        assert lineage["input"]["steps"] == source.steps
        (fn,) = lineage["functions"]
        assert fn["function"] == "rbdata:scale_rewards"
        assert fn["args"] == {"scale": 2}
        assert len(fn["source_sha256"]) == 64
        assert (lineage["per"], lineage["seed"]) == ("batch", 7)
        assert {"rbdata", "torch", "tensordict", "python"} <= set(lineage["versions"])
        assert lineage["leaves"] == {"added": [], "dropped": [], "changed": ["next/reward"]}
        assert command(["inspect", "my/scaled", "--root", str(shared)]) == 0
        told = capsys.readouterr().out
        assert "made from\tmy/flat" in told
        assert "rbdata:scale_rewards(scale=2)" in told
        assert command(["inspect", "my/scaled", "--root", str(shared), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["lineage"] == lineage

    def test_the_same_data_have_the_same_content(self, tmp_path):
        from rbdata.preprocess.lineage import content_id

        ids = [content_id(read_manifest(make_input(tmp_path / name))) for name in ("one", "two")]
        other = content_id(read_manifest(make_input(tmp_path / "three", seed=1)))
        assert ids[0] == ids[1] != other


class TestDryRun:
    def test_writes_nothing(self, shared, capsys):
        words = ["preprocess", "my/zstd", "--fn", "rbdata:resize_frames", "--dest", "my/dry", "--root", str(shared)]
        words += ["--args", "height=12", "--args", "width=12", "--dry-run", "--json"]
        before = sorted(path.name for path in (shared / "my").iterdir())
        assert command(words) == 0
        assert sorted(path.name for path in (shared / "my").iterdir()) == before
        answer = json.loads(capsys.readouterr().out)["dry_run"]
        shapes = {leaf["name"]: leaf["shape"] for leaf in answer["output"]}
        assert shapes["observation"] == shapes["next/observation"] == [12, 12, 3]
        assert answer["estimated"]["steps"] == len(Dataset(shared / "my" / "zstd"))
        assert answer["estimated"]["bytes"] > 0

    def test_with_a_first_pass(self, shared, capsys):
        words = ["preprocess", "my/flat", "--fn", "rbdata:normalize_observations", "--dest", "my/dry"]
        assert command([*words, "--root", str(shared), "--dry-run"]) == 0
        assert "tried\t" in capsys.readouterr().out


class TestChunks:
    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 40), st.integers(1, 8), st.booleans())
    def test_cover_everything_once(self, lengths, batch, times, whole):
        episodes = view_episodes(table(make_episodes(lengths)), None, None)
        chunks = cut(episodes, batch * times, whole)
        assert chunks[0].start == 0 and chunks[-1].stop == sum(lengths)
        assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
        assert all(a.stop == b.start for a, b in pairwise(chunks))
        for chunk in chunks:
            parts = list(batches(chunk, episodes, batch, whole))
            assert [parts[0][0], parts[-1][1]] == [chunk.start, chunk.stop]
            assert all(a[1] == b[0] for a, b in pairwise(parts))
            for start, stop, first, last in parts:
                assert episodes.starts[first] <= start < episodes.starts[first + 1]
                assert episodes.starts[last - 1] < stop <= episodes.starts[last]
                if whole:
                    assert (start, stop) == (episodes.starts[first], episodes.starts[last])
                    assert stop - start <= batch or last - first == 1
                else:
                    assert stop - start <= batch


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    layout=st.sampled_from(["flat", "raw", "zstd", "ted"]),
    per=st.sampled_from(["batch", "episode"]),
    batch=st.integers(1, 30),
    drop=st.integers(1, 8),
)
def test_any_dataset_any_function(tmp_path_factory, lengths, layout, per, batch, drop):
    """Against the plain loop, for lengths, layouts and functions that nobody thought of."""
    root = tmp_path_factory.mktemp("any")
    frames = {"shape": (20, 20, 3), "dtype": "uint8"} if layout != "flat" else {}
    source = Dataset(write_dataset(root, make_episodes(lengths, **frames), layout, id="my/input"))

    def fn(td):
        if per == "episode":
            if len(td) == drop:
                return None
            td = td[: drop + 1].clone()
            td["next", "truncated"][-1] = ~td["next", "terminated"][-1]
            td["next", "done"][-1] = True
        td["observation"] = td["observation"] + 1
        td["next", "observation"] = td["next", "observation"] + 1
        return td.exclude("action")

    if per == "episode" and all(length == drop for length in lengths):
        return
    dataset = run(root, fn, per=per, batch_size=batch, procs=1)
    whole, found = plain(source, fn, per, batch)
    check_files(dataset.path, whole, found)
    assert dataset.episodes.length.tolist() == found
    assert check_invariants(dataset) == []
    assert set(np.unique(dataset.episodes.outcome)) <= {TERMINATED, 2, CUT}
