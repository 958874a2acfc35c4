"""The table of campaigns, and the process that a campaign runs in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from report import Report, page, peak_memory, reset_peak, table
from runner import run


def test_table_and_page():
    sound = Report("transfers", 7, rounds=1_000, seconds=90, peak_memory=200_000_000)
    sound.outcomes.update(["same bytes", "refused", "same bytes"])
    faulty = Report("kills", 7, rounds=3, faults=["seed 12: a folder is left"] * 60)
    text = table([sound, faulty])
    assert "| transfers | 1,000  | 0      | 200 MB      | 1.5 min | refused 1, same bytes 2 |" in text
    assert text.count("- kills: seed 12: a folder is left") == 50 and "and 10 more" in text
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1
    assert "seed 7, 0.1 of the rounds" in page([sound, faulty], 0.1)


def test_memory_and_time_are_measured():
    report = Report("inputs", 0)
    with report.measured():
        block = bytearray(60 << 20)
    assert report.peak_memory >= len(block) and report.seconds > 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_children_that_ended_before_are_not_counted():
    subprocess.run([sys.executable, "-c", "held = bytearray(300 << 20)"], check=True)
    reset_peak()
    assert peak_memory() < 300 << 20 or own_memory() > 300 << 20
    subprocess.run([sys.executable, "-c", "held = bytearray(900 << 20)"], check=True)
    assert peak_memory() > 900 << 20


def own_memory() -> int:
    """Bytes of this process, in which other tests ran before."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_campaign_that_dies_is_a_fault():
    (fault,) = run("no such campaign", 1, 5).faults
    assert "ModuleNotFoundError" in fault and "seed 5" in fault
