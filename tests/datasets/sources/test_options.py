"""What sources declare: the check of values, the tables in the documents, the sources that other packages register."""

from __future__ import annotations

import warnings
from importlib.metadata import EntryPoint

import numpy as np
import pytest
from paths import DATA
from rbdata.cli import run
from rbdata.datasets import catalogue
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.sources.options import SourceOption
from rbdata.datasets.sources.source import Source
from rbdata.errors import MissingExtraError, PluginWarning, UsageError
from rbdata.storage import plugins

DOCS = DATA.parents[1] / "docs" / "sources"


# -- values ------------------------------------------------------------------------------------------------------------


class Everything(Source):
    name = "everything"
    home = "/"
    options = (
        SourceOption("word", "a text", default="hello"),
        SourceOption("choice", "one of two", choices=("a", "b")),
        SourceOption("count", "a whole number", int, 3, least=1),
        SourceOption("share", "a number", float, least=0, most=1),
        SourceOption("flag", "a flag", bool, False),
        SourceOption("names", "a mapping", dict, {}),
        SourceOption("only", "of convert", commands=("convert",)),
    )


def check(command: str = "download", **extra: object) -> dict:
    return dict(Everything().check(ConvertOptions(extra=extra), command).extra)


def test_every_option_has_a_value():
    assert check() == {
        "word": "hello",
        "choice": None,
        "count": 3,
        "share": None,
        "flag": False,
        "names": {},
        "only": None,
    }
    assert check(word=None)["word"] == "hello"
    assert check(choice="b", count=7, share=1, flag=True, names={"x": 1})["names"] == {"x": 1}
    assert type(check(count=np.int64(5))["count"]) is int
    assert check("convert", only="x")["only"] == "x"


@pytest.mark.parametrize(
    "extra, words",
    [
        ({"word": 1}, "word is 1, must be a string"),
        ({"choice": "c"}, "choice is 'c', must be one of a, b"),
        ({"count": 0}, "count is 0, must be an integer of at least 1"),
        ({"count": True}, "count is True"),
        ({"count": 1.0}, "count is 1.0"),
        ({"count": "1"}, "count is '1'"),
        ({"share": 1.5}, "share is 1.5, must be a number from 0 to 1"),
        ({"share": float("nan")}, "share is nan"),
        ({"flag": 1}, "flag is 1, must be True or False"),
        ({"names": {1: 2}}, "names is {1: 2}, must be a mapping"),
        ({"colour": 1}, "everything has no option colour for download"),
        ({"only": "x"}, "everything has no option only for download"),
    ],
)
def test_values_that_are_refused(extra, words):
    with pytest.raises(UsageError, match=words) as refused:
        check(**extra)
    assert refused.value.hint


def test_general_options_that_choose_data_must_be_supported():
    for options in (ConvertOptions(parts=(0,)), ConvertOptions(time_limit=9)):
        with pytest.raises(UsageError, match="datasets of everything"):
            Everything().check(options, "download")
        supporting = type("Supporting", (Everything,), {"supports": frozenset({"parts", "time_limit"})})
        supporting().check(options, "download")


@pytest.mark.parametrize(
    "name, more", [("root", {}), ("a b", {}), ("x", {"type": list}), ("x", {"type": int, "setting": True})]
)
def test_declarations_that_are_refused(name, more):
    with pytest.raises(ValueError):
        SourceOption(name, "x", **more)


# -- documents ---------------------------------------------------------------------------------------------------------


def table(source: Source) -> str:
    """The options of a source as its document shows them."""
    lines = ["| option | default | |", "| --- | --- | --- |"] if source.options else []
    for option in source.options:
        choices = f": {', '.join(f'`{choice}`' for choice in option.choices)}" if option.choices else ""
        flag = f" (`{option.flag} {option.metavar}`)" if option.flag != "--" + option.name.replace("_", "-") else ""
        only = f"; {option.commands[0]} only" if len(option.commands) == 1 else ""
        default = "" if option.default is None or option.type is bool else f"`{option.default}`"
        lines.append(f"| `{option.name}` | {default} | {option.help}{choices}{flag}{only} |".replace("|  |", "| |"))
    general = ", ".join(f"`{'shards' if name == 'parts' else name}`" for name in sorted(source.supports))
    lines += ["", f"General options that apply: {general or 'none'}."]
    return "\n".join(lines).strip()


