"""Whole runs: the bytes of a plain loop, whatever the number of processes, the codec and what a function gets."""

from __future__ import annotations

import os

import numpy as np
import preprocess_tools as tools
import pytest
import torch
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from preprocess_tools import check_files, lasting, make_input, plain, run
from rbdata.datasets.workers import open_local
from rbdata.errors import SchemaError
from rbdata.preprocess import chunks
from rbdata.preprocess.request import PreprocessRequest
from rbdata.preprocess.run import preprocess
from rbdata.storage.dataset import Dataset
from rbdata.storage.episodes import CUT, TERMINATED
from rbdata.storage.integrity import verify
from storage_tools import contents, make_episodes, write_dataset
from ted_rules import check_invariants

BATCH = 7


@pytest.fixture(scope="module")
def engines():
    """Processes are kept from one test to the next."""
    made = {procs: open_local(procs) for procs in (0, 1, 3)}
    yield made
    for engine in made.values():
        engine.close()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    root = tmp_path_factory.mktemp("inputs")
    return {layout: make_input(root, layout, id=f"my/{layout}") for layout in ("flat", "raw", "zstd")}


CASES = {
    "batch": [tools.double_rewards, tools.smaller, tools.in_place],
    "sample": [tools.double_rewards, tools.smaller],
    "episode": [tools.every_other, tools.returns_to_go],
}


class TestSameBytes:
    @pytest.mark.parametrize(
        ("per", "fn", "layout"),
        [
            *((per, fn, "flat") for per, some in CASES.items() for fn in some),
            *((per, some[0], "zstd") for per, some in CASES.items()),
            ("batch", tools.in_place, "raw"),
        ],
    )
    def test_as_a_plain_loop(self, layout, per, fn, inputs, engines, tmp_path):
        source = inputs[layout]
        before = contents(source)
        codec = "zstd" if layout == "zstd" else "raw"
        whole, lengths = plain(Dataset(source), fn, per, BATCH)
        made = []
        for procs in (1, 3) if layout == "zstd" and fn is CASES[per][0] else (0,):
            dataset = run(
                tmp_path / str(procs),
                fn,
                source=source,
                per=per,
                batch_size=BATCH,
                procs=procs,
                codec=codec,
                open_engine=engines[procs],
            )
            made.append(lasting(dataset.path))
        assert all(one == made[0] for one in made)
        check_files(dataset.path, whole, lengths)
        assert dataset.episodes.lengths.tolist() == lengths
        assert verify(dataset.path).ok
        assert check_invariants(dataset.path, dataset.manifest) == []
        assert contents(source) == before
        if layout != "flat" and fn is not tools.every_other:
            assert [leaf.name for leaf in dataset.schema.states] == ["observation"]
            assert dataset.schema["observation"].codec == codec

    def test_random_numbers_follow_from_the_seed(self, inputs, engines, tmp_path):
        made = [
            lasting(
                run(
                    tmp_path / str(number),
                    tools.noisy,
                    source=inputs["flat"],
                    batch_size=BATCH,
                    seed=seed,
                    open_engine=engines[procs],
                ).path
            )
            for number, (procs, seed) in enumerate([(0, 0), (3, 0), (0, 1)])
        ]
        assert made[0] == made[1]
        assert made[0]["noise.memmap"] != made[2]["noise.memmap"]
        noise = torch.frombuffer(bytearray(made[0]["noise.memmap"]), dtype=torch.float32)
        assert len(noise.unique()) == len(noise)  # no chunk repeats another one's


def test_zeros_of_both_signs(tmp_path):
    """A successor of 0.0 is not the next observation of -0.0."""
    make_input(tmp_path, count=10)

    def signed(td):
        td["observation"] = td["observation"] * -0.0
        td["next", "observation"] = td["next", "observation"] * 0.0
        return td

    dataset = run(tmp_path, signed, dest="my/signed", batch_size=BATCH)
    assert dataset.manifest.lineage["unchained"] == ["observation"]


@pytest.mark.parametrize("number", [1, 1000])
def test_successors_across_batches_and_chunks(number, tmp_path, monkeypatch):
    """Each batch agrees in itself, and none with the one after it."""
    monkeypatch.setattr(chunks, "CHUNKS", number)
    make_input(tmp_path, count=10)
    make_input(tmp_path, "zstd", count=10, id="my/frames")

    def shifted(td, step):
        for key in ("observation", ("next", "observation")):
            td[key] = td[key] + (step[0] // BATCH % 2).to(td[key].dtype)
        return td

    dataset = run(tmp_path, shifted, batch_size=BATCH)
    assert dataset.manifest.lineage["unchained"] == ["observation"]
    with pytest.raises(SchemaError, match="'next/observation' other than 'observation' of the step that follows"):
        run(tmp_path, shifted, source="my/frames", dest="my/bad", batch_size=BATCH)


@pytest.mark.parametrize("per", ["batch", "episode"])
def test_how_often_a_function_is_called(per, tmp_path):
    """Once for each batch or episode, and before that twice for the first, to find out the leaves."""
    make_input(tmp_path, count=40)
    calls = tmp_path / "calls"
    (tmp_path / "slow.py").write_text(f"def fn(td):\n    open({str(calls)!r}, 'a').write('x')\n    return td\n")
    request = PreprocessRequest("my/input", [f"{tmp_path}/slow.py:fn"], "my/output", root=tmp_path, per=per, procs=0)
    outcome = preprocess(request)
    pieces = 40 if per == "episode" else -(-outcome.manifest.steps // 32)
    assert pieces + 2 <= len(calls.read_text()) <= pieces + 4


def test_functions_of_the_user_run_in_another_process(tmp_path, by_value, monkeypatch):
    """Built-in ones do not where there is little to do."""
    monkeypatch.delenv("RBDATA_PROCS")
    make_input(tmp_path, count=20)

    def where(td):
        td["process"] = torch.full((len(td),), os.getpid())
        return td

    for procs in (None, 1):
        request = PreprocessRequest(
            "my/input", [where], "my/output", root=tmp_path, procs=procs, force=True, batch_size=64
        )
        assert os.getpid() not in Dataset(preprocess(request).path)["process"].unique().tolist()
    request = PreprocessRequest("my/input", [where], "my/output", root=tmp_path, procs=0, force=True)
    assert Dataset(preprocess(request).path)["process"].unique().tolist() == [os.getpid()]


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    dataset = run(root, fn, per=per, batch_size=batch, procs=0)
    whole, found = plain(source, fn, per, batch)
    check_files(dataset.path, whole, found)
    assert dataset.episodes.lengths.tolist() == found
    assert check_invariants(dataset.path, dataset.manifest) == []
    assert set(np.unique(dataset.episodes.outcomes)) <= {TERMINATED, 2, CUT}
