"""Dataset folders and mirrors as a stranger, a failing disk or a careless hand may leave them, against everything that reads
or removes them.

Each round copies a small sound dataset, changes something (`folder_faults.damage`, and what is below), and uses the folder in
a few of many ways. What must hold: the right answer or an RbdataError, an exit code that is no bug's; no control character
printed; nothing outside the folder touched; no hang; no more than ``MOST_MEMORY`` bytes beyond what the process held before.
Where the manifest is as it was and a file is not, `verify` says so, and no mirror's copy gets in.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import rbdata
import typer.main
from folder_faults import damage, seal
from rbdata import cli
from rbdata.errors import RbdataError
from rbdata.storage.manifest import FILENAME
from report import Report, peak_memory, reset_peak
from storage_tools import LAYOUTS, contents, make_episodes, write_dataset

#: Seconds for one use of a folder, on a machine that others use as well.
LIMIT = 60
MOST_MEMORY = 200_000_000
ID = "my/test"
#: What a terminal would act upon, or show in another order: nothing of it may be printed.
ACTED_UPON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
#: How a bar is drawn.
BAR = re.compile(r"\r|\x1b\[(?:\?25[lh]|2K|1A)")
#: What a stranger may write into a field of text.
SPEECH = (
    "\x1b]0;title\x07",
    "\x9b31m",
    "\x1b[2J\x1b[H",
    "a\rb",
    "\u202egnp.exe",
    "\u2066x",
    "\x08" * 9,
    "l\nm",
    "\x00",
)


def run(rounds: int, seed: int) -> Report:
    """Rounds with seeds ``seed``, ``seed + 1``, ...; each is repeated by its own seed alone."""
    report = Report("folders", seed)
    before, look = signal.signal(signal.SIGALRM, _too_long), typer.main.get_params_from_function
    typer.main.get_params_from_function = lru_cache(look)  # a quarter of the time: commands are parsed each time
    try:
        with tempfile.TemporaryDirectory(prefix="folders-") as folder, report.measured():
            bench = Bench(Path(folder))
            for number in range(rounds):
                report.rounds += 1
                for what in bench.attack(seed + number, report):
                    report.faults.append(f"seed {seed + number}, {what}")
                report.peak_memory = max(report.peak_memory, peak_memory())
    finally:
        signal.signal(signal.SIGALRM, before)
        typer.main.get_params_from_function = look
    return report


def _too_long(*_: object) -> None:
    raise TimeoutError(f"takes longer than {LIMIT} s")


class Terminal(io.StringIO):
    """A stream that is a terminal, or a pipe."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


