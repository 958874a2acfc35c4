"""Functions of users given as text: how they are found, and which files are their identity."""

import hashlib
import sys
import tempfile

import pytest
from rbdata.datasets import user_code
from rbdata.datasets.user_code import find, identity
from rbdata.errors import FunctionError, UsageError


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch):
    """Modules and folders that a test makes importable end with it, and those of other tests before it."""
    for name in user_code._loaded:
        sys.modules.pop(name, None)
    user_code._loaded.clear()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in user_code._folders])
    monkeypatch.setattr("rbdata.datasets.user_code._folders", [])
    monkeypatch.setattr("rbdata.datasets.user_code._loaded", {})
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(tempfile.gettempdir()):
            del sys.modules[name]


@pytest.fixture
def project(tmp_path):
    """A file that imports a helper, which imports a package, each in another way."""
    write(tmp_path / "mine.py", "import numpy, json\nfrom helper import gain\n\n\ndef fn(td):\n    return td * gain\n")
    write(tmp_path / "helper.py", "gain = 2\n\n\ndef late():\n    from own.deep import tools\n    return tools\n")
    write(tmp_path / "own" / "__init__.py", "")
    write(tmp_path / "own" / "deep" / "__init__.py", "from ..base import x\n")
    write(tmp_path / "own" / "deep" / "tools.py", "from . import other\n")
    write(tmp_path / "own" / "deep" / "other.py", "")
    write(tmp_path / "own" / "base.py", "x = 1\n")
    write(tmp_path / "unrelated.py", "y = 1\n")
    return tmp_path


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_function_of_a_file_and_of_a_module(project):
    assert find("mine.py:fn", project)(3) == 6
    assert find(f"{project}/mine.py:fn")(3) == 6
    assert find("helper:gain", project) == 2
    assert find("mine.py", project).gain == 2
    assert find("json:JSONDecoder.decode", project).__qualname__ == "JSONDecoder.decode"


def test_installed_packages_come_before_the_folder(project):
    write(project / "json.py", "def dumps(x):\n    return 'mine'\n")
    assert find("json:dumps", project)([1]) == "[1]"
    assert find("json.py:dumps", project)([1]) == "mine"


def test_the_identity_is_the_file_and_the_local_files_that_it_imports(project):
    found = identity("mine.py:fn", project)
    assert next(iter(found)) == "mine.py"
    assert found.keys() == {
        *("mine.py", "helper.py", "own/__init__.py", "own/base.py"),
        *("own/deep/__init__.py", "own/deep/tools.py", "own/deep/other.py"),
    }
    assert found["helper.py"] == hashlib.sha256((project / "helper.py").read_bytes()).hexdigest()
    assert not {"helper", "own"} & sys.modules.keys()


def test_an_edited_helper_is_another_identity_and_an_unrelated_file_is_not(project):
    before = identity("mine.py:fn", project)
    write(project / "unrelated.py", "y = 1  # a comment\n")
    assert identity("mine.py:fn", project) == before
    write(project / "own" / "base.py", "x = 2\n")
    now = identity("mine.py:fn", project)
    assert {name for name in now if now[name] != before[name]} == {"own/base.py"}


def test_a_file_is_known_wherever_the_command_runs(project):
    assert identity("mine.py:fn", project) == identity(f"{project}/mine.py:fn")


def test_an_installed_module_is_its_own_file(project):
    assert identity("json.decoder:JSONDecoder", project).keys() == {"json/decoder.py"}


def test_edited_files_are_loaded_again(project):
    assert find("mine.py:fn", project)(1) == 2
    write(project / "helper.py", "gain = 30\n")
    assert find("mine.py:fn", project)(1) == 30
    assert find("mine.py:fn", project) is find("mine.py:fn", project)


def test_what_is_imported_when_a_function_runs_is_loaded_again(project):
    write(project / "lazy.py", "def fn():\n    from helper import gain\n    return gain\n")
    assert find("lazy.py:fn", project)() == 2
    write(project / "helper.py", "gain = 30\n")
    assert find("lazy.py:fn", project)() == 30


def test_files_of_two_folders_have_their_own_helpers(project, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    write(other / "theirs.py", "from helper import gain\n\n\ndef fn(td):\n    return gain\n")
    write(other / "helper.py", "gain = 'theirs'\n")
    assert find("mine.py:fn", project)(1) == 2
    assert find("theirs.py:fn", other)(1) == "theirs"
    assert find("mine.py:fn", project)(1) == 2


@pytest.mark.parametrize(
    "reference, error, said",
    [
        ("fn", UsageError, "file.py:name"),
        ("mine.py:", UsageError, "file.py:name"),
        ("mine.py:f n", UsageError, "file.py:name"),
        ("mime.py:fn", UsageError, "mine.py"),
        ("mine.py:fm", UsageError, "fn"),
        ("mine:fm", UsageError, "fn"),
        ("helpers:late", UsageError, "helper:late"),
        ("own.deep.tool:x", UsageError, "no module"),
        ("mine.x:fn", UsageError, "no module"),
    ],
)
def test_what_is_not_there(project, reference, error, said):
    with pytest.raises(error) as raised:
        find(reference, project)
    assert said in str(raised.value)


@pytest.mark.parametrize("text", ["import no_such_package\n", "raise SystemExit(0)\n", "1 / 0\n"])
def test_a_failing_import_has_its_traceback(project, text):
    write(project / "bad.py", text)
    with pytest.raises(FunctionError) as raised:
        find("bad.py:fn", project)
    assert "bad.py" in raised.value.detail and text.split()[0] in raised.value.detail
    assert "user_code.py" not in raised.value.detail
    write(project / "bad.py", "def fn():\n    return 1\n")
    assert find("bad.py:fn", project)() == 1


def test_what_is_not_python(project):
    write(project / "bad.py", "def fn(:\n")
    with pytest.raises(FunctionError, match="is not Python"):
        identity("bad.py:fn", project)
