"""Where the tests and their data lie."""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(__file__).parent
TESTS = SUPPORT.parent
DATA = TESTS / "data"
CAMPAIGN = TESTS.parent / "benchmarks" / "campaign"