class Bench:
    """The sound folders, and the place where they are changed and used."""

    def __init__(self, top: Path) -> None:
        self.top, self.root, self.mirror = top, top / "root", top / "mirror"
        episodes = make_episodes([3, 5, 1, 7])
        self.sound = [write_dataset(top / "sound" / layout, episodes, layout, parts=2) for layout in LAYOUTS]
        self.held = [contents(folder) for folder in self.sound]
        (top / "outside").mkdir()
        (top / "outside" / "precious").write_bytes(bytes(4096))
        self.own = _listed(top / "outside"), _listed(top / "sound")

    def attack(self, seed: int, report: Report) -> list[str]:
        """One round; returns what is wrong."""
        rng = random.Random(seed)
        number = rng.randrange(len(self.sound))
        for path in (self.root, self.mirror):
            shutil.rmtree(path, ignore_errors=True)
        at_mirror = rng.random() < 0.2
        folder = (self.mirror if at_mirror else self.root) / "my" / "test"
        shutil.copytree(self.sound[number], folder)
        self.root.mkdir(exist_ok=True)
        shutil.copytree(self.sound[0], self.root / "my" / "sound", dirs_exist_ok=True)
        what = []
        for _ in range(rng.choice((1, 1, 2))):
            with suppress(ValueError, RecursionError, OSError, IndexError, TypeError):  # of what is changed already
                if what and any(
                    path.is_symlink() or not (path.is_file() or path.is_dir()) for path in folder.rglob("*")
                ):
                    break  # what changes files would wait for a pipe, or read a device
                what.append(rng.choice((*(damage,) * 8, *CHANGES))(folder, rng.getrandbits(30)))
        uses = rng.sample(AT_MIRROR if at_mirror else AT_ROOT, 3)
        found: list[str] = []
        neighbour = _listed(self.root / "my" / "sound")
        for use in uses:
            name = use.__name__
            held = reset_peak()
            try:
                signal.alarm(LIMIT)
                outcome = use(self, folder, rng)
            except RbdataError as error:
                outcome = "refused"
                if ACTED_UPON.search(str(error).replace("\n", "")):
                    found.append(f"{what}, {name}: the error holds a control character: {str(error)!r}")
            except (Exception, SystemExit):
                outcome = "fault"
                found.append(f"{what}, {name}: {traceback.format_exc(limit=-5)}")
            finally:
                signal.alarm(0)
            report.outcomes[f"{name} {outcome}"] += 1
            if (used := peak_memory() - held) > MOST_MEMORY:
                found.append(f"{what}, {name}: {used / 1e6:.0f} MB of memory")
        if (_listed(self.top / "outside"), _listed(self.top / "sound")) != self.own:
            found.append(f"{what}, {[use.__name__ for use in uses]}: something outside was changed")
            shutil.copystat(self.sound[0], self.sound[0])
            self.own = _listed(self.top / "outside"), _listed(self.top / "sound")
        if _listed(self.root / "my" / "sound") != neighbour:
            found.append(f"{what}, {[use.__name__ for use in uses]}: the dataset beside it was changed")
        return found

    def is_whole(self, folder: Path) -> bool | None:
        """Whether the files are those of a sound dataset; None where the manifest is another."""
        if not (folder / FILENAME).is_file():
            return None
        text = (folder / FILENAME).read_bytes()
        for held in self.held:
            if held[FILENAME] == text:
                return all(_holds(folder / name, data) for name, data in held.items())
        return None

    def command(self, rng: random.Random, *words: object) -> str:
        """Run a command line on a terminal or in a pipe; says how it ended. Raises AssertionError for what must not be."""
        is_terminal = rng.random() < 0.5
        output, messages = Terminal(is_terminal), Terminal(is_terminal)
        os.environ["COLUMNS"] = rng.choice(("40", "80", "200"))
        os.environ["NO_COLOR"] = "1"
        more = rng.choice(((), (), ("--json",)))
        with redirect_stdout(output), redirect_stderr(messages):
            code = cli.run([*map(str, words), *more])
        printed, said = output.getvalue(), messages.getvalue()
        spoken = ACTED_UPON.search(printed) or ACTED_UPON.search(BAR.sub("", said))
        assert not spoken, f"{words} prints {spoken and spoken[0]!r}: {printed!r} {said!r}"
        assert "Traceback" not in printed + said and "this is a bug" not in printed + said, f"{words}: {printed} {said}"
        assert code in (0, 1, 2), f"{words} ends with {code}"
        assert code == 0 or not more or "error" in json.loads(printed) or "problems" in printed, printed
        return f"exit {code}"


# -- what is changed, beside folder_faults --------------------------------------------------------------------------------


