"""Every command on real shards, in this process: answers, modes, exit codes."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from contextlib import nullcontext, redirect_stderr
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from paths import DATA
from rbdata import cli
from rbdata._version import __version__
from rbdata.datasets.catalogue import known_ids
from rbdata.storage.checksums import crc32c
from rbdata.storage.manifest import read_manifest, write_manifest
from storage_tools import Recipe, make_episodes, write_dataset

MIRROR = str(DATA / "atari")
RAW = f"{MIRROR}/dqn/Pong/5/replay_logs"


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """A root with Pong/5; not to be changed."""
    root = tmp_path_factory.mktemp("cli")
    assert cli.run(["download", "Pong/5", "--mirror", MIRROR, "--root", str(root), "--procs", "1", "-q"]) == 0
    return root


@pytest.fixture
def own(made, tmp_path) -> Path:
    """A copy of it that a test may change."""
    root = tmp_path / "root"
    shutil.copytree(made, root)
    return root


@pytest.fixture
def call(capsys):
    """Run a command line: ``(exit code, stdout, stderr)``."""

    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.run([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def ask(call):
    """Run a command line with ``--json``: ``(exit code, document)``."""

    def run(*words: object) -> tuple[int, dict]:
        code, answer, _ = call(*words, "--json")
        return code, json.loads(answer)

    return run


def cells(answer: str) -> list[list[str]]:
    """The cells of a table without its title, or names and values of facts."""
    return [re.split(r" {2,}", line.strip()) for line in answer.splitlines() if not line.startswith("id  ")]


class TestEveryCommand:
    @pytest.mark.parametrize(
        "name", ["list", "search", "info", "download", "convert", "inspect", "sample", "verify", "audit", "delete"]
    )
    def test_help_has_examples_and_exit_codes(self, call, name):
        code, answer, notes = call(name, "--help")
        assert (code, notes) == (0, "")
        assert answer.count(f"    rbdata {name}") + answer.count("| xargs") >= 2
        assert "Exit codes:" in answer
        assert "130  interrupted" in answer
        assert all(option in answer for option in ("--json", "--quiet", "--debug", "--root"))

    def test_version(self, call, ask):
        assert call("--version") == (0, f"rbdata {__version__}\n", "")
        assert ask("--version") == (0, {"version": __version__})

    def test_no_command_shows_what_there_is(self, call):
        code, answer, _ = call()
        assert code == 2
        assert re.search(r"download +Download", answer)

    def test_wrong_arguments(self, call, ask):
        code, answer, notes = call("list", "--nonsense")
        assert (code, answer) == (2, "")
        assert notes.startswith("error: No such option")
        assert notes.splitlines()[-1] == "hint: `rbdata list --help` shows the usage"
        code, document = ask("list", "--nonsense")
        assert code == 2
        assert document["error"]["code"] == "usage"

    def test_newcomers_are_led_on(self, call):
        assert call("help", "sample")[1] == call("sample", "--help")[1]
        assert "Usage: rbdata sample [OPTIONS] ID\n" in call("help", "sample")[1]
        assert "name a dataset, as `rbdata list` shows them" in call("inspect")[2]
        assert "commands: push, ls, rm; " in call("mirror")[2]
        assert "commands: list, search, " in call("remove", "x")[2]
        for words in (("info", "hopper"), ("download", "hopper"), ("inspect", "hopper")):
            assert "hint: `rbdata search hopper` finds datasets by parts of their names\n" in call(*words)[2]
        assert "hint: `rbdata search 'two words'` finds" in call("info", "two words")[2]
        assert "hint: name a dataset, as `rbdata list` shows them\n" in call("info", "")[2]
        assert "hint: `rbdata list d4rl` shows the datasets of d4rl\n" in call("info", "d4rl/nosuch")[2]

    def test_a_mistyped_command(self, call):
        code, _, notes = call("downlaod", "Pong/5")
        assert code == 2
        assert "Did you mean 'download'?" in notes

    def test_a_bug_is_one_line_and_a_traceback_only_on_request(self, call, monkeypatch, made):
        def broken() -> None:
            raise RuntimeError("oh no")

        monkeypatch.setattr("rbdata.cli.list.run", broken)  # nothing that another module could import meanwhile
        code, answer, notes = call("list")
        assert (code, answer) == (1, "")
        assert notes.splitlines()[0] == "error: RuntimeError: oh no"
        assert "bug" in notes
        assert "Traceback" not in notes
        for words in (("list", "--debug"), ("--debug", "list")):
            assert "Traceback" in call(*words)[2]

    @pytest.mark.parametrize("stream", [None, "/dev/full"])
    def test_work_goes_on_where_nothing_can_be_written_to_stderr(self, stream, tmp_path, monkeypatch):
        words = ["download", "gymnasium/CartPole-v1", "--steps", "40", "--root", str(tmp_path), "--procs", "1"]
        with Path(stream).open("w") if stream else nullcontext() as file, redirect_stderr(file):
            assert cli.run(words) == 0
            assert cli.run(["inspect", "nothing-of-that-name", "--root", str(tmp_path)]) == 2
        assert (tmp_path / "gymnasium/CartPole-v1/rbdata.json").is_file()

    def test_the_help_names_the_sources_of_an_option(self, call):
        told = " ".join(call("download", "--help")[1].split())
        assert "--accept-changed d4rl, openml: accept a file" in told and "--steps N gymnasium: steps to record" in told
        assert "--map" not in told
        assert "--map OURS=THEIRS arrays: which" in " ".join(call("convert", "-h")[1].split())

    def test_the_root_may_come_before_the_command(self, call, made):
        for words in (["--root", made, "inspect"], ["inspect", "--root", made]):
            assert call(*words, "Pong/5", "-q")[:2] == (0, f"{made}/atari/Pong/5\n")
        assert call("--root", "/nowhere", "inspect", "--root", made, "Pong/5")[0] == 0

    def test_an_empty_root_is_not_the_current_folder(self, call, made, monkeypatch):
        monkeypatch.chdir(made)
        for words in (("list", "--root", ""), ("--root=", "list"), ("delete", "Pong/5", "--yes", "--root", "")):
            code, _, told = call(*words)
            assert code == 2 and "--root is empty" in told

    @pytest.mark.parametrize(
        ("words", "name"),
        [
            (["download", "Pong/5", "--mirror", ""], "--mirror"),
            (["download", "Pong/5", "--mirror="], "--mirror"),
            (["verify", "Pong/5", "--repair", "--mirror", ""], "--mirror"),
            (["convert", ".", "--name", ""], "--name"),
            (["convert", "", "--name", "my/x"], "PATH"),
            (["convert", ".", "--map", ""], "--map"),
            (["convert", ".", "--environment", ""], "--environment"),
            (["inspect", "Pong/5", "--cache-dir", ""], "--cache-dir"),
            (["inspect", "Pong/5", "--html", ""], "--html"),
            (["preprocess", "Pong/5", "--dest", "my/x", "--fn", ""], "--fn"),
            (["list", "--match", ""], "--match"),
            (["mirror", "push", "Pong/5", "m", "--license", ""], "--license"),
        ],
    )
    def test_an_empty_value_is_not_one_left_out(self, call, made, words, name, monkeypatch):
        monkeypatch.chdir(made)
        code, answer, told = call(*words)
        assert (code, answer) == (2, "") and f"{name} is empty" in told

    def test_an_id_that_is_another_folder_too(self, call, own, tmp_path, monkeypatch):
        here = tmp_path / "here"
        shutil.copytree(own / "atari" / "Pong" / "5", here / "atari" / "Pong" / "5")
        monkeypatch.chdir(here)
        code, _, told = call("inspect", "atari/Pong/5", "--root", own)
        assert code == 2 and "and also the folder" in told
        assert call("inspect", "./atari/Pong/5", "--root", own)[0] == 0
        assert call("inspect", "atari/Pong/5", "--root", here)[0] == 0
        monkeypatch.chdir(own)
        assert call("inspect", "atari/Pong/5", "--root", own)[0] == 0

    def test_hints_keep_the_root(self, call, made):
        code, _, notes = call("inspect", "Pong/4", "--root", made)
        assert code == 2
        assert notes.splitlines()[1] == f"hint: get it with `rbdata download atari/Pong/4 --root {made}`"
        notes = call("inspect", "Pong/4", "--root", "/nowhere")[2]
        assert "/nowhere, which does not exist" in notes and "RBDATA_ROOT" in notes

    @pytest.mark.parametrize("path", ["./nothing", "/nowhere/at/all", "there/nothing", "some/folder/", "aa/bb/cc"])
    def test_a_misspelt_folder_is_no_unknown_id(self, call, path, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "there").mkdir()
        assert call("inspect", path)[2].startswith(f"error: no such folder: {path}\n")
        assert "error: no such folder: ./" in call("download", "Pong/5", "--mirror", f"./{path}")[2]

    WAYS = (("inspect", "-q"), ("verify", "--quick"), ("sample", "-n", "1"))

    @pytest.mark.parametrize("way", WAYS, ids=lambda way: way[0])
    def test_ways_to_name_a_dataset(self, call, made, way, monkeypatch):
        monkeypatch.chdir(made.parent)
        monkeypatch.setenv("HOME", str(made))
        relative = f"{made.name}/atari/Pong/5"
        for text in (
            "Pong/5",
            "atari/Pong/5",
            relative,
            f"{relative}/",
            f"./{relative}",
            "~/atari/Pong/5",
            made / "atari/Pong/5",
        ):
            assert call(way[0], text, *way[1:], "--root", made)[0] == 0, text

    @pytest.mark.parametrize("way", WAYS, ids=lambda way: way[0])
    def test_every_command_says_alike_what_is_no_dataset(self, call, way, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "file").touch()
        (tmp_path / "link").symlink_to("gone")
        (tmp_path / "a" / "b").mkdir(parents=True)
        for text, why in {
            "file": "file is a file, not the folder of a dataset",
            "./file": "./file is a file, not the folder of a dataset",
            "link": "link is a link to gone, which does not exist",
            "a/b": "a/b holds no dataset: there is no rbdata.json in it",
            "..": ".. holds no dataset: there is no rbdata.json in it",
            "/": "/ holds no dataset: there is no rbdata.json in it",
            "a/\x1b[1m": "no such folder: a/\\x1b[1m",
            "a/" + "b" * 300: f"no such folder: a/{'b' * 300}",
            "~nobody-of-this-name/x": "~nobody-of-this-name/x: there is no such home folder",
            "": "unknown dataset ''",
        }.items():
            code, answer, notes = call(way[0], text, *way[1:], "--root", tmp_path)
            assert (code > 0, answer, notes.splitlines()[0]) == (True, "", f"error: {why}"), text

    @pytest.mark.parametrize(
        "words",
        [("preprocess", "URL", "--fn", "rbdata:n_step", "--dest", "my/x"), ("mirror", "push", "URL", "/nowhere")],
    )
    def test_no_url_where_only_this_machine_is_meant(self, call, words, tmp_path):
        url = "https://lab.example.org/atari/Pong/5"
        code, _, notes = call(*(url if word == "URL" else word for word in words), "--root", tmp_path)
        assert code == 2 and f"error: {url} is a URL: this is for datasets on this machine\n" in notes

    def test_preprocess_says_as_inspect_does_what_is_not_there(self, call, made, monkeypatch):
        monkeypatch.setenv("RBDATA_ROOT", str(made))
        for text in ("Pong/4", "my/nosuch", "/nowhere/x", "hopper"):
            code, _, notes = call("preprocess", text, "--fn", "rbdata:returns_to_go", "--dest", "my/x")
            assert (code, notes) == (lambda told: (told[0], f"my/x\n{told[2]}"))(call("inspect", text)), text
            assert "--root" not in notes
        told = call("inspect", "my/nosuch")[2]
        assert told.endswith("hint: `rbdata list --local` shows the datasets that are there\n")

    @pytest.mark.parametrize("place", ["s3://lab/rbdata/atari/Pong/5", "/mnt/rbdata/atari/Pong/5"])
    def test_a_place_is_no_id(self, call, place, tmp_path):
        code, _, notes = call("download", place, "--root", tmp_path)
        assert code == 2 and "hint: give the dataset's id, and its location with --mirror" in notes


class TestList:
    def test_what_is_here_and_the_sources(self, call, made):
        code, answer, notes = call("list", "--root", made)
        here, sources = answer.split("\n\n")
        rows = [re.split("  +", line) for line in here.splitlines()]
        assert (code, notes) == (0, "")
        assert rows[0] == ["id", "state", "steps", "episodes", "size"]
        assert rows[1][:4] == ["atari/Pong/5", "complete", "11,956", "14"] and rows[1][4].endswith(" MB")
        assert re.split("  +", sources.splitlines()[1])[:2] == ["atari", "300"]
        ids = call("list", "--root", made, "--quiet")[1].split()
        assert set(ids) == set(known_ids()) and ids[0] == "atari/Pong/5"
        hopper = next(
            line for line in call("list", "d4rl", "--root", made)[1].splitlines() if "/hopper-medium-v2" in line
        )
        assert re.split("  +", hopper)[1:3] == ["~1,000,000", "153 MB"]

    def test_filters(self, call, made):
        assert call("list", "--root", made, "--local", "-q")[1] == "atari/Pong/5\n"
        assert call("list", "--root", made, "--match", "pong/?", "-q")[1].split()[0] == "atari/Pong/5"
        assert len(call("list", "--root", made, "--match", "*/Pong/*", "-q")[1].split()) == 5
        assert call("list", "my", "--root", made)[:2] == (0, "")
        assert call("list", "nonsense")[0] == 2
        assert len(call("list", "atari", "--root", made, "-q")[1].splitlines()) == 300
        code, _, notes = call("list", "breakout")
        assert code == 2 and "`rbdata search breakout` finds datasets" in notes

    def test_a_folder_that_is_not_there(self, call, made, monkeypatch):
        for words in (("list",), ("list", "--local"), ("list", "atari")):
            code, _, notes = call(*words, "--root", made / "mispelt")
            assert (code, notes) == (
                0,
                f"{made / 'mispelt'}: no such folder; choose another with --root or RBDATA_ROOT\n",
            )
        monkeypatch.setenv("RBDATA_ROOT", str(made / "later"))  # the first download makes it
        assert "no such folder" not in call("list", "--local")[2]

    def test_json(self, ask, made):
        code, document = ask("list", "--root", made, "--local")
        (dataset,) = document["datasets"]
        assert code == 0
        assert document["root"] == str(made)
        assert (dataset["id"], dataset["state"], dataset["steps"]) == ("atari/Pong/5", "complete", 11956)
        assert Path(dataset["path"]).is_dir()

    def test_json_has_the_catalogue_and_a_summary_of_each_source(self, ask, made):
        code, document = ask("list", "--root", made)
        rows = {one["id"]: one for one in document["datasets"]}
        assert code == 0 and len(rows) == len(known_ids())
        assert rows["d4rl/hopper-medium-v2"]["available"] == ["Hugging Face", "Berkeley"]
        assert rows["atari/Skiing/1"]["available"] == []  # the only public copy is closed
        assert set(rows["atari/Pong/4"]) < set(rows["atari/Pong/5"])
        assert (rows["atari/Pong/5"]["observations"], rows["atari/Pong/5"]["steps"]) == ("image", 11956)
        atari = document["sources"][0]
        assert (atari["source"], atari["datasets"], atari["mirror_only"]) == ("atari", 300, 70)
        assert atari["example"] == "atari/Pong/1" and atari["places"] == ["RL Unplugged"]

    def test_damaged_is_said_and_why(self, call, own):
        (own / "atari/Pong/5/rbdata.json").write_text("{")
        code, answer, notes = call("list", "--local", "--root", own)
        assert code == 0
        assert answer.splitlines()[1].split()[1] == "damaged"
        assert "is not JSON" in notes

    @pytest.mark.parametrize("record", ['{"units": "x"}', '{"units": 0}', "[3]"])
    def test_one_bad_folder_does_not_hide_the_others(self, call, own, record):
        for name, file, content in (
            ("bad", "rbdata.json", '{"format": "rbdata", "format_version": []}'),
            (".begun.writing", "run.json", f"{crc32c(record.encode())} {record}"),
        ):
            (own / "my" / name).mkdir(parents=True)
            (own / "my" / name / file).write_text(content)
        code, answer, _ = call("list", "--local", "--root", own)
        assert code == 0
        assert {line.split()[0] for line in answer.splitlines()} == {"id", "atari/Pong/5", "my/bad", "my/begun"}


class TestSearch:
    def test_rows(self, call, made):
        code, answer, notes = call("search", "hopper", "medium", "--root", made)
        rows = [re.split("  +", line) for line in answer.splitlines()]
        assert (code, notes) == (0, f"next: rbdata info d4rl/hopper-medium-v2 --root {made}\n")
        assert rows[0] == ["id", "steps", "size", "observations", "actions", "available", "licence"]
        assert rows[1][:3] == ["d4rl/hopper-medium-v2", "~1,000,000", "153 MB"]
        assert rows[1][3:] == ["vector", "continuous", "Hugging Face, Berkeley", "CC-BY-4.0"]
        assert all("hopper" in row[0] and "medium" in row[0] for row in rows[1:])

    def test_filters(self, call, made):
        assert call("search", "pong", "--actions", "discrete", "--limit", 2, "-q", "--root", made)[1].split() == [
            "atari/Pong/1",
            "atari/Pong/2",
        ]
        code, answer, notes = call("search", "hopper", "--max-size", "60MB", "--source", "d4rl", "--root", made)
        sizes = [float(size) for size in re.findall(r"([\d.]+) MB", answer)]
        assert code == 0 and len(sizes) == len(answer.splitlines()) - 1 and max(sizes) <= 60
        assert "left out, because their size is unknown: 5 datasets" in notes
        assert call("search", "--observations", "smell", "--root", made)[0] == 2
        assert call("search", "--max-size", "big", "--root", made)[0] == 2

    def test_what_is_here_is_found_and_marked(self, ask, own):
        (own / "my").mkdir()
        (own / "atari/Pong/5").rename(own / "my/pong")
        code, document = ask("search", "my", "pong", "--root", own)
        assert code == 0
        assert [(one["id"], one["state"]) for one in document["datasets"]] == [("my/pong", "complete")]

    def test_nothing_matches(self, call, ask, made):
        code, answer, notes = call("search", "hoper", "--root", made)
        assert (code, answer) == (0, "")
        assert notes.splitlines() == ["no dataset matches hoper", f"next: rbdata search hopper --root {made}"]
        assert ask("search", "hoper", "--root", made)[1] == {"matches": 0, "of_unknown_size": 0, "datasets": []}


class TestInfo:
    def test_what_is_known_and_the_command(self, call, ask, made):
        code, answer, notes = call("info", "hopper-medium-v2", "--root", made)
        (name,), *rows = cells(answer)
        facts = dict(rows)
        assert (code, name) == (0, "d4rl/hopper-medium-v2")
        assert (facts["steps"], facts["download"]) == ("about 1,000,000", "153 MB")
        assert facts["scores"] == "0 is random (-20.2723), 100 is expert (3234.3); D4RL"
        # Without --mirror: its places are tried in order.
        assert notes == f"next: rbdata download d4rl/hopper-medium-v2 --root {made}\n"
        code, document = ask("info", "hopper-medium-v2", "--root", made)
        assert (document["state"], document["approximate"], document["horizon"]) == ("absent", True, 1000)
        assert document["places"][1]["access"] == "unreliable"
        assert document["date"] and document["figures"]

    def test_on_this_machine(self, call, own):
        code, answer, notes = call("info", "Pong/5", "--root", own)
        assert code == 0 and re.search(f"complete, 11,956 steps in 14 episodes, .* MB: {own / 'atari/Pong/5'}", answer)
        assert notes == f"next: rbdata inspect atari/Pong/5 --root {own}\n"
        (own / "my").mkdir()
        (own / "atari/Pong/5").rename(own / "my/pong")
        code, answer, _ = call("info", "my/pong", "--root", own)
        assert (
            code == 0
            and ["steps", "11,956"] in cells(answer)
            and ["observations", "image, Box [84, 84] uint8"] in cells(answer)
        )

    def test_what_no_source_lists(self, call, ask):
        code, document = ask("info", "openml/12345")
        assert code == 0 and document["steps"] is None and document["observations"] == "vector"
        code, _, notes = call("info", "hopper-medim-v2")
        assert code == 2 and "did you mean d4rl/hopper-medium-v2" in notes

    def test_no_hint_that_cannot_work(self, call, monkeypatch):
        code, _, notes = call("info", "atari/Skiing/1")
        assert code == 0 and "next:" not in notes and "--mirror" in notes
        monkeypatch.setenv("RBDATA_ATARI_MIRROR", "/mnt/dqn")
        code, answer, notes = call("info", "atari/Skiing/1")
        assert ["mirror", "/mnt/dqn (from your settings)"] in cells(
            answer
        ) and notes == "next: rbdata download atari/Skiing/1\n"


class TestDownload:
    def test_what_is_complete_is_left_alone(self, ask, made):
        code, document = ask("download", "Pong/5", "--root", made, "--mirror", "/nowhere")
        (result,) = document["datasets"]
        assert code == 0
        assert (result["id"], result["action"], result["steps"]) == ("atari/Pong/5", "complete", 11956)

    def test_a_dry_run_writes_nothing(self, ask, tmp_path):
        code, document = ask("download", "Pong/5", "--root", tmp_path / "r", "--mirror", MIRROR, "--dry-run")
        (result,) = document["datasets"]
        assert (code, result["action"]) == (0, "planned")
        assert result["plan"]["parts"] == 3
        assert result["plan"]["fetch_bytes"] > 0
        assert not (tmp_path / "r").exists()

    def test_one_of_several_fails(self, call, ask, own):
        words = ("download", "Nope/1", "Pong/5", "Breakout/1", "--shards", "0", "--root", own, "--mirror", MIRROR)
        code, answer, notes = call(*words, "--procs", 1)
        assert code == 1
        assert [row[:2] for row in cells(answer)] == [
            ["Nope/1", "failed"],
            ["atari/Pong/5", "complete"],
            ["atari/Breakout/1", "written"],
        ]
        assert "error: unknown dataset 'Nope/1'" in notes
        assert "next: rbdata inspect atari/Pong/5 --root" in notes
        code, document = ask(*words)
        assert code == 1
        assert document["datasets"][0]["error"]["code"] == "not_found"
        _, document = ask("download", "Pong/4", "Pong/5", "--root", own, "--mirror", MIRROR)
        assert [(one["id"], one["action"]) for one in document["datasets"]] == [
            ("atari/Pong/4", "failed"),
            ("atari/Pong/5", "complete"),
        ]

    def test_quiet_prints_paths_alone(self, call, made):
        code, answer, notes = call("download", "atari/Pong/5", "--root", made, "--quiet")
        assert (code, answer, notes) == (0, f"{made}/atari/Pong/5\n", "")

    def test_errors_are_json_too(self, ask, tmp_path):
        code, document = ask("download", "Pong/5", "--root", tmp_path, "--mirror", tmp_path / "nothing")
        assert code == 1
        assert document["error"]["code"] == "object_not_found"
        assert set(document["error"]) == {"code", "message", "hint"}

    @pytest.mark.parametrize("words", [["--shards", "4-1"], ["--codec", "gzip"], ["--procs", "-1"]])
    def test_wrong_values(self, call, words, tmp_path):
        code, answer, notes = call("download", "Pong/5", "--root", tmp_path, "--mirror", MIRROR, *words)
        assert (code, answer) == (2, "")
        assert words[0] in notes


class TestConvert:
    def test_makes_a_dataset_of_ones_own(self, call, ask, tmp_path):
        code, answer, notes = call("convert", RAW, "--source", "atari", "--name", "my/pong", "--root", tmp_path)
        assert code == 0
        assert answer.startswith("Converted my/pong in ") and ["steps", "11,956 in 14 episodes"] in cells(answer)
        assert "fetch" in notes
        assert "next: rbdata inspect my/pong --root" in notes
        assert ask("inspect", "my/pong", "--root", tmp_path)[1]["steps"] == 11956

    @pytest.mark.parametrize(
        "file, more, steps",
        [
            ("d4rl/gym_mujoco_v2/hopper_full_replay-v2.hdf5", (), 1200),
            ("minari/cartpole/random-v0/data/main_data.hdf5", (), 443),
            ("minari/cartpole/arrow-v0", (), 210),
            ("iris.arff", ("--target", "class"), 150),
        ],
        ids=["d4rl", "minari", "minari-folder", "arff"],
    )
    def test_a_file_says_where_it_is_from(self, file, more, steps, ask, tmp_path):
        path = DATA / file
        if file == "iris.arff":
            path = tmp_path / file
            path.write_bytes(gzip.decompress((DATA / "openml/id_61/data-v1-dl-61.arff.gz").read_bytes()))
        elif path.is_file():  # beside other files, under a name of its own
            path = Path(shutil.copy(path, tmp_path / "mine.h5"))
            (tmp_path / "other.hdf5").write_bytes(b"x")
        code, document = ask("convert", path, *more, "--root", tmp_path / "root", "--procs", "1")
        assert code == 0, document
        (dataset,) = document["datasets"]
        assert dataset["id"] == f"my/{path.name.partition('.')[0]}"
        assert dataset["steps"] == steps

    def test_what_does_not_say_where_it_is_from(self, call, tmp_path):
        (tmp_path / "notes.txt").write_text("x")
        code, _, notes = call("convert", tmp_path / "notes.txt", "--root", tmp_path)
        assert code == 2 and "does not say which source" in notes and "--source: atari, d4rl" in notes
        assert "no such file or folder" in call("convert", tmp_path / "nowhere", "--root", tmp_path)[2]
        code, _, notes = call("convert", "http://me:secret@host/Pong", "--root", tmp_path)
        assert code == 2 and "is a URL" in notes and "secret" not in notes

    def test_a_name_that_is_no_id(self, call, tmp_path):
        code, _, notes = call("convert", RAW, "--source", "atari", "--name", "pong", "--root", tmp_path)
        assert code == 2
        assert "'pong' is not a dataset id" in notes


class TestInspect:
    def test_json_says_everything(self, ask, made):
        code, document = ask("inspect", "Pong/5", "--root", made)
        leaves = {leaf["name"]: leaf for leaf in document["leaves"]}
        assert code == 0
        assert leaves["observation"]["kind"] == "state"
        assert leaves["observation"]["rows"] == 11956 + 14
        assert sum(document["outcomes"].values()) == document["episodes"] == 14
        assert document["distributions"]["action"]["elements"][0]["count"] == document["sampled"]["steps"] == 11956
        assert document["provenance"]["location"] == MIRROR
        assert document["source"]["objects"] > 0
        small = sum(path.stat().st_size for path in (made / "atari/Pong/5/observation").iterdir())
        assert leaves["observation"]["bytes"] == small

    def test_in_a_pipe(self, call, made):
        rows = cells(call("inspect", "Pong/5", "--root", made)[1])
        assert ["steps", "11,956"] in rows
        assert ["observation", "state", "uint8", "[84, 84]", "rows of observation"] in rows[rows.index(["next"]) :]

    def test_episodes(self, call, ask, made):
        rows = cells(call("inspect", "Pong/5", "--episodes", "--root", made)[1])
        assert len(rows) == 15 and rows[0] == ["episode", "start", "length", "return", "outcome"]
        assert rows[2][1] == rows[1][2]  # the second begins where the first ends
        table = ask("inspect", "Pong/5", "--episodes", "--root", made)[1]["episode_table"]
        assert sum(episode["length"] for episode in table) == 11956

    def test_pictures(self, call, made, tmp_path):
        plot, frames = tmp_path / "plot.png", tmp_path / "frames.png"
        words = ("--plot", plot, "--frames", frames, "--episode", 13)
        code, _, notes = call("inspect", "Pong/5", "--root", made, *words)
        assert code == 0
        assert f"wrote {plot}" in notes
        assert plot.read_bytes().startswith(b"\x89PNG")
        assert frames.read_bytes().startswith(b"\x89PNG")

    def test_returns_that_are_not_finite(self, call, ask, tmp_path):
        episodes = make_episodes([3, 5])
        episodes[0].steps["next/reward"][1] = np.nan
        folder = Recipe(episodes).write(tmp_path)
        assert ask("inspect", folder)[1]["returns"]["mean"] is None
        told = next(row[1] for row in cells(call("inspect", folder)[1]) if row[0] == "return")
        assert told.endswith("; 1 of 2 episodes not finite") and "nan" not in told

    def test_cards(self, call, made, tmp_path):
        page, croissant, readme = (tmp_path / name for name in ("card.html", "croissant.json", "README.md"))
        words = ("inspect", "Pong/5", "--root", made, "-q", "--html", page)
        assert call(*words, "--croissant", croissant, "--card", readme)[0] == 0
        assert "atari/Pong/5" in page.read_text() and readme.read_text().startswith("---")
        assert json.loads(croissant.read_text())["name"] == "atari/Pong/5"
        assert call(*words, "--force")[0] == 0
        code, _, notes = call(*words)
        assert (code, "--force" in notes) == (1, True)

    @pytest.mark.parametrize(
        "words", [["--plot", "p_hop"], ["--frames", "x.png", "--plot", "x.png"], ["--episode", "1"]]
    )
    def test_pictures_that_cannot_be_written(self, call, made, tmp_path, monkeypatch, words):
        monkeypatch.chdir(tmp_path)
        code, _, notes = call("inspect", "Pong/5", "--root", made, *words)
        assert code == 2
        assert "hint: " in notes
        assert not list(tmp_path.iterdir())

    def test_pictures_without_the_extra(self, call, made, monkeypatch, tmp_path):
        monkeypatch.setitem(__import__("sys").modules, "matplotlib.backends.backend_agg", None)
        code, _, notes = call("inspect", "Pong/5", "--root", made, "--plot", tmp_path / "x.png")
        assert code == 1
        assert "rbdata[plot]" in notes

    def test_what_is_not_here(self, call, made):
        code, _, notes = call("inspect", "Pong/4", "--root", made)
        assert code == 2
        assert "rbdata download atari/Pong/4" in notes
        code, _, notes = call("inspect", "Pnog/5", "--root", made)
        assert code == 2
        assert "did you mean atari/Pong/5" in notes


class TestSample:
    def test_a_seed_repeats_the_batch(self, ask, made):
        words = ("sample", "Pong/5", "-n", 8, "--frame-stack", 3, "--seed", 4, "--root", made)
        code, first = ask(*words)
        assert code == 0
        assert ask(*words)[1] == first
        shapes = {tensor["key"]: tensor["shape"] for tensor in first["tensors"]}
        assert shapes["observation"] == shapes["next/observation"] == [8, 3, 84, 84]
        assert len(first["index"]) == 8

    def test_slices(self, ask, made):
        code, shown = ask("sample", "Pong/5", "-n", 12, "--slice-len", 4, "--root", made)
        assert code == 0 and (np.diff(np.array(shown["index"]).reshape(3, 4)) == 1).all()

    def test_bench(self, ask, made, monkeypatch):
        monkeypatch.setattr("rbdata.cli.sample.ROUND_SECONDS", 0.02)
        code, document = ask("sample", "Pong/5", "--bench", "--root", made)
        assert code == 0
        bench = document["bench"]
        assert bench["transitions_per_second"] == pytest.approx(32 * bench["batches_per_second"])
        assert bench["share_of_floor"] > 0

    def test_batches_of_large_rows_are_small(self, ask, tmp_path):
        """Frames of 2 MiB that are a few bytes on disk."""
        episodes = make_episodes([4, 3], shape=(1 << 21,), dtype="uint8")
        for episode in episodes:
            episode.states["observation"][:] = 7
        code, shown = ask("sample", write_dataset(tmp_path, episodes, "zstd", dictionary=False))
        assert code == 0 and shown["batch_size"] == [15]
        assert next(row["mean"] for row in shown["tensors"] if row["key"] == "observation") == 7.0


HUGE = "9" * 26
TOO_LARGE = (
    *(("sample", "Pong/5", *words) for words in (("-n", HUGE), ("--frame-stack", HUGE), ("--seed", HUGE))),
    ("preprocess", "Pong/5", "--fn", "rbdata:returns_to_go", "--dest", "my/x", "--batch-size", HUGE),
    ("preprocess", "Pong/5", "--fn", "rbdata:n_step", "--args", f"n={HUGE}", "--dest", "my/x"),
    (
        "preprocess",
        "Pong/5",
        "--fn",
        "rbdata:resize_frames",
        "--args",
        f"height={HUGE}",
        "--args",
        "width=1",
        "--dest",
        "my/x",
    ),
)


@pytest.mark.parametrize("words", TOO_LARGE, ids=lambda words: f"{words[0]} {words[-2]}")
def test_numbers_beyond_all_bounds_are_refused(call, made, words):
    code, answer, notes = call(*words, "--root", made)
    assert (code, answer) == (2, "") and HUGE in notes and "bug" not in notes


def test_a_root_that_is_a_file_is_called_so(call, tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert f"is not under {file}, which is not a folder\n" in call("inspect", "Pong/5", "--root", file)[2]
    assert f"{file}: not a folder; choose another" in call("list", "--local", "--root", file)[2]


class TestVerify:
    def test_good(self, call, ask, made):
        code, answer, _ = call("verify", "Pong/5", "--root", made)
        assert (code, cells(answer)[0][:2]) == (0, ["atari/Pong/5", "good"])
        code, document = ask("verify", "Pong/5", "--quick", "--root", made)
        assert (code, document["datasets"][0]["result"]) == (0, "good")

    def test_the_id_is_the_full_one(self, call, ask, own, monkeypatch):
        folder = own / "atari/Pong/5"

        def ids(*given: object) -> list[str]:
            return [record["id"] for record in ask("verify", *given, "--quick", "--root", own)[1]["datasets"]]

        assert ids("Pong/5", folder, "Nope/1") == ["atari/Pong/5", str(folder), "Nope/1"]
        assert ids("Pong/5", "Pong/4") == ["atari/Pong/5", "atari/Pong/4"]
        (folder / "rbdata.json").write_text("{")
        assert ids("Pong/5", "atari/Pong/5") == ["atari/Pong/5"]
        assert call("verify", "Pong/5", "-q", "--root", own)[:2] == (1, "atari/Pong/5\n")

    def test_damaged_names_the_files(self, call, ask, own):
        file = own / "atari/Pong/5/next/reward.memmap"
        data = bytearray(file.read_bytes())
        data[100] ^= 1
        file.write_bytes(data)
        code, answer, _ = call("verify", "Pong/5", "--root", own)
        assert code == 1
        assert cells(answer)[0][:3] == ["atari/Pong/5", "damaged", "next/reward.memmap"]
        assert call("verify", "Pong/5", "--quick", "--root", own)[0] == 0
        file.write_bytes(data[:50])
        code, document = ask("verify", "Pong/5", "--quick", "--root", own)
        assert code == 1
        assert document["datasets"][0]["problems"][0]["path"] == "next/reward.memmap"

    def test_repair(self, call, ask, own):
        file = own / "atari/Pong/5/next/reward.memmap"
        data = file.read_bytes()
        file.write_bytes(data[:50])
        code, answer, notes = call("verify", "Pong/5", "--root", own)
        assert (code, cells(answer)[0][:2]) == (1, ["atari/Pong/5", "damaged"])
        assert notes.splitlines()[-1] == f"next: rbdata verify atari/Pong/5 --repair --root {own}"
        code, document = ask("verify", "Pong/5", "--repair", "--root", own)
        (record,) = document["datasets"]
        assert (code, record["result"], record["repair"]["files"]) == (0, "repaired", ["next/reward.memmap"])
        assert file.read_bytes() == data
        left = own / "atari/Pong/.5.old"  # of a repair that was killed when it had replaced the dataset
        shutil.copytree(own / "atari/Pong/5", left)
        code, answer, _ = call("verify", "Pong/5", "--repair", "--root", own)
        assert (code, cells(answer)[0][:2]) == (0, ["atari/Pong/5", "good"]) and not left.exists()
        assert call("verify", "Pong/5", "--mirror", MIRROR, "--root", own)[0] == 2

    def test_what_cannot_be_repaired(self, call, ask, own):
        path = own / "my" / "pong"
        shutil.copytree(own / "atari/Pong/5", path)
        manifest = read_manifest(path)
        write_manifest(path, replace(manifest, id="my/pong", source={**manifest.source, "name": "gymnasium"}))
        (path / "action.memmap").write_bytes(b"")
        code, answer, notes = call("verify", "my/pong", "--repair", "--root", own)
        assert (code, cells(answer)[0][1]) == (1, "damaged")
        assert "recorded on this machine" in notes and "hint: " in notes and "next: " not in notes
        assert ask("verify", "my/pong", "--repair", "--root", own)[1]["datasets"][0]["error"]["code"] == "damaged"

    def test_a_damaged_manifest(self, call, own):
        (own / "atari/Pong/5/rbdata.json").write_text("{")
        code, answer, _ = call("verify", "Pong/5", "--root", own)
        assert code == 1
        assert cells(answer)[0][2] == "rbdata.json"

    def test_cannot_be_checked(self, call, ask, made):
        assert call("verify", "Pong/4", "--root", made)[0] == 2
        code, document = ask("verify", "Pong/4", "--root", made)
        assert (code, document["error"]["code"]) == (2, "not_found")
        code, answer, _ = call("verify", "Pong/5", "Nope/1", "--root", made)
        assert code == 2
        assert [row[1] for row in cells(answer)] == ["good", "not checked"]


class TestDelete:
    def test_refuses_where_nobody_can_answer(self, call, own, monkeypatch):
        monkeypatch.setattr("sys.stdin", None)
        code, answer, notes = call("delete", "Pong/5", "--root", own)
        assert (code, answer) == (2, "")
        assert "--yes" in notes
        assert (own / "atari/Pong/5/rbdata.json").exists()

    def test_a_dry_run_shows_what_would_go(self, call, own):
        code, answer, _ = call("delete", "Pong/5", "--root", own, "--dry-run")
        assert code == 0
        assert cells(answer)[0][0] == "atari/Pong/5"
        assert (own / "atari/Pong/5").exists()

    def test_yes(self, ask, call, own):
        code, document = ask("delete", "Pong/5", "--root", own, "--yes")
        assert (code, document["deleted"], document["datasets"][0]["id"]) == (0, True, "atari/Pong/5")
        assert not (own / "atari").exists()
        assert call("delete", "Pong/5", "--root", own, "--yes")[0] == 2

    def test_nothing_goes_when_one_id_is_wrong(self, call, own):
        assert call("delete", "Pong/5", "Nope/1", "--root", own, "--yes")[0] == 2
        assert (own / "atari/Pong/5").exists()

    def test_a_link_goes_and_what_it_leads_to_stays(self, call, own, tmp_path):
        elsewhere = tmp_path / "elsewhere"
        (own / "atari/Pong/5").rename(elsewhere)
        (own / "atari/Pong/5").symlink_to(elsewhere)
        words = ("delete", "Pong/5", "--root", own)
        _, answer, note = call(*words, "--dry-run")
        assert cells(answer) == [["atari/Pong/5", "0 bytes", f"{own / 'atari/Pong/5'} (only the link to {elsewhere})"]]
        assert note == "would delete atari/Pong/5, 0 bytes\n"
        assert call(*words, "--yes")[0] == 0
        assert (elsewhere / "rbdata.json").exists()
        assert not (own / "atari/Pong/5").is_symlink()

    def test_a_link_that_leads_nowhere_is_named_and_goes(self, call, ask, tmp_path):
        link = tmp_path / "my" / "moved"
        link.parent.mkdir()
        link.symlink_to("/no/such/disk")
        assert ask("list", "--local", "--root", tmp_path)[1]["datasets"] == []
        for command in ("inspect", "verify"):
            told = call(command, "my/moved", "--root", tmp_path)[2]
            assert told.startswith("error: my/moved is a link to /no/such/disk, which does not exist\n")
        assert call("delete", "my/moved", "--root", tmp_path, "--yes")[0] == 0
        assert list(tmp_path.iterdir()) == []

    def test_takes_ids_only(self, call, own):
        folder = own / "atari/Pong/5"
        told = f"error: {folder} is a path: datasets are described by their id\nhint: `rbdata inspect {folder}` shows"
        assert call("info", folder)[2].startswith(told)
        code, _, notes = call("delete", own / "atari/Pong/5", "--root", own, "--yes")
        assert code == 2 and "is a path: datasets are deleted by their id\nhint: `rbdata list --local" in notes


class TestOwnDatasets:
    """Datasets that users made: they come from no source."""

    @pytest.fixture
    def mine(self, own) -> Path:
        (own / "my").mkdir()
        for name in ("small", "smaller", "other"):
            shutil.copytree(own / "atari/Pong/5", own / "my" / name)
            manifest = replace(read_manifest(own / "my" / name), id=f"my/{name}", source={"name": "atari"})
            write_manifest(own / "my" / name, manifest)
        return own

    def test_download_finds_them_complete(self, call, ask, mine):
        for name in ("my/small", "small"):
            code, document = ask("download", name, "--root", mine)
            assert code == 0 and [(one["id"], one["action"]) for one in document["datasets"]] == [
                ("my/small", "complete")
            ]
        assert call("download", "my/small", "--dry-run", "--root", mine)[0] == 0
        for more, named in ((("--force",), "--force"), (("--shards", "3"), "shards"), (("--steps", "5"), "steps")):
            code, _, notes = call("download", "my/small", *more, "--root", mine)
            assert code == 2 and "comes from no source" in notes and named in notes

    def test_download_of_an_unfinished_one_says_so(self, call, mine):
        (mine / "my/.part.writing").mkdir()
        (mine / "my/.part.writing/journal").write_text("{}")
        code, _, notes = call("download", "my/part", "--root", mine)
        assert code == 2 and "my/part is not complete" in notes

    def test_names_on_this_machine_are_offered_first(self, call, mine):
        shutil.copytree(mine / "my/small", mine / "my/hopper-medium")
        for command in ("download", "inspect", "info", "verify", "delete"):
            for typed, offered in {
                "my/smal": "my/small, my/smaller?",
                "MY/Small": "my/small?",
                "hoper-medium": "my/hopper-medium, ",
                "pong/5": "atari/Pong/5?",
                "Atari/PONG/5": "atari/Pong/5?",
            }.items():
                assert f"did you mean {offered}" in call(command, typed, "--root", mine)[2], (command, typed)
        notes = call("download", "my/nothing-like-it", "--root", mine)[2]
        assert "rbdata list --local" in notes

    def test_list_says_what_there_is_beside(self, call, mine, tmp_path):
        assert call("list", "minari", "--local", "--root", mine)[2] == (
            f"no minari datasets under {mine}; 4 of other sources\n"
        )
        (tmp_path / "empty").mkdir()
        assert call("list", "minari", "--local", "--root", tmp_path / "empty")[2] == (
            f"no minari datasets under {tmp_path / 'empty'}\n"
        )

    def test_delete_takes_patterns(self, call, ask, mine):
        code, document = ask("delete", "my/sm*", "--dry-run", "--root", mine)
        assert code == 0 and [one["id"] for one in document["datasets"]] == ["my/small", "my/smaller"]
        code, _, notes = call("delete", "my/*", "--root", mine)
        assert code == 2 and "3 datasets" in notes and "--yes" in notes
        code, _, notes = call("delete", "my/x*", "my/small", "--yes", "--root", mine)
        assert code == 2 and "matches 'my/x*'" in notes and (mine / "my/small").is_dir()
        assert call("delete", "my/[s]*", "other", "--yes", "--root", mine)[0] == 0
        assert [one.name for one in mine.iterdir()] == ["atari"]

    def test_an_id_that_looks_like_a_pattern(self, call, mine):
        for name in ("a*", "abc"):
            shutil.copytree(mine / "my/small", mine / "my" / name)
        assert call("delete", "my/a*", "--yes", "--root", mine)[0] == 0
        assert not (mine / "my/a*").exists() and (mine / "my/abc").is_dir()

    def test_verify_takes_patterns(self, ask, mine):
        code, document = ask("verify", "my/sm*", "--quick", "--root", mine)
        assert code == 0 and [one["id"] for one in document["datasets"]] == ["my/small", "my/smaller"]


class TestNames:
    """Names of hundreds of characters, and text that cannot be encoded."""

    LONG = "x" * 300

    @pytest.mark.parametrize(
        "words",
        [
            ("download", f"my/{LONG}", "--mirror", MIRROR),
            ("download", f"gymnasium/{LONG}"),
            ("download", f"minari/{LONG}/x-v0"),
            ("download", "gymnasium/CartPole-v1", "--name", LONG, "--steps", 5),
            ("convert", RAW, "--source", "atari", "--name", f"my/{LONG}"),
            ("convert", RAW, "--source", "atari", "--name", f"my/{'x' * 230}"),
            ("preprocess", "Pong/5", "--fn", "rbdata:clip_rewards", "--dest", f"my/{LONG}"),
            ("preprocess", "Pong/5", "--fn", "rbdata:clip_rewards", "--dest", f"my/{'é' * 120}"),
        ],
        ids=lambda words: words[0],
    )
    def test_an_id_that_no_folder_can_be_named_after(self, call, own, words):
        before = sorted(own.rglob("*"))
        code, answer, notes = call(*words, "--root", own)
        assert code == 2 and not answer and "at most 215 bytes" in notes
        assert sorted(own.rglob("*")) == before

    def test_the_longest_id(self, call, own):
        longest = f"my/{'x' * 215}"
        assert call("convert", RAW, "--source", "atari", "--name", longest, "--shards", 0, "--root", own)[0] == 0
        for command in ("verify", "inspect", "delete"):
            assert call(command, longest, "--root", own, *["--yes"] * (command == "delete"))[0] == 0

    def test_a_root_whose_name_is_too_long(self, call, tmp_path):
        code, _, notes = call("download", "Pong/5", "--mirror", MIRROR, "--root", tmp_path / self.LONG)
        assert code == 1 and "File name too long" in notes and "shorter" in notes

    def test_text_that_cannot_be_encoded(self, call, ask, own, tmp_path):
        """Bytes of the command line that are no text arrive as halves of characters."""
        odd = "a\udcffb"
        for words in (
            ("inspect", f"my/{odd}"),
            ("download", f"my/{odd}"),
            ("verify", odd),
            ("preprocess", "Pong/5", "--fn", "rbdata:clip_rewards", "--dest", f"my/{odd}"),
            ("download", "gymnasium/CartPole-v1", "--name", odd, "--steps", 5),
        ):
            code, document = ask(*words, "--root", own)
            assert code == 2 and "udcff" in json.dumps(document), words
            code, _, notes = call(*words, "--root", own)
            assert code == 2 and "\\udcff" in notes and odd not in notes, words
        assert call("list", "--root", tmp_path / odd)[0] == 0
        for bad in ("half\ud800", "nul\0"):
            code, _, notes = call("list", "--local", "--root", tmp_path / bad)
            assert code == 2 and "cannot be the name of a folder" in notes