@pytest.mark.parametrize("name", plugins.BUILT_IN)
def test_documents_have_the_options_as_declared(name):
    expected = table(catalogue.load_source(name))
    assert expected in (DOCS / f"{name}.md").read_text(), f"docs/sources/{name}.md should have\n\n{expected}\n"


# -- sources of other packages -----------------------------------------------------------------------------------------


@pytest.fixture
def register(monkeypatch):
    """Register entry points of the group ``rbdata.sources``."""

    def add(**entries: str) -> None:
        found = [EntryPoint(name, value, plugins.GROUP) for name, value in entries.items()]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found)
        plugins.registered.cache_clear()

    yield add
    monkeypatch.undo()
    plugins.registered.cache_clear()


class Listed(Source):
    name = "listed"
    home = "/nowhere"
    options = (
        SourceOption("steps", "a text, unlike that of gymnasium"),
        SourceOption("text", "another text", choices=("bytes", "hex")),
        SourceOption("dry_run", "like an option of the command itself", bool),
    )

    def names(self) -> list[str]:
        return ["one", "two"]


class Failing(Listed):
    name = "failing"

    def names(self) -> list[str]:
        raise RuntimeError("no names today")


HERE = f"{__name__}:"


def test_a_registered_source(register, tmp_path, capsys):
    register(listed=HERE + "Listed")
    assert catalogue.known_ids("listed") == ["listed/one", "listed/two"]
    assert catalogue.resolve("two")[0] == "listed/two"
    assert run(["download", "--help"]) == 0
    help_text = " ".join(capsys.readouterr().out.split())
    assert "--listed-steps STEPS" in help_text and "--listed-dry-run" in help_text
    assert "--text <bytes|omit|hex> minari" in help_text and "listed: another text." in help_text
    assert run(["download", "gymnasium/CartPole-v1", "--text", "hex", "--root", str(tmp_path)]) == 2
    assert "text is 'hex', must be one of bytes, omit" in capsys.readouterr().err


@pytest.mark.parametrize(
    "entries, words",
    [
        ({"listed": "nowhere.to_be_found:X"}, "cannot be loaded from nowhere.to_be_found:X: ModuleNotFoundError"),
        ({"listed": HERE + "Missing"}, "AttributeError"),
        ({"listed": "rbdata.errors:UsageError"}, "the source listed is registered as|cannot be loaded"),
        ({"listed": HERE + "Failing"}, "the source listed is registered as Failing"),
        ({"failing": HERE + "Failing"}, r"the source failing fails: RuntimeError\('no names today'\)"),
        ({"Bad-Name": HERE + "Listed"}, "the source 'Bad-Name' .* is left out"),
        ({"atari": HERE + "Listed"}, "AtariSource already has this name"),
    ],
)
def test_a_source_that_does_not_work_disturbs_no_other(entries, words, register, tmp_path, capsys):
    register(**entries)
    with pytest.warns(PluginWarning, match=words):
        assert "atari/Pong/5" in catalogue.known_ids()
    plugins.registered.cache_clear()
    with pytest.warns(PluginWarning, match=words):
        assert run(["list", "--root", str(tmp_path), "--json"]) == 0
    assert "atari/Pong/5" in capsys.readouterr().out
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        assert catalogue.resolve("Pong/5")[0] == "atari/Pong/5"


@pytest.mark.filterwarnings("ignore::rbdata.errors.PluginWarning")
def test_asking_for_a_source_that_does_not_work(register, tmp_path, capsys):
    register(listed="nowhere:X", other="nowhere:X")
    with pytest.raises(MissingExtraError, match="listed cannot be loaded") as refused:
        catalogue.load_source("listed")
    assert refused.value.hint
    assert run(["download", "listed/one", "--root", str(tmp_path)]) == 1
    assert "nowhere" in capsys.readouterr().err
