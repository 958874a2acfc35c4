"""A dataset through a user's function into a new one.

    input  --view-->  batches, episodes  --functions-->  results  --parts-->  new dataset

``run`` is the way through: `trial` looks at the first result, `first_pass` collects what functions must know beforehand,
`work` is what an engine's workers do for each chunk, `finish` adds it up. ``rbdata.preprocess(...)`` is the function
`api.preprocess`; the package of this name can be called as well, since Python puts it in the function's place as soon as it
is imported.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from ..api import preprocess

        return preprocess(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
