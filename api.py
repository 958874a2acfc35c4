"""The Python face of the commands; see each function."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass

PathLike = str | os.PathLike[str] if TYPE_CHECKING else Any