def speak(folder: Path, seed: int) -> str:
    """Control characters in fields of text, sealed as a forger would."""
    rng = random.Random(seed)
    share = rng.choice((0.05, 0.3, 1.0))

    def change(content: Any, key: str = "") -> Any:
        if isinstance(content, dict):
            return {
                (rng.choice(SPEECH) if rng.random() < share / 8 and key not in ("", "files") else name): change(
                    value, name
                )
                for name, value in content.items()
            }
        if isinstance(content, list):
            return [change(value, key) for value in content]
        safe = key in ("format", "kind", "dtype", "codec", "name") and rng.random() < 0.9
        return (
            content + rng.choice(SPEECH) if isinstance(content, str) and not safe and rng.random() < share else content
        )

    with suppress(ValueError, OSError, KeyError, AttributeError, TypeError, RecursionError):
        record = json.loads((folder / FILENAME).read_text())
        files = record["files"]
        texts = {"notes": ["a note"], "licence": "MIT", "citation": "somebody", "counts": {"pads": 1}}
        provenance = {
            "created": "today",
            "location": "here",
            "why": "because",
            "rbdata_version": "1",
            "mirror": "there",
        }
        record |= texts | {"provenance": provenance}
        record["source"] |= {"name": rng.choice(("minari", "atari", "x")), "options": {"codec": "raw", "x": "y"}}
        record["lineage"] = (
            {
                "input": {"id": "my/x", "source": {"name": "atari", "environment": "Pong"}},
                "functions": [{"function": "rbdata:scale", "args": {"a": "b"}, "source_sha256": "0"}],
                "windows": {"frame_stack": 4},
            }
            if rng.random() < 0.5
            else None
        )
        record = change(record)
        if rng.random() < 0.9:
            record["files"] = files
        (folder / FILENAME).write_text(seal(record))
    return "speech"


