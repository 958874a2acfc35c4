"""A few kills and damaged working folders of each kind; `make campaign` makes hundreds."""

from __future__ import annotations

import subprocess
import sys

from paths import CAMPAIGN, SUPPORT


def test_a_few_rounds():
    """In a process of its own, as runs are forks of it."""
    code = f"import sys; sys.path[:0] = [{str(CAMPAIGN)!r}, {str(SUPPORT)!r}]\nimport kills\n"
    code += "report = kills.run(6, 1, ['raw', 'web'], workers=False)\nassert not report.faults, report.faults"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
