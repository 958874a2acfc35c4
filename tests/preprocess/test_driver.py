"""Whole runs: the bytes of a plain loop, whatever the number of processes, the codec and what a function gets."""

from __future__ import annotations

import numpy as np
import preprocess_tools as tools
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from preprocess_tools import check_files, lasting, make_input, plain, run
from rbdata.datasets.workers.engines.processes import LocalEngine
from rbdata.storage.dataset import Dataset
from rbdata.storage.episodes import CUT, TERMINATED
from rbdata.storage.integrity import verify
from rbdata.storage.ted import check_invariants
from storage_tools import contents, make_episodes, write_dataset

BATCH = 7


@pytest.fixture(scope="module")
def engines():
    """Processes are kept from one test to the next: starting them takes seconds."""
    made = {1: LocalEngine(1), 2: LocalEngine(2), 5: LocalEngine(5)}
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
    @pytest.mark.parametrize("layout", ["flat", "raw", "zstd"])
    @pytest.mark.parametrize(("per", "fn"), [(per, fn) for per, functions in CASES.items() for fn in functions])
    def test_as_a_plain_loop(self, layout, per, fn, inputs, engines, tmp_path):
        source = inputs[layout]
        before = contents(source)
        codec = "zstd" if layout == "zstd" else "raw"
        whole, lengths = plain(Dataset(source), fn, per, BATCH)
        made = []
        for procs, engine in engines.items():
            dataset = run(
                tmp_path / str(procs),
                fn,
                source=source,
                per=per,
                batch_size=BATCH,
                procs=procs,
                codec=codec,
                open_engine=engine,
            )
            made.append(lasting(dataset.path))
        assert made[0] == made[1] == made[2]
        check_files(dataset.path, whole, lengths)
        assert dataset.episodes.length.tolist() == lengths
        assert verify(dataset.path).ok
        assert check_invariants(dataset) == []
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
            for number, (procs, seed) in enumerate([(1, 0), (5, 0), (1, 1)])
        ]
        assert made[0] == made[1]
        assert made[0]["noise.memmap"] != made[2]["noise.memmap"]
        noise = torch.frombuffer(bytearray(made[0]["noise.memmap"]), dtype=torch.float32)
        assert len(noise.unique()) == len(noise)  # no chunk repeats another one's


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
