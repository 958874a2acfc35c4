"""Rules of the whole package, kept by machines.

Which room may import which is in pyproject.toml (``[tool.importlinter]``, run by ``make lint``); these tests hold the rules
that it cannot state.
"""

from __future__ import annotations

import sys
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOUSE = Path(__file__).parents[1]
ROOMS = ("cli", "datasets", "preprocess", "storage")
MODULES = sorted(
    path.relative_to(HOUSE) for top in ("*.py", *(f"{room}/**/*.py" for room in ROOMS)) for path in HOUSE.glob(top)
)
LINES = {path: len((HOUSE / path).read_text().splitlines()) for path in MODULES}

MOST_LINES_OF_A_MODULE = 400
MOST_LINES = 32_600

#: A folder may have one of each; all other base names are unique, so that a name alone finds the file.
NAMES_OF_MANY = {"__init__.py", "__main__.py", "source.py", "job.py"}

#: Import circles that exist still; each goes with the import that it names.
TEMPORARY_CIRCLES = [
    ("rbdata.preprocess.worker", "rbdata.preprocess.tasks"),
    ("rbdata.preprocess.finish", "rbdata.preprocess.driver"),
    ("rbdata.preprocess.first_pass", "rbdata.preprocess.driver"),
    ("rbdata.preprocess.probe", "rbdata.preprocess.driver"),
    ("rbdata.storage.ted", "rbdata.storage.dataset"),
]
TEMPORARY_NAMES = {"fill.py", "spool.py"}


def test_no_import_circles():
    """Between modules, imports inside functions and under TYPE_CHECKING included."""
    graph = grimp.build_graph("rbdata", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) >= len(MODULES)
    for importer, imported in TEMPORARY_CIRCLES:
        imports.get(importer, set()).discard(imported)
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_modules_are_short():
    long = {str(path) for path, lines in LINES.items() if lines > MOST_LINES_OF_A_MODULE}
    assert long == set()


def test_the_package_does_not_grow():
    """A new source or codec may need more: raise the bound then, and for nothing else."""
    assert sum(LINES.values()) < MOST_LINES


def test_base_names_are_unique():
    times = Counter(path.name for path in MODULES if path.name not in NAMES_OF_MANY)
    assert {name for name, count in times.items() if count > 1} <= TEMPORARY_NAMES


def test_packages_are_installed():
    """What is not listed in pyproject.toml would be missing from a wheel."""
    listed = tomllib.loads((HOUSE / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {".".join(("rbdata", *path.parent.parts)) for path in MODULES}
    assert sorted(listed) == sorted(folders)


def test_folders_are_packages():
    assert {path.parent for path in MODULES} == {path.parent for path in MODULES if path.name == "__init__.py"}
