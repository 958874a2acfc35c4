"""Random calls from 8 threads and 4 processes on every storage: what `replay_campaign` says, for two seconds a case.

``RBDATA_CAMPAIGN_SECONDS`` is for how long in all; ``RBDATA_CAMPAIGN_SEED`` which calls.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from paths import CAMPAIGN

#: One after the other in one process, as its imports take longer than a case.
CASES = (
    "memmap-random-2-steady",
    "plain-priorities-1-stormy",
    "list-passes-0-steady",
    "shared-slices-3-steady",
    "memmap2-random-0-stormy",
    "dataset-passes-2-steady",
    "tensor-passes-1-steady",
    "shared2-slicepasses-2-stormy",
    "memmap-priorityslices-0-steady",
)


def test_random_calls_of_threads_and_processes():
    seconds = float(os.environ.get("RBDATA_CAMPAIGN_SECONDS", "18"))
    options = ["--here", "--each", str(seconds / len(CASES)), "--seed", os.environ.get("RBDATA_CAMPAIGN_SEED", "0")]
    options += ["--limit", "60", "--spawned", "0"]
    command = [sys.executable, str(CAMPAIGN / "replay_campaign.py"), *options]
    command += [word for name in CASES for word in ("--case", name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * seconds + 600)
    assert done.returncode == 0, done.stderr[-8000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(CASES) and all(result["rows"] for result in results)
