"""``python -m rbdata``: the same as the program ``rbdata``."""

from __future__ import annotations

from .cli import main

if __name__ == "__main__":
    main()
