"""Random calls from 8 threads and 4 processes on every storage: what `replay_campaign` says, for a hundredth of an hour.

``RBDATA_CAMPAIGN_SECONDS`` is for how long; ``RBDATA_CAMPAIGN_SEED`` which calls.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from paths import CAMPAIGN

#: Each group runs in a process of its own, one case after the other; the very first case has a spawned process among its four.
GROUPS = (
    ("memmap-random-2-steady", "plain-priorities-1-stormy", "list-passes-0-steady"),
    ("shared-slices-3-steady", "memmap2-random-0-stormy", "dataset-passes-2-steady"),
    ("tensor-passes-1-steady", "shared2-slicepasses-2-stormy", "memmap-priorityslices-0-steady"),
)


def test_random_calls_of_threads_and_processes():
    seconds = float(os.environ.get("RBDATA_CAMPAIGN_SECONDS", "36")) / sum(map(len, GROUPS))
    options = ["--here", "--each", str(seconds), "--seed", os.environ.get("RBDATA_CAMPAIGN_SEED", "0")]
    options += ["--limit", "60"]
    running = []
    for group in GROUPS:
        spawned = str(int(group is GROUPS[0]))
        command = [sys.executable, str(CAMPAIGN / "replay_campaign.py"), *options, "--spawned", spawned]
        command += [word for name in group for word in ("--case", name)]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    for process, group in zip(running, GROUPS):
        output, errors = process.communicate(timeout=3 * seconds + 600)
        assert process.returncode == 0, errors[-8000:]
        results = [json.loads(line) for line in output.splitlines()]
        assert len(results) == len(group) and all(result["rows"] for result in results)
