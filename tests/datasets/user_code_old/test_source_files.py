"""Which local files a module of a user reaches by its imports."""

from __future__ import annotations

from rbdata.datasets.user_code_old.source_files import local_imports


def test_modules_in_namespace_packages_that_are_not_imported(tmp_path, monkeypatch):
    module = tmp_path / "outer_space" / "inner_space" / "tools.py"
    module.parent.mkdir(parents=True)
    module.write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = [("outer_space.inner_space.tools", module)]
    assert local_imports("outer_space.inner_space.tools") == found
    assert local_imports("outer_space.inner_space", ["tools", "other"]) == found
    assert local_imports("outer_space.nothing.tools") == []
