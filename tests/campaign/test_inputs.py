"""A few seconds of the campaign `inputs`: the frame of it, and the readers that are quick to start.

Here they are also given to Hypothesis, which makes what it finds as small as it can.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import re
import select
import sys
import time

import inputs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from input_readers import READERS, Reader, Wrong, apart
from inputs import attack, try_input

QUICK = [
    "npy",
    "gzip",
    "tfrecord",
    "png",
    "jpeg",
    "arff",
    "metadata",
    "api",
    "manifest",
    "episodes",
    "parquet",
    "rlds",
    "pickle",
]
#: A place in a file, what is put there, and how many bytes it replaces.
EDITS = st.lists(st.tuples(st.integers(0, 1 << 15), st.binary(max_size=9), st.integers(0, 9)), min_size=1, max_size=4)


@pytest.mark.parametrize("name", QUICK)
def test_no_reader_is_fooled(name):
    report = attack(name, 200, 1)
    assert report.rounds == sum(report.outcomes.values()) == 200
    assert report.faults == [] and report.peak_memory > 0


@pytest.mark.parametrize("name", QUICK)
def test_no_reader_is_fooled_by_hypothesis(name, tmp_path):
    reader = READERS[name]
    corpus = reader.corpus(tmp_path / "corpus")

    @settings(max_examples=40, deadline=None)
    @given(st.sampled_from(range(len(corpus))), EDITS)
    def check(which: int, edits: list[tuple[int, bytes, int]]) -> None:
        data = bytearray(corpus[which])
        first = 1 if name in ("episodes", "rlds") else 0  # which names the file
        for place, put, replaced in edits:
            at = first + place % max(1, len(data) - first)
            data[at : at + replaced] = put
        assert try_input(reader.read, bytes(data), tmp_path)[1] == ""

    check()


def read(data, folder):
    number = int(data)
    if number == 1:
        raise Wrong("other values")
    if number == 2:
        raise KeyError("untyped")
    if number == 3:
        os._exit(9)
    if number == 4:
        with mmap.mmap(-1, 120 << 20) as block:  # a bytearray may get memory that the process has kept
            block[:: mmap.PAGESIZE] = bytes(len(block) // mmap.PAGESIZE)
    if number == 5:
        time.sleep(600)


def test_every_fault_is_found_and_can_be_repeated(monkeypatch):
    toy = Reader(1, lambda folder: [], read, lambda corpus, rng, number: b"%d" % number)
    monkeypatch.setitem(READERS, "toy", toy)
    harmless = attack("toy", 1, 0)
    assert not harmless.faults
    monkeypatch.setattr(inputs, "LIMIT_BYTES", 60 << 20)
    report = attack("toy", 5, 0)
    found = [re.sub(r" \d+ MiB", "", fault.partition(":")[0]) for fault in report.faults]
    untyped = "KeyError \"'untyped'\" at test_inputs.py"
    assert found == ["wrong", untyped, "the process ended with 9", "took"]
    assert all(
        fault.endswith(f"--reader toy --seed 0 --rounds 1 --from {at + 1}") for at, fault in enumerate(report.faults)
    )
    assert sorted(report.outcomes.elements()) == [
        f"toy {what}" for what in ("crashed", "read", "too large", "untyped", "wrong")
    ]
    monkeypatch.setattr(inputs, "LIMIT_SECONDS", 1.0)
    hung = attack("toy", 1, 0, first=5)
    assert hung.outcomes == {"toy hung": 1} and hung.faults[0].startswith("hung for 1 s: --reader toy")


@pytest.mark.skipif(sys.platform != "linux", reason="asked for of Linux")
def test_what_is_made_apart_ends_with_its_worker():
    receive, send = os.pipe()

    def wait() -> None:
        os.write(send, b"begun")
        time.sleep(600)

    worker = multiprocessing.get_context("fork").Process(target=lambda: apart(wait))
    worker.start()
    os.close(send)
    assert os.read(receive, 5) == b"begun"
    worker.kill()
    worker.join()
    assert select.select([receive], [], [], 30)[0] and os.read(receive, 5) == b""  # nobody has its other end
    os.close(receive)
