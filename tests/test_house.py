"""Rules of the whole package, kept by machines.

Which room may import which is in pyproject.toml (``[tool.importlinter]``, run by ``make lint``); these tests hold the rules
that it cannot state.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections import Counter
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest
from rbdata.storage.codecs import CODECS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOUSE = Path(__file__).parents[1]
ROOMS = ("cards", "cli", "datasets", "preprocess", "storage")
MODULES = sorted(
    path.relative_to(HOUSE) for top in ("*.py", *(f"{room}/**/*.py" for room in ROOMS)) for path in HOUSE.glob(top)
)
LINES = {path: len((HOUSE / path).read_text().splitlines()) for path in MODULES}

MOST_LINES_OF_A_MODULE = 400
MOST_LINES = 53_600

#: A folder may have one of each; all other base names are unique, so that a name alone finds the file.
NAMES_OF_MANY = {"__init__.py", "__main__.py", "source.py", "job.py"}

#: Comparisons with a codec's name outside storage/codecs.
MOST_COMPARISONS = 5

#: Folders whose modules are tested together, by the test modules of the same folder under tests/.
TESTED_TOGETHER = {
    ".": "the public functions: through the whole package",
    "cli": "commands as they are typed: output, exit codes, pipes, terminals",
    "datasets/experience": "the dataset classes: from a provider's data to batches, against TorchRL's own where it can run",
    "datasets/fetch": "every transport passes the same tests of conformance and of faults",
    "datasets/ingest": "what sources have in common: through every source",
    "datasets/sources": "what sources declare: through every source",
    "datasets/sources/*": "a source by its datasets: values against independent readers, known traps, damaged input",
    "preprocess": "runs by their result: against the plain function, interrupted, with bad input",
    "storage/remote": "the cache by what is read through it, in several processes; over real stores in datasets/test_remote",
    "storage": "folders by what is written and read back, interrupted and damaged",
}

#: Modules without a test module of their name: the one that tests them. All others: tests/FOLDER/test_NAME.py.
TESTED_BY = {
    "storage/replay/buffer_options": "test_signatures",
    "datasets/experience/replay_options": "test_signatures",
    "datasets/workers/end_with_parent": "datasets/workers/test_pool",
    "datasets/workers/task": "datasets/workers/engines/test_run_tasks",
    "datasets/workers/worker_output": "preprocess/test_worker",
    "cards/animation": "cards/test_frame_sheet",
    "cards/croissant": "cards/test_html_card",
    "cards/facts": "cards/test_html_card",
    "cards/frame_rows": "cards/test_frame_sheet",
    "cards/hub_card": "cards/test_html_card",
    "cards/svg_charts": "cards/test_html_card",
    "datasets/catalogue": "datasets/sources/test_everywhere",
    "datasets/formats/array_spec": "datasets/sources/atari/test_traps",
    "datasets/formats/gunzip": "datasets/sources/atari/test_traps",
    "datasets/formats/hdf5_chunks": "datasets/sources/d4rl/test_download",
    "datasets/formats/jpeg": "datasets/sources/minari/test_values",
    "datasets/formats/npy": "datasets/sources/atari/test_traps",
    "datasets/formats/parquet": "datasets/sources/openml/test_download",
    "datasets/formats/thrift": "datasets/formats/test_parquet_file",
    "datasets/download_process": "datasets/test_background_download",
    "datasets/local": "cli/test_commands",
    "datasets/mirrors/pull": "datasets/mirrors/test_push",
    "datasets/mirrors/remove": "datasets/mirrors/test_push",
    "datasets/waits": "datasets/fetch/test_faults",
    "datasets/workers/engines/engine": "datasets/workers/engines/test_ray_cluster",
    "datasets/workers/engines/processes": "datasets/workers/test_pool",
    "datasets/workers/fork_server": "datasets/workers/test_pool",
    "datasets/workers/quick_start": "datasets/workers/test_pool",
    "preprocess/functions/checks": "preprocess/functions/test_traits",
    "preprocess/functions/frame_layout": "preprocess/functions/test_grayscale",
    "preprocess/functions/leaves": "preprocess/functions/test_traits",
    "storage/codecs/codec": "storage/codecs/test_raw",
    "storage/codecs/compressed": "storage/codecs/test_toy_codec",
    "storage/html_table": "test_face",
    "storage/manifest_types": "storage/test_hostile_folders",
    "storage/replay/argument_checks": "storage/replay/test_bad_input",
    "storage/replay/state_files": "storage/replay/checkpoints/test_checkpoint",
    "storage/replay/ensemble_parts": "storage/replay/test_ensemble",
    "storage/replay/her_buffer": "storage/replay/test_hindsight",
    "storage/replay/loading": "storage/replay/test_buffer",
    "storage/replay/member_parts": "storage/replay/test_ensemble",
    "storage/replay/member_routing": "storage/replay/test_ensemble",
    "storage/replay/pipeline": "storage/replay/test_buffer",
    "storage/replay/reductions": "storage/replay/test_tensordict_buffer",
    "storage/replay/sampling": "storage/replay/test_buffer",
    "storage/replay/trajectory": "storage/replay/test_trajectory_query",
    "storage/replay/trajectory_predicates": "storage/replay/test_trajectory_query",
    "storage/replay/samplers/blocks": "storage/replay/samplers/test_block_order",
    "storage/replay/samplers/permutation": "storage/replay/samplers/test_uniform",
    "storage/replay/storages/episode_storage": "datasets/experience/test_source_replays",
    "storage/replay/samplers/torchrl_states": "storage/replay/samplers/test_prioritized",
    "storage/replay/storages/column_access": "storage/replay/storages/test_dataset_storage",
    "storage/replay/storages/gather": "storage/replay/storages/test_dataset_storage",
    "storage/replay/storages/lazy_tensor_storage": "storage/replay/storages/test_tensor_storage",
    "storage/replay/storages/saved_tensors": "storage/replay/storages/test_part_files",
    "storage/replay/storages/lazy_stack_storage": "storage/replay/storages/test_list_storage",
    "storage/replay/storages/slot_generations": "storage/replay/test_conditional_update",
    "storage/replay/storages/tensor_files": "storage/replay/storages/test_part_files",
    "storage/replay/storages/tree_files": "storage/replay/storages/test_part_files",
    "storage/replay/storages/tensor_layout": "storage/replay/storages/test_tensor_storage",
    "storage/replay/storages/trees": "storage/replay/storages/test_list_storage",
    "storage/replay/transforms/n_step_transform": "storage/replay/test_torchrl",
    "storage/replay/transforms/split": "storage/replay/test_torchrl",
    "storage/replay/windows/draw": "storage/replay/samplers/test_slices",
    "storage/replay/windows/n_step_return": "storage/replay/test_batches",
    "storage/replay/windows/slice_flags": "storage/replay/test_batches",
    "storage/replay/writers/base": "storage/replay/test_buffer",
    "storage/replay/writing": "storage/replay/test_buffer",
    "storage/replay/writers/round_robin": "storage/replay/test_buffer",
}


def test_no_import_circles():
    """Between modules, imports inside functions and under TYPE_CHECKING included."""
    graph = grimp.build_graph("rbdata", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) >= len(MODULES)
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
    assert {name for name, count in times.items() if count > 1} == set()


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


def test_every_module_has_its_tests():
    """Its name, or its folder's, or the table above finds them."""
    for path in MODULES:
        if path.name in ("__init__.py", "__main__.py") or any(
            fnmatch(str(path.parent), key) for key in TESTED_TOGETHER
        ):
            continue
        module = str(path.with_suffix(""))
        named = list((HOUSE / "tests" / path.parent).glob(f"test_{path.stem}*.py"))
        assert named or module in TESTED_BY, f"{module} has no tests/{path.parent}/test_{path.stem}.py"
        assert named or (HOUSE / "tests" / f"{TESTED_BY[module]}.py").exists(), TESTED_BY[module]
    assert {f"{module}.py" for module in TESTED_BY} <= set(map(str, MODULES))


def test_tests_mirror_the_package():
    """A folder of the package has a folder of tests, and the reverse."""
    tests = {path.parent.relative_to(HOUSE / "tests") for path in (HOUSE / "tests").glob("**/test_*.py")}
    folders = {path.parent for path in MODULES}
    assert tests - folders == {Path("examples"), Path("campaign")}
    assert folders - tests <= {Path("storage/codecs")}


def test_public_names_exist() -> None:
    import rbdata

    assert not [name for name in rbdata.__all__ if not hasattr(rbdata, name)]


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
