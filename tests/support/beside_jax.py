"""JAX in sight only of the tests that ask for it: beside it, the workers of loaders are started another way."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_HIDDEN = "jax, out of sight"


@contextmanager
def beside_jax() -> Iterator[None]:
    """A block that may import JAX, of which the tests that come after see nothing."""
    if _HIDDEN in sys.modules:
        sys.modules["jax"] = sys.modules[_HIDDEN]
    try:
        yield
    finally:
        if "jax" in sys.modules:
            sys.modules[_HIDDEN] = sys.modules.pop("jax")
