"""How long tests look that could look for any length of time."""

from __future__ import annotations

import os

#: 1 in ``make test``; ``make campaign`` takes more.
EFFORT = int(os.environ.get("RBDATA_TEST_EFFORT", "1"))


def examples(count: int) -> int:
    """Examples of a property test that looks at so many with an effort of 4: a quarter of them with one of 1."""
    return max(5, count * EFFORT // 4)
