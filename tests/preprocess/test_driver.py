"""Whole runs: the bytes of a plain loop, whatever the number of processes, the codec and what a function gets."""

from __future__ import annotations

import os
import random
from textwrap import dedent
from types import SimpleNamespace

import numpy as np
import preprocess_tools as tools
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from preprocess_tools import check_files, lasting, make_input, plain, run
from rbdata.datasets.user_code_old.identity import content_hash
from rbdata.errors import FunctionError
from rbdata.preprocess import chunks, driver
from rbdata.preprocess.driver import preprocess
from rbdata.preprocess.request import Listener, Request
from rbdata.storage.dataset import Dataset
from rbdata.storage.episodes import CUT, TERMINATED
from rbdata.storage.integrity import check_invariants, verify
from storage_tools import contents, make_episodes, write_dataset

BATCH = 7


@pytest.fixture(scope="module")
def engines(fork_server):
    """Processes are kept from one test to the next."""
    made = {procs: tools.KeptEngine(procs, fork_server) for procs in (1, 2, 5)}
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


#: How to make a generator of the user with a seed, and how to draw numbers from it.
OWN_GENERATORS = {
    "numpy": (np.random.default_rng, lambda one, count: one.normal(size=count)),
    "mt19937": (lambda seed: np.random.Generator(np.random.MT19937(seed)), lambda one, count: one.normal(size=count)),
    "random state": (np.random.RandomState, lambda one, count: one.normal(size=count)),
    "torch": (lambda seed: torch.Generator().manual_seed(seed), lambda one, count: torch.rand(count, generator=one)),
    "python": (random.Random, lambda one, count: [one.random() for _ in range(count)]),
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
        for procs in (1, 2, 5) if layout == "zstd" else (1, 2):  # once per function
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
        assert dataset.episodes.length.tolist() == lengths
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
            for number, (procs, seed) in enumerate([(1, 0), (5, 0), (1, 1)])
        ]
        assert made[0] == made[1]
        assert made[0]["noise.memmap"] != made[2]["noise.memmap"]
        noise = torch.frombuffer(bytearray(made[0]["noise.memmap"]), dtype=torch.float32)
        assert len(noise.unique()) == len(noise)  # no chunk repeats another one's

    @pytest.mark.parametrize("per", ["batch", "episode"])
    @pytest.mark.parametrize("kind", [*OWN_GENERATORS])
    def test_generators_of_the_user_are_seeded_as_well(self, kind, per, inputs, engines, tmp_path):
        """Every process began with the same state: the numbers of one were those of the others."""
        make, draw = OWN_GENERATORS[kind]
        one, other = make(0), make(1)
        first, holder = content_hash(one), SimpleNamespace(inside=[one])

        def closure(td):
            return td.set("noise", torch.as_tensor(draw(holder.inside[0], len(td))).float())

        def argument(td, source):
            return td.set("noise", torch.as_tensor(draw(source, len(td))).float())

        def made(number, fn, procs, **options):
            options |= {"source": inputs["flat"], "per": per, "batch_size": BATCH, "open_engine": engines[procs]}
            return run(tmp_path / str(number), fn, **options)["noise"]

        noise = made(0, closure, 1)
        assert len(noise.unique()) == len(noise)
        assert torch.equal(noise, made(1, closure, 5))
        assert torch.equal(noise, made(2, argument, 5, args={"source": one}))
        assert not torch.isin(noise, made(3, argument, 1, args={"source": other})).any()
        assert not torch.isin(noise, made(4, closure, 1, seed=1)).any()
        assert content_hash(one) == first

    @pytest.mark.parametrize("per", ["batch", "episode", "sample"])
    @pytest.mark.parametrize("kind", [*OWN_GENERATORS])
    def test_numbers_that_are_drawn_in_the_first_call_are_refused(self, kind, per, inputs, tmp_path):
        """They would be others in every process. Those that are drawn before the first call are the same."""
        make, draw = OWN_GENERATORS[kind]

        class Projection:
            def __init__(self, weights=None):
                self.generator, self.weights = make(0), weights

            def __call__(self, td):
                if self.weights is None:
                    self.weights = torch.as_tensor(draw(self.generator, 3)).float()
                noise = torch.as_tensor(draw(self.generator, 1))[0].float()
                return td.set("projected", self.weights.expand(*td.batch_size, 3)).set(
                    "noise", noise.expand(td.batch_size)
                )

        (tmp_path / "my").mkdir()
        options = {"source": inputs["flat"], "per": per}
        with pytest.raises(FunctionError, match="other numbers from its random generator when it is called again"):
            run(tmp_path, Projection(), **options)
        weights = torch.as_tensor(draw(make(0), 3)).float()
        made = run(tmp_path, Projection(weights), **options)
        assert (made["projected"] == weights).all() and len(made["noise"].unique()) > 1

    def test_generators_in_a_file_are_seeded_as_well(self, inputs, engines, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        text = """
            import numpy as np
            import torch

            rng = np.random.default_rng(0)

            def noisy(td):
                return td.set("noise", torch.from_numpy(rng.normal(size=len(td))))
            """
        (tmp_path / "drawing.py").write_text(dedent(text))
        made = [
            run(tmp_path / str(procs), "drawing.py:noisy", source=inputs["flat"], batch_size=BATCH, open_engine=engine)
            for procs, engine in engines.items()
        ]
        assert all(torch.equal(one["noise"], made[0]["noise"]) for one in made)
        assert len(made[0]["noise"].unique()) == len(made[0])


class TestAnyChunks:
    """Chunks follow from measured time: the result does not depend on them."""

    @pytest.mark.parametrize(
        ("per", "layout", "more"),
        [("batch", "flat", ["rbdata:normalize_observations"]), ("sample", "flat", []), ("episode", "zstd", [])],
    )
    def test_same_bytes(self, per, layout, more, inputs, tmp_path, monkeypatch):
        made, parts = [], []
        for seconds in (1e-9, 1e9):
            for name in ("CHUNK_SECONDS", "LEAST_CHUNK_SECONDS"):
                monkeypatch.setattr(chunks, name, seconds)
            done: list[int] = []
            root, source = tmp_path / str(seconds), str(inputs[layout])
            request = Request(source, [tools.noisy, *more], "my/output", root=root, per=per, batch_size=20)
            made.append(lasting(preprocess(request, Listener(on_part_done=done.append)).path))
            parts.append(len(done))
        assert made[0] == made[1]
        assert parts[0] > 15 > parts[1] == len(made[0]["rbdata.json"]["parts"])
        assert verify(tmp_path / "1e-09" / "my" / "output").ok

    def test_zeros_of_both_signs_across_chunks(self, tmp_path, monkeypatch):
        """A successor of 0.0 is not the next observation of -0.0, whether a chunk ends between them or not."""
        make_input(tmp_path, count=10)

        def signed(td):
            td["observation"] = td["observation"] * -0.0
            td["next", "observation"] = td["next", "observation"] * 0.0
            return td

        found = []
        for number, seconds in enumerate((1e-9, 1e9)):
            monkeypatch.setattr(chunks, "CHUNK_SECONDS", seconds)
            monkeypatch.setattr(chunks, "LEAST_CHUNK_SECONDS", seconds)
            dataset = run(tmp_path, signed, dest=f"my/signed{number}", batch_size=BATCH)
            found.append(dataset.manifest.lineage["unchained"])
        assert found == [["observation"], ["observation"]]


class TestSlowFunctions:
    @pytest.mark.parametrize("per", ["batch", "episode"])
    def test_the_trial_is_one_batch_or_episode(self, per, tmp_path, monkeypatch):
        """Called once for each, and at most twice more to find out the leaves and the time."""
        make_input(tmp_path, count=40)
        calls = tmp_path / "calls"
        (tmp_path / "slow.py").write_text(f"def fn(td):\n    open({str(calls)!r}, 'a').write('x')\n    return td\n")
        outcome = preprocess(Request("my/input", [f"{tmp_path}/slow.py:fn"], "my/output", root=tmp_path, per=per))
        pieces = 40 if per == "episode" else -(-outcome.manifest.steps // 32)
        assert pieces <= len(calls.read_text()) <= pieces + 2

    def test_more_processes_where_the_work_is_long(self, tmp_path, monkeypatch, kept_server):
        """A small dataset is begun in this process; a slow function goes on in others."""
        make_input(tmp_path, count=20)
        monkeypatch.setattr(driver, "WORTH_PROCESSES", 0.0)

        def where(td):
            td["process"] = torch.full((len(td),), os.getpid())
            return td

        request = Request("my/input", [where], "my/output", root=tmp_path, procs=2, batch_size=32)
        dataset = Dataset(preprocess(request).path)
        assert dataset.manifest.provenance["engine"] == "local, 2 processes"
        assert os.getpid() not in dataset["process"].unique().tolist()


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
    assert check_invariants(dataset.path, dataset.manifest) == []
    assert set(np.unique(dataset.episodes.outcome)) <= {TERMINATED, 2, CUT}