def link_out(folder: Path, seed: int) -> str:
    """A file, or a folder, is a link to something outside of the dataset."""
    rng = random.Random(seed)
    outside = folder.parents[2] / "outside"
    path = rng.choice(sorted(folder.rglob("*")) or [folder / "x"])
    with suppress(OSError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        path.symlink_to(rng.choice((outside, outside / "precious", Path("/proc/self/environ"), folder)))
    return f"{path.name} is a link"


def put_beside(folder: Path, seed: int) -> str:
    """Things in and beside the folder that do not belong there."""
    rng = random.Random(seed)
    outside = folder.parents[2] / "outside"
    name = rng.choice(
        (".test.writing", ".test.old", ".test.lock", ".test.lock.breaking", "test.part.json", "\x1b[31mred")
    )
    path = rng.choice((folder, folder.parent)) / name
    with suppress(OSError):
        kind = rng.choice(("file", "folder", "link", "pipe", "journal", "manifest"))
        if kind in ("journal", "manifest"):
            path.mkdir()
            text = '{"kind": "start", "number": "\\u001b[31m"}\n' * 3 if rng.random() < 0.5 else "[" * 9999
            (path / ("journal.jsonl" if kind == "journal" else FILENAME)).write_text(text)
        else:
            make = {"file": path.touch, "folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}
            make.get(kind, lambda: path.symlink_to(rng.choice((outside, "/dev/zero", "nowhere"))))()
    return f"{name!r} beside"


def empty(folder: Path, seed: int) -> str:
    """No rows, or no files."""
    with suppress(ValueError, OSError, KeyError, TypeError):
        record = json.loads((folder / FILENAME).read_text())
        rng = random.Random(seed)
        record |= rng.choice(
            ({"steps": 0, "episodes": 0}, {"files": {}}, {"steps": 0}, {"episodes": 1}, {"id": "my/other"})
        )
        (folder / FILENAME).write_text(seal(record))
    return "empty"


CHANGES: tuple[Callable[[Path, int], str], ...] = (speak, speak, link_out, put_beside, empty)


# -- how it is used -------------------------------------------------------------------------------------------------------


def load(bench: Bench, folder: Path, rng: random.Random) -> str:
    options = rng.choice(({}, {"slice_len": 2, "strict_length": False}, {"frame_stack": 2, "n_step": 2}))
    buffer = rbdata.load(folder, batch_size=4, seed=0, **options)
    buffer.sample()
    return "works"


def open_dataset(bench: Bench, folder: Path, rng: random.Random) -> str:
    dataset = rbdata.open_dataset(folder)
    repr(dataset), dataset[:3], dataset.to_tensordict(), dataset.episodes, dataset.statistics, dataset._repr_html_()
    if bench.is_whole(folder):
        assert len(dataset) == 16 and dataset.episodes.length.tolist() == [3, 5, 1, 7]
    return "works"


def describe(bench: Bench, folder: Path, rng: random.Random) -> str:
    dataset = rbdata.open_dataset(folder)
    for name in ("observation_space", "action_space", "spec", "reference_scores", "make_env"):
        with suppress(RbdataError):
            found = getattr(dataset, name)
            if name == "make_env":
                found().close()
    return "works"


def inspect(bench: Bench, folder: Path, rng: random.Random) -> str:
    return bench.command(rng, "inspect", folder, *rng.choice(((), (), ("--episodes",), ("-q",))))


def cards(bench: Bench, folder: Path, rng: random.Random) -> str:
    with tempfile.TemporaryDirectory(dir=bench.top) as made:
        targets = {"--html": "card.html", "--croissant": "croissant.json", "--card": "README.md"}
        which = rng.choice(list(targets))
        ended = bench.command(rng, "inspect", folder, which, Path(made, targets[which]))
        for path in Path(made).iterdir():
            spoken = ACTED_UPON.search(path.read_text())
            assert not spoken, f"{path.name} holds {spoken and spoken[0]!r}"
    return ended


def verify(bench: Bench, folder: Path, rng: random.Random) -> str:
    whole = bench.is_whole(folder)
    report = rbdata.verify(folder)
    assert whole is None or report.ok == whole, f"verify says {report.problems}, the files are {whole}"
    return "sound" if report.ok else "problems"


def verify_command(bench: Bench, folder: Path, rng: random.Random) -> str:
    return bench.command(rng, "verify", folder, *rng.choice(((), ("--quick",))))


def list_command(bench: Bench, folder: Path, rng: random.Random) -> str:
    ended = bench.command(rng, "list", "--local", "--root", bench.root)
    assert ended == "exit 0"
    return ended


def search(bench: Bench, folder: Path, rng: random.Random) -> str:
    return bench.command(rng, *rng.choice((("search", "test"), ("info", ID))), "--root", bench.root)


def sample(bench: Bench, folder: Path, rng: random.Random) -> str:
    return bench.command(rng, "sample", folder, *rng.choice(((), ("--slice-len", "2"), ("--frame-stack", "2"))))


def prune(bench: Bench, folder: Path, rng: random.Random) -> str:
    return bench.command(rng, "prune", "--root", bench.root, *rng.choice(((), ("--yes",), ("--dry-run",))))


def delete(bench: Bench, folder: Path, rng: random.Random) -> str:
    return bench.command(rng, "delete", ID, "--yes", "--root", bench.root)


def push(bench: Bench, folder: Path, rng: random.Random) -> str:
    whole = bench.is_whole(folder)
    ended = bench.command(rng, "mirror", "push", ID, bench.mirror, "--root", bench.root)
    assert whole is not False or ended != "exit 0", "what is damaged was pushed"
    return ended


def download(bench: Bench, folder: Path, rng: random.Random) -> str:
    """From a mirror: what gets in is what its manifest states, or nothing does."""
    whole = bench.is_whole(folder)
    ended = bench.command(rng, "download", ID, "--mirror", bench.mirror, "--root", bench.root, "--procs", "1")
    target = bench.root / "my" / "test"
    if ended == "exit 0":
        assert whole is not False, "a damaged copy was taken"
        problems = rbdata.verify(target)
        assert whole is None or problems.ok, f"{problems.problems} after a download"
    elif (target / FILENAME).exists():
        raise AssertionError("a refused download left a dataset")
    return ended


def mirror_ls(bench: Bench, folder: Path, rng: random.Random) -> str:
    return bench.command(rng, "mirror", "ls", bench.mirror)


def mirror_rm(bench: Bench, folder: Path, rng: random.Random) -> str:
    return bench.command(rng, "mirror", "rm", ID, bench.mirror, "--yes")


AT_ROOT = [load, open_dataset, describe, inspect, cards, verify, verify_command, list_command, search, sample, prune]
AT_ROOT += [delete, push]
AT_MIRROR = [download, download, mirror_ls, mirror_rm]


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(data) and path.read_bytes()[: len(data)] == data


def _listed(folder: Path) -> list[tuple[str, int, int]]:
    """Every file of a folder with size and time of change, links not followed."""
    found = []
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        if path.is_symlink() or not path.is_dir():
            found.append((str(path), status.st_size, status.st_mtime_ns))
    return found
