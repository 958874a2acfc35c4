"""Functions looked up by name, and their arguments: what is not found, and what the message suggests."""

from __future__ import annotations

import sys

import pytest
from preprocess_tools import fails, run
from rbdata.errors import FunctionError, UsageError


class TestFindingFunctions:
    @pytest.fixture(autouse=True)
    def user_code(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "mine.py").write_text("value = 3\ndef relabel(td, factor=1): return td\nclass Some: pass\n")
        (tmp_path / "broken.py").write_text("import not_there_at_all\ndef fn(td): return td\n")
        (tmp_path / "datasets.py").write_text("def fn(td): return td\n")
        yield
        for name in ("mine", "broken", "datasets"):
            sys.modules.pop(name, None)
        sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]

    def test_no_such_module(self, shared, tmp_path):
        error = fails(shared, "mime:relabel", UsageError, "no module 'mime'")
        assert str(tmp_path) in str(error)
        assert "mine:relabel" in error.hint

    def test_no_such_file(self, shared, tmp_path):
        error = fails(shared, "mime.py:relabel", UsageError, str(tmp_path / "mime.py"))
        assert "mine.py" in error.hint

    @pytest.mark.parametrize("where", ["mine", "mine.py", "./mine.py"])
    def test_no_such_function(self, shared, where):
        error = fails(shared, f"{where}:relable", UsageError, "there is no 'relable' in .*mine.py")
        assert error.hint == "it has relabel"

    def test_no_such_builtin_function(self, shared):
        error = fails(shared, "rbdata:to_flaot", UsageError, "to_flaot")
        assert "to_float" in error.hint

    def test_not_callable(self, shared):
        fails(shared, "mine:value", UsageError, "of type int and cannot be called")
        fails(shared, 3, UsageError, "int")

    def test_no_name(self, shared):
        for text in ("mine", "mine:", ":relabel", ""):
            fails(shared, text, UsageError, "names no function")

    def test_a_module_that_fails(self, shared):
        error = fails(shared, "broken:fn", FunctionError, "ModuleNotFoundError.*not_there_at_all")
        assert "broken.py" in error.detail

    def test_the_current_directory_comes_last(self, shared):
        """A file called datasets.py, as in any project, must not be taken for something else, nor the reverse."""
        run(shared, "datasets.py:fn", dest="my/found", force=True)

    def test_unknown_argument(self, shared):
        error = fails(shared, "mine:relabel", UsageError, "takes no argument 'fcator'", args={"fcator": 2})
        assert error.hint == "did you mean factor?"
        fails(shared, "mine:relabel", UsageError, "no function called 'other'", args={"other.factor": 2})

    @pytest.mark.parametrize("text, default, kind", [("no", True, "bool"), ("1,5", 0.5, "float"), ("many", 3, "int")])
    def test_text_for_a_bool_or_a_number(self, shared, text, default, kind):
        """The text "no" counts as true."""
        match = f"argument flag is the text '{text}', and its default is of type {kind}"
        error = fails(shared, lambda td, flag=default: td, UsageError, match, args={"flag": text})
        assert error.hint == ("write true or false" if kind == "bool" else "write a number")
        run(shared, lambda td, flag=default: td, dest="my/typed", args={"flag": default}, force=True)
        run(shared, lambda td, flag="x": td, dest="my/text", args={"flag": text}, force=True)

    def test_missing_argument(self, shared):
        fails(shared, lambda td, factor: td, UsageError, "cannot be called .*factor")

    def test_cannot_be_sent(self, shared, tmp_path):
        with (tmp_path / "open").open("w") as file:
            fails(shared, lambda td: file.name and td, UsageError, "cannot be sent to worker processes", procs=1)
