"""A few seconds of the campaign `inputs`: the frame of it, and the readers that are quick to start."""

from __future__ import annotations

import os
import re
import time

import input_readers
import inputs
import pytest
from input_readers import READERS, Reader, Wrong
from inputs import attack


@pytest.mark.parametrize("name", ["npy", "gzip", "tfrecord", "png", "jpeg", "arff", "metadata", "manifest", "episodes"])
def test_no_reader_is_fooled(name):
    report = attack(name, 60, 1)
    assert report.rounds == sum(report.outcomes.values()) == 60
    assert report.faults == [] and report.peak_memory > 0


def read(data, folder):
    number = int(data)
    if number == 1:
        raise Wrong("other values")
    if number == 2:
        raise KeyError("untyped")
    if number == 3:
        os._exit(9)
    if number == 4:
        time.sleep(60)
    if number == 5:
        bytearray(120 << 20)


def test_every_fault_is_found_and_can_be_repeated(monkeypatch):
    monkeypatch.setattr(inputs, "LIMIT_SECONDS", 4.0)
    monkeypatch.setattr(inputs, "LIMIT_BYTES", inputs.own_peak() + (60 << 20))
    toy = Reader(1, lambda folder: [], read, lambda corpus, rng, number: b"%d" % number, 7)
    monkeypatch.setitem(input_readers.READERS, "toy", toy)
    assert READERS["toy"] is toy
    report = attack("toy", 7, 0)
    assert [re.sub(r" \d+ MiB", "", fault.partition(":")[0]) for fault in report.faults] == [
        *(
            "wrong",
            "KeyError \"'untyped'\" at test_inputs.py",
            "the process ended with 9",
            "hung for 4 s",
            "took",
        )
    ]
    assert all(
        fault.endswith(f"--reader toy --seed 0 --rounds 1 --from {at + 1}") for at, fault in enumerate(report.faults)
    )
    assert report.outcomes == {
        "toy read": 2,
        "toy wrong": 1,
        "toy untyped": 1,
        "toy crashed": 1,
        "toy hung": 1,
        "toy too large": 1,
    }
