"""Where things are: command-line flags over environment variables over defaults.

RBDATA_ROOT                 where datasets lie (default: the platform's user cache folder + rbdata)
RBDATA_MIRROR               a mirror for every source
RBDATA_<SOURCE>_MIRROR      a mirror for one source (RBDATA_ATARI_MIRROR); wins over RBDATA_MIRROR
"""

from __future__ import annotations

import os
from pathlib import Path


def root(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder that datasets lie in, absolute. Nothing is created."""
    chosen = given or os.environ.get("RBDATA_ROOT")
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("rbdata"))


def mirror(source: str) -> str | None:
    """The mirror the environment names for a source, if any."""
    return os.environ.get(f"RBDATA_{source.upper()}_MIRROR") or os.environ.get("RBDATA_MIRROR") or None
