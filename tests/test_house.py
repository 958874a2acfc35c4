"""Rules of the whole package, kept by machines.

Which room may import which is in pyproject.toml (``[tool.importlinter]``, run by ``make lint``); these tests hold the rules
that it cannot state.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import tomllib
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import grimp
import pytest
from rbdata._version import __version__
from rbdata.storage.codecs import CODECS

HOUSE = Path(__file__).parents[1]
ROOMS = ("cli", "datasets", "preprocess", "storage")
MODULES = sorted(
    path.relative_to(HOUSE) for top in ("*.py", *(f"{room}/**/*.py" for room in ROOMS)) for path in HOUSE.glob(top)
)

#: Comparisons with a codec's name outside storage/codecs.
MOST_COMPARISONS = 5


def test_no_import_circles():
    """Between modules, imports inside functions and under TYPE_CHECKING included."""
    graph = grimp.build_graph("rbdata", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) >= len(MODULES)
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_packages_are_installed():
    """What is not listed in pyproject.toml would be missing from a wheel."""
    listed = tomllib.loads((HOUSE / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {".".join(("rbdata", *path.parent.parts)) for path in MODULES}
    assert sorted(listed) == sorted(folders)


def test_the_oldest_versions_are_those_of_the_bounds():
    """`make oldest` runs the least version of everything that users install."""
    project = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]
    extras = {name: needs for name, needs in project["optional-dependencies"].items() if name not in ("dev", "docs")}
    stated = [
        need.partition(";") for need in (*project["dependencies"], *(one for some in extras.values() for one in some))
    ]
    wanted = {need.strip().replace(">=", "==") + (f" ; {when.strip()}" if when else "") for need, _, when in stated}
    lines = (HOUSE / "constraints-oldest.txt").read_text().splitlines()
    pinned = {line for line in lines if line and not line.startswith("#")}
    assert wanted == pinned


def test_a_version_is_stated_once():
    """What a release is cut from: the package, its citation and the newest section of the change log."""
    citation = (HOUSE / "CITATION.cff").read_text()
    stated = re.search(r"^version: (.+)$", citation, re.MULTILINE)[1]
    dated = re.search(r"^date-released: (.+)$", citation, re.MULTILINE)[1]
    section = re.search(r"^## \[(\d.*)\] - (.+)$", (HOUSE / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert (section[1], section[2]) == (stated, dated) and stated == __version__


def test_links_of_the_documents_lead_into_the_installed_package():
    """Outside a checkout too: messages name pages of the installed package, and pages others."""
    tables = tomllib.loads((HOUSE / "pyproject.toml").read_text())["tool"]["setuptools"]
    installed = {path for pattern in tables["package-data"]["rbdata"] for path in HOUSE.glob(pattern)}
    known = installed | {path.parent for path in installed}
    dead = []
    for page in sorted(installed):
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text() if page.parent.name in ("docs", "sources") else ""):
            if "://" not in link and Path(os.path.normpath(page.parent / link)) not in known:
                dead.append(f"{page.name}: {link}")
    assert not dead and HOUSE / "docs" / "mirrors.md" in installed


def test_modules_that_the_design_names_are_there():
    """By their paths from the root, or from a folder above them."""
    named = set(re.findall(r"`([\w/]+\.py)`", (HOUSE / "docs" / "architecture.md").read_text()))
    there = {name for name in named for path in MODULES if f"/{path}".endswith(f"/{name}") or (HOUSE / name).is_file()}
    assert named == there


def test_folders_are_packages():
    assert {path.parent for path in MODULES} == {path.parent for path in MODULES if path.name == "__init__.py"}


def test_codecs_are_asked_not_compared():
    """A new codec is a module of storage/codecs: what depends on it elsewhere asks the codec, not for its name."""
    compared = []
    for path in MODULES:
        if Path("storage/codecs") in path.parents:
            continue
        for node in ast.walk(ast.parse((HOUSE / path).read_text())):
            if isinstance(node, ast.Compare):
                values = {leaf.value for leaf in ast.walk(node) if isinstance(leaf, ast.Constant)}
                compared += [f"{path}:{node.lineno}"] * bool(values & set(CODECS))
    assert len(compared) <= MOST_COMPARISONS, compared


def test_tensors_of_the_storage_room_name_their_device():
    """Otherwise they lie on the device that a user's program gave to ``torch.set_default_device``."""
    makers = {"arange", "empty", "full", "linspace", "ones", "rand", "randint", "randperm", "tensor", "zeros"}
    nameless = []
    for path in (one for one in MODULES if one.parts[0] == "storage" and one.name != "tensor_specs.py"):
        for node in ast.walk(ast.parse((HOUSE / path).read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            is_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
            if is_torch and node.func.attr in makers and "device" not in {one.arg for one in node.keywords}:
                nameless.append(f"{path}:{node.lineno} {node.func.attr}")
    assert nameless == []


def test_tests_mirror_the_package():
    """A folder of the package has a folder of tests, and the reverse."""
    tests = {path.parent.relative_to(HOUSE / "tests") for path in (HOUSE / "tests").glob("**/test_*.py")}
    folders = {path.parent for path in MODULES}
    assert tests - folders == {Path("examples"), Path("campaign")}
    assert folders - tests <= {Path("storage/codecs")}


def test_public_names_exist() -> None:
    import rbdata

    assert not [name for name in rbdata.__all__ if not hasattr(rbdata, name)]
    for name in ("datasets", "datasets.sources", "preprocess.functions", "storage.replay"):
        package = import_module(f"rbdata.{name}")
        assert not [name for name in dir(package) if not hasattr(package, name)], package


@pytest.mark.parametrize("path", sorted((HOUSE / ".github/workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_workflows_run_targets_that_exist_and_end(path):
    text, makefile = path.read_text(), (HOUSE / "Makefile").read_text()
    (targets,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    calls = re.findall(r"\bmake ([a-z]+)(.*)", text)
    assert calls and {target for target, _ in calls} <= set(targets.split())
    for _, given in calls:
        assert set(re.findall(r"([A-Z]+)=", given)) <= set(re.findall(r"^([A-Z]+) \?=", makefile, re.MULTILINE))
    jobs = len(re.findall(r"^    runs-on: ", text, re.MULTILINE))
    assert len(re.findall(r"^    timeout-minutes: \d+$", text, re.MULTILINE)) == jobs
    assert "permissions:\n  contents: read\n" in text


def test_reference_pages_are_those_of_this_code(monkeypatch):
    """If they are not: python docs/reference.py. Other versions of Typer word some lines differently."""
    pinned = (HOUSE / "constraints.txt").read_text()
    if any(f"{name}=={version(name)}" not in pinned for name in ("typer", "click")):
        pytest.skip("the pages are written with the versions of constraints.txt")
    monkeypatch.syspath_prepend(str(HOUSE / "docs" / "extensions"))
    spec = importlib.util.spec_from_file_location("reference", HOUSE / "docs" / "reference.py")
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    for page in reference.PAGES:
        assert reference.written(page) == (reference.DOCS / page).read_text(encoding="utf-8"), page


def test_the_tests_of_the_promises_are_there():
    """The table in CONTRIBUTING.md, from each promise of the README to the tests that fail if it breaks."""
    _, _, rest = (HOUSE / "CONTRIBUTING.md").read_text().partition("## What the tests hold")
    table = rest.partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    for row in rows:
        for name in re.findall(r"`([\w/*.]+(?:::\w+)*)`", row.rsplit("|", 2)[1]):
            path, *inner = name.split("::")
            # A file name without a folder follows one in the same folder.
            found = [*(HOUSE / "tests").glob(path)] or [*(HOUSE / "tests").glob(f"**/{path}")]
            assert found, f"{name} of {row}"
            for one in inner:
                assert any(f" {one}" in file.read_text() for file in found), f"{name} of {row}"
    assert len(rows) > 20
