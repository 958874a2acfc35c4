"""A dataset and a chain of Python functions make a new dataset.

A chunk passes through these modules:

    request    what the user asks for, bound to its input and cut into `chunks`
    function   the functions: identified, found and checked (built-in ones: `functions`)
    run        has workers compute statistics over all data, try the functions on the first steps, which decides the `layout`,
               and make the parts; these become a dataset: episode table, manifest with `lineage`
    worker     reads a chunk and calls the functions (`apply`), checks the `result`, writes a part

``rbdata.preprocess`` is this package, which can be called: see `interface.preprocess`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        from .interface import preprocess

        return preprocess(*args, **options)

    @property
    def __signature__(self) -> Any:
        """The signature of the function, for `help` and completion in notebooks."""
        from inspect import signature

        from .interface import preprocess

        return signature(preprocess)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """The docstring of the function, then that of the package: ``help(rbdata.preprocess)`` shows how it is called."""
        from inspect import getdoc, signature
        from textwrap import fill

        from .interface import preprocess

        head, _, rest = (getdoc(preprocess) or "").partition("\n\n")
        call = fill(f"rbdata.preprocess{signature(preprocess)}", 100, subsequent_indent="    ")
        return f"{head}\n\n{call}\n\n{rest}\n\n{vars(self)['__doc__']}"


sys.modules[__name__].__class__ = _CallablePackage
