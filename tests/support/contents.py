"""What a dataset's folder holds, for comparison."""

from __future__ import annotations

from rbdata.testing import dataset_content as content

__all__ = ["content"]
