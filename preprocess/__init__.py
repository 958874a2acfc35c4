"""A dataset and a chain of Python functions make a new dataset.

A chunk passes through these modules:

    preprocess_request   what the user asks for
    function_chain       the functions, looked up and checked (`function`, `functions`)
    run_context          the request bound to its input, cut into `chunks`; `run_config` is the part that workers need
    first_pass           statistics that functions need of all data
    probe                the functions are tried on the first steps, which decides the `layout` of the new dataset
    worker               reads a chunk (`input_view`), calls the functions (`apply`, `process_state`), checks the `result`,
                         writes a `part`
    passthrough          rows that no function changed are copied as they are stored
    finish               the parts become a dataset: episode table, manifest with `lineage`

`driver` runs them in this order. ``rbdata.preprocess`` is this package, which can be called: see `interface.preprocess`.
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
        """That of the function, for `help` and completion in notebooks."""
        from inspect import signature

        from .interface import preprocess

        return signature(preprocess)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """That of the function, before that of the package: ``help(rbdata.preprocess)`` shows how it is called."""
        from inspect import getdoc, signature
        from textwrap import fill

        from .interface import preprocess

        head, _, rest = (getdoc(preprocess) or "").partition("\n\n")
        call = fill(f"rbdata.preprocess{signature(preprocess)}", 100, subsequent_indent="    ")
        return f"{head}\n\n{call}\n\n{rest}\n\n{vars(self)['__doc__']}"


sys.modules[__name__].__class__ = _CallablePackage
