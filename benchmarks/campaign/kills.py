"""Every command that writes is stopped at a seeded moment, or its working folder changed, and run again.

A moment is a system call: the n-th of all that open, make, rename, remove or sync something below the root. There the process
is killed (also with all that was not synced lost), gets signals, or meets an error of the disk; or its output is closed from
the start, the disk too small, descriptors few. The same command, run again without ``--force``, must end with the bytes of an
undisturbed run, and leave no file and no process.

A working folder is changed between two runs: cut, zeroed, flipped, lines of the journal swapped, links and pipes planted. The
same command must end with the right dataset, or with an error that has a code, after which it is run once more.

Runs are forks of one process that has imported everything.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kills_calls import CALLS, call, lengths_of, wrong_loop
from kills_damage import change_working, plant_lock
from paths import DATA
from rbdata import cli
from rbdata.storage.manifest import FILENAME
from rbdata.storage.scratch import ScratchFolder
from report import Report

#: Of the rounds, those that change a working folder.
DAMAGED_SHARE = 0.4
#: Of the kills, those that kill a worker or a parent with workers, which take seconds.
WORKERS_SHARE = 0.04
LIMIT = 300.0  # machines are shared
_FORBIDDEN = ("Traceback (most recent call last)", '"internal"', "this is a bug")


@dataclass(frozen=True)
class Scenario:
    """A command line (``{root}``, ``{web}``, ``{base}`` are filled in), and those that prepare its root, undisturbed.

    What begins with the name of one of `kills_calls.CALLS` calls that; ``NAME=value`` in front sets a variable.
    """

    name: str
    words: str
    before: Sequence[str] = ()
    #: Whether it has a working folder that is gone on with.
    continues: bool = True
    #: What it says, and ends with 1, where it was done already.
    done: str = "-"


_ATARI = f"--mirror {DATA}/atari --root {{root}} --procs 1"
_PULL = "download Pong/5 --mirror {base}/mirror --root {root} --procs 1"
_WEB = "download d4rl/hopper-full-replay-v2 --mirror {web} --root {root} --procs 1"
_FILE = f"{DATA}/minari/cartpole/random-v0/data/main_data.hdf5"
_RLU = f"--mirror {DATA}/rl_unplugged --root {{root}} --procs 1"
_RESIZE = "preprocess Pong/5 --fn rbdata:resize_frames --args height=42 --args width=42 --batch-size 64"
_NORMALIZE = "preprocess d4rl/hopper-full-replay-v2 --fn rbdata:normalize_observations --batch-size 500"
_KEEP = f"download Pong/5 {_ATARI} --keep-raw --shards 0"
_NAMED = "download gymnasium/CartPole-v1 --steps 90 --root {root} --procs 1 --name a"
_PUSH = "mirror push Pong/5 {root}/pushed --root {base}/mirror"
_REPAIR = "verify Pong/5 --repair --mirror {base}/mirror --root {root} --procs 1"
_SAMPLE = "sample Pong/5 --seed 1 --root {root} --out {root}"
_CARD = "inspect Pong/5 --html {root}/card.html --croissant {root}/c.json --root {root} --force"
_SET = "RBDATA_CONFIG={root}/a.toml config set mirrors.atari /somewhere"
SCENARIOS = (
    Scenario("download", f"download Pong/5 {_ATARI}"),
    Scenario("raw", f"download Breakout/1 {_ATARI} --codec raw"),
    Scenario("ted", f"download Breakout/1 {_ATARI} --layout ted --shards 0,1"),
    Scenario("grow", f"download Breakout/1 {_ATARI}", (f"download Breakout/1 {_ATARI} --shards 1,2",)),
    Scenario(
        "force", f"download Breakout/1 {_ATARI} --force --shards 0,1", (f"download Breakout/1 {_ATARI} --shards 2",)
    ),
    Scenario("keep raw", f"download Breakout/1 {_ATARI} --keep-raw --shards 1,2"),
    Scenario("staged", f"download atari/Breakout/1 {_RLU}"),
    Scenario("pull", _PULL),
    Scenario("web", _WEB),
    Scenario("convert", f"convert {_FILE} --name my/cart --root {{root}} --procs 1"),
    Scenario("record", "download gymnasium/CartPole-v1 --steps 300 --root {root} --procs 1"),
    Scenario("push", "mirror push Pong/5 {root}/pushed --root {base}/mirror"),
    Scenario("preprocess", f"{_RESIZE} --dest my/small --root {{root}} --procs 1", (_PULL,)),
    Scenario("fit", f"{_NORMALIZE} --dest my/normal --root {{root}} --procs 1", (_WEB,)),
    Scenario("named", "download gymnasium/CartPole-v1 --name mine --steps 300 --root {root} --procs 1"),
    Scenario("another name", "download gymnasium/CartPole-v1@b --steps 90 --root {root} --procs 1", (_NAMED,)),
    Scenario("recorder", "record_loop {root}", continues=False),
    Scenario("push raw", "mirror push Pong/5 {root}/pushed --raw --root {root}", (_KEEP,)),
    Scenario("delete", "delete Pong/5 --yes --root {root}", (_PULL,), continues=False, done="nothing to delete"),
    Scenario("delete raw", "delete Pong/5 --yes --root {root}", (_KEEP,), continues=False, done="nothing to delete"),
    Scenario("prune", "prune --yes --root {root}", (_PULL, "leave {root} atari/Pong/5"), continues=False),
    Scenario("prune raw", "prune --raw --yes --root {root}", (_KEEP, "leave {root} atari/Pong/5"), continues=False),
    Scenario("mirror rm", "mirror rm Pong/5 {root}/pushed --yes", (_PUSH,), continues=False, done="holds no dataset"),
    Scenario("repair", _REPAIR, (_PULL, "flip {root}/atari/Pong/5/observation/blob 5000"), continues=False),
    Scenario(
        "repair raw",
        f"verify Pong/5 --repair {_ATARI}",
        (f"download Pong/5 {_ATARI} --codec raw --shards 1", "flip {root}/atari/Pong/5/observation.memmap 50"),
        continues=False,
    ),
    Scenario("config", "RBDATA_CONFIG={root}/a.toml config set procs 3", (_SET,), continues=False),
    Scenario("config new", "RBDATA_CONFIG={root}/c/a.toml config set mirrors.atari /somewhere", continues=False),
    Scenario("cache", "fill_cache {base}/mirror/atari/Pong/5 {root}/cache", continues=False),
    Scenario("batch", f"{_SAMPLE}/b.npz", (_PULL,), continues=False, done="already exists"),
    Scenario("batch folder", f"{_SAMPLE}/b", (_PULL,), continues=False, done="already exists"),
    Scenario("card", _CARD, (_PULL,), continues=False),
)


# -- one run -----------------------------------------------------------------------------------------------------------


@dataclass
class Moment:
    """Counts the system calls below a root; ``act`` is called at the ``at``-th and those after it, with its number."""

    root: str
    at: int = sys.maxsize
    act: Callable[[int], None] = lambda number: None
    seen: int = 0
    on: bool = True

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS and self.on and arguments and self.is_below(arguments[0]):
            self.count()

    def is_below(self, path: Any) -> bool:
        return isinstance(path, (str, Path)) and str(path).startswith(self.root)

    def count(self) -> None:
        self.seen += 1
        if self.seen >= self.at:
            self.on = False
            try:
                self.act(self.seen - self.at)
            finally:
                self.on = True


_EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate"}


def _fork(words: str, moment: Moment, setup: Callable[[], None], output: Path, facts: Path | None = None) -> int:
    """Run a command line in a fork; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        os.setpgid(0, 0)
        for number in (1, 2):
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        cli._take_ctrl_c_once()
        synced: set[int] = set()
        real = os.fsync

        def fsync(file: Any) -> None:
            real(file)
            synced.add(os.fstat(file).st_ino)
            moment.count()

        os.fsync = fsync
        moment.synced = synced  # type: ignore[attr-defined]
        setup()
        sys.addaudithook(moment.hook)
        faulthandler.register(signal.SIGUSR1)
        given = words.split()
        while "=" in given[0]:
            os.environ.update([given.pop(0).split("=", 1)])
        code = (call if given[0] in CALLS else cli.run)(given)
        moment.on = False
        if facts:
            facts.write_text(json.dumps({"calls": moment.seen, "modules": [*sys.modules]}))
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
    finally:
        with suppress(Exception):
            sys.stdout.flush()
        os._exit(code)


def _wait(pid: int) -> int:
    """The exit code of a fork; negative for a signal, 1000 where it had to be killed for taking too long."""
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.004)
    _describe(pid)
    for number in (signal.SIGUSR1, signal.SIGKILL):  # the first shows where it is
        os.killpg(pid, number)
        time.sleep(1)
    os.waitpid(pid, 0)
    return 1000


def _describe(pid: int) -> None:
    """Write into the output of a run what each of its processes waits for and has open: a hang may not come again."""
    with suppress(OSError), Path(f"/proc/{pid}/fd/2").open("a") as output:
        for one in _descendants(pid):
            print(f"process {one} of {pid}:", file=output)
            for name in ("cmdline", "wchan", "syscall", "stack"):
                with suppress(OSError):
                    print(f"  {name}: {Path(f'/proc/{one}/{name}').read_text()[:400]!r}", file=output)
            for thread in sorted(Path(f"/proc/{one}/task").glob("*")):
                with suppress(OSError):
                    state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
                    print(f"  thread {thread.name}: {state} {(thread / 'wchan').read_text()}", file=output)
            for file in Path(f"/proc/{one}/fd").glob("*"):
                with suppress(OSError):
                    print(f"  {file.name} -> {file.readlink()}", file=output)


def _reap() -> list[int]:
    """End the processes that a run left, which became children of this one; returns those that did not end by themselves."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            found, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return []
        if not found:
            if not _children():
                return []
            time.sleep(0.02)
    left = _children()
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def _children() -> list[int]:
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [pid for pid in map(int, text.split()) if pid not in _OWN]


_OWN: set[int] = set()


# -- faults ------------------------------------------------------------------------------------------------------------


def _signal(number: int, times: int, apart: int) -> Callable[[int], None]:
    def act(after: int) -> None:
        if after % apart == 0 and after // apart < times:
            os.kill(os.getpid(), number)

    return act


def _power_cut(moment: Moment, lost: Path) -> Callable[[int], None]:
    first = threading.Lock()

    def act(after: int) -> None:
        first.acquire()  # other threads go no further
        lost.write_text(json.dumps(sorted(moment.synced)))  # type: ignore[attr-defined]
        os.kill(os.getpid(), signal.SIGKILL)

    return act


def _fail(number: int, times: int) -> Callable[[int], None]:
    def act(after: int) -> None:
        if after < times:
            raise OSError(number, os.strerror(number))

    return act


def _lose_unsynced(root: Path, lost: Path, before: dict[Path, tuple[int, int]], rng: random.Random) -> None:
    """What was written since the start and not synced is gone, as after the machine was switched off: cut or zeroed. Caches of
    remote datasets are those of an earlier start of the machine."""
    synced = set(json.loads(lost.read_text()))
    lost.unlink()
    for path, (inode, changed) in _stated(root).items():
        if inode in synced or before.get(path) == (inode, changed) or ".lock" in path.name:
            continue
        size = path.stat().st_size
        os.truncate(path, rng.randrange(size + 1))
        if rng.random() < 0.5:
            os.truncate(path, size)
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    for path in root.rglob(".rbdata-blocks"):
        path.write_bytes(path.read_bytes().replace(boot, boot[::-1]))


def _stated(root: Path) -> dict[Path, tuple[int, int]]:
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


@contextmanager
def _small_disk(root: Path, size: int) -> Iterator[Callable[[], None]]:
    """A disk of its own below the root; gives what makes it large enough. Needs the right to mount."""
    libc = ctypes.CDLL(None, use_errno=True)
    path = str(root).encode()
    if libc.mount(b"tmpfs", path, b"tmpfs", 0, f"size={size}".encode()):
        raise OSError(ctypes.get_errno(), "mount")
    try:
        yield lambda: libc.mount(b"tmpfs", path, b"tmpfs", 32, b"size=1g")
    finally:
        libc.umount2(path, 2)


# -- rounds ------------------------------------------------------------------------------------------------------------


class Campaign:
    """The undisturbed results, and the rounds; ``names`` are those of the scenarios."""

    def __init__(self, base: Path, report: Report, names: Sequence[str], *, workers: bool) -> None:
        self.base, self.report, self.workers = base, report, workers
        self.web = _serve(DATA / "d4rl" / "gym_mujoco_v2")
        self.scenarios = [one for one in SCENARIOS if not names or one.name in names]
        self.truth: dict[str, dict[str, bytes]] = {}
        self.calls: dict[str, int] = {}
        self._run(f"download Pong/5 --mirror {DATA}/atari --root {base}/mirror --procs 1")
        for one in self.scenarios:
            root = self._prepared(one)
            self.calls[one.name] = self._run(self._words(one, root), root)
            self.truth[one.name] = tree(root)
            if one.name == "recorder":
                self.loop = lengths_of(root)
        (base / "outside").write_bytes(b"precious" * 100)
        self.temporary = base / "temporary"
        self.temporary.mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = str(self.temporary)

    def _words(self, one: Scenario, root: Path) -> str:
        return one.words.format(root=root, web=self.web, base=self.base)

    def _run(self, words: str, root: Path | None = None) -> int:
        """Run undisturbed, and import here what the run needed; returns the number of its system calls."""
        output, facts = self.base / "output", self.base / "facts"
        output.unlink(missing_ok=True)
        code = _wait(_fork(words, Moment(str(root)), lambda: None, output, facts))
        if code:
            raise RuntimeError(f"{words} ended with {code}: {output.read_text()}")
        found = json.loads(facts.read_text())
        for name in found["modules"]:
            with suppress(Exception):
                importlib.import_module(name)
        return int(found["calls"])

    def _prepared(self, one: Scenario) -> Path:
        """A new root for a scenario; what has to be in it is made once."""
        kept, root = self.base / "prepared" / one.name, self.base / "root"
        shutil.rmtree(root, ignore_errors=True)
        if not kept.exists():
            root.mkdir(parents=True)
            for words in one.before:
                self._run(words.format(root=root, web=self.web, base=self.base))
            shutil.copytree(root, kept)
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(kept, root)
        return root

    def disturb(self, seed: int) -> None:
        """One run that is disturbed, and the one that follows."""
        rng = random.Random(seed)
        one = rng.choice(self.scenarios)
        root = self._prepared(one)
        at = rng.randrange(1, self.calls[one.name] + 1)
        moment, lost = Moment(str(root), at), self.base / "lost"
        kind = rng.choice(FAULTS if rng.random() >= WORKERS_SHARE * self.workers else ("worker", "parent"))
        name, setup, output = f"{kind} at {at}, {one.name}", lambda: None, self.base / "output"
        if kind in SIGNALS:
            moment.act = _signal(*SIGNALS[kind], rng.choice((1, 2, 5)))
        elif kind == "power cut":
            moment.act = _power_cut(moment, lost)
        elif kind in ERRORS:
            moment.act = _fail(ERRORS[kind], rng.choice((1, 1, 3, sys.maxsize)))
        elif kind == "descriptors":
            setup = partial(_limit, resource.RLIMIT_NOFILE, rng.randrange(8, 40))
        elif kind == "file size":
            setup = partial(_limit, resource.RLIMIT_FSIZE, int(10 ** rng.uniform(2, 6)))
        elif kind == "memory":
            setup = partial(_limit_memory, int(10 ** rng.uniform(6, 8.5)))
        elif kind == "pipe":
            setup = _break_pipes
        output.unlink(missing_ok=True)
        before, words = _stated(root), self._words(one, root)
        if kind == "disk" and not one.before:
            try:
                with _small_disk(root, rng.randrange(4096, 400_000, 4096)) as grow:
                    code = _wait(_fork(words, moment, setup, output))
                    grow()
                    self._check(seed, name, one, root, code, output)
                return
            except PermissionError:
                self.report.outcomes["no right to mount"] += 1
        if kind in ("worker", "parent"):
            words = words.replace("--procs 1", "--procs 2")
            pid = _fork(words, Moment(str(root)), setup, output)
            time.sleep(rng.uniform(0.2, 2.5))
            family = [child for child in _descendants(pid) if child != pid] if kind == "worker" else []
            with suppress(ProcessLookupError):
                os.kill(rng.choice(family) if family else pid, signal.SIGKILL)
            code = _wait(pid)
        else:
            code = _wait(_fork(words, moment, setup, output))
        if lost.exists():
            _lose_unsynced(root, lost, before, rng)
        self._check(seed, name, one, root, code, output)

    def damage(self, seed: int) -> None:
        """One working folder that changes between two runs."""
        rng = random.Random(seed)
        one = rng.choice([one for one in self.scenarios if one.continues])
        root = self._prepared(one)
        moment = Moment(str(root), rng.randrange(self.calls[one.name] // 4, self.calls[one.name] + 1))
        moment.act = _signal(signal.SIGKILL, 1, 1)
        output = self.base / "output"
        output.unlink(missing_ok=True)
        _wait(_fork(self._words(one, root), moment, lambda: None, output))
        before = _stated(self.base / "prepared" / one.name)
        before = {root / path.relative_to(self.base / "prepared" / one.name): facts for path, facts in before.items()}
        outside = self.base / "outside"
        if rng.random() < 0.1:
            what = plant_lock(root, rng)
        else:
            what = change_working(root, set(before), outside, rng)
        name = f"{what or 'nothing'} after {moment.at}, {one.name}"
        output.unlink(missing_ok=True)
        code = _wait(_fork(f"list --local --json --root {root}", Moment(""), lambda: None, output))
        self._check_output(seed, f"list: {name}", code, output, refusal=False)
        output.unlink(missing_ok=True)
        code = _wait(_fork(self._words(one, root), Moment(""), lambda: None, output))
        self._check(seed, name, one, root, code, output, fault=what is not None)
        if outside.read_bytes() != b"precious" * 100 or outside.is_symlink():
            self._fault(seed, f"{name}: a file outside was written to")
            outside.unlink()
            outside.write_bytes(b"precious" * 100)

    def _check(
        self, seed: int, name: str, one: Scenario, root: Path, code: int, output: Path, *, fault: bool = True
    ) -> None:
        """What a run ended with, and what it comes to when it is run again."""
        self._check_output(seed, name, code, output)
        left = _reap()
        if left:
            self._fault(seed, f"{name}: processes are left: {left}")
        if code < 0 and name.partition(" at ")[0] not in KILLS:
            self._fault(
                seed, f"{name}: ended by signal {-code}: {output.read_text()[-600:] if output.exists() else ''}"
            )
        outcome = "killed" if code < 0 else "finished" if code == 0 else "failed"
        # A folder that the disk refused to remove may stay, where nothing else is left.
        refused = name.partition(" at ")[0] in ERRORS
        if code == 0 and (wrong := self._wrong(one, root, refused)):
            self._fault(seed, f"{name}: ended with 0, and {wrong}")
        output.unlink(missing_ok=True)
        again = _wait(_fork(self._words(one, root), Moment(""), lambda: None, output))
        self._check_output(seed, f"rerun: {name}", again, output)
        is_done = again == 0 or (again == 1 and one.done in output.read_text())
        if not is_done:
            self._fault(seed, f"{name}: run again it ended with {again}: {output.read_text()[-600:]}")
        elif wrong := self._wrong(one, root, refused):
            self._fault(seed, f"{name}: run again, {wrong}")
        self.report.outcomes[f"{outcome}, then the right bytes"] += 1
        _reap()
        self._check_temporary(seed, name)

    def _check_temporary(self, seed: int, name: str) -> None:
        """What a killed run left among the temporary files is gone when another one has needed some."""
        ScratchFolder().remove()
        for path in sorted(self.temporary.iterdir()):
            self._fault(seed, f"{name}: {path.name} is left in the folder of temporary files: {sorted(path.glob('*'))}")
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _wrong(self, one: Scenario, root: Path, refused: bool) -> str:
        """What a root has that an undisturbed run does not leave; with ``refused`` empty folders do not count."""
        found, truth = tree(root), self.truth[one.name]
        if refused:
            found, truth = (
                {name: data for name, data in one.items() if data != b"empty folder"} for one in (found, truth)
            )
        if one.name != "recorder":
            return differences(found, truth) if found != truth else ""
        if set(found) != set(truth):
            return differences(found, truth)
        return wrong_loop(root, self.loop)

    def _check_output(self, seed: int, name: str, code: int, output: Path, *, refusal: bool = True) -> None:
        text = output.read_text() if output.exists() else ""
        if code == 1000 and name.startswith("memory") and _THREAD_START.search(text):
            self.report.outcomes["memory that ends while Python begins a thread (python/cpython#140746)"] += 1
        elif code == 1000:
            self._fault(seed, f"{name}: still running after {LIMIT:.0f} s: {text[-8000:]}")
        if any(word in text for word in _FORBIDDEN) or code == 99:
            self._fault(seed, f"{name}: {text[-1500:]}")
        elif code > 0 and not refusal:
            self._fault(seed, f"{name}: ended with {code}: {text[-600:]}")

    def _fault(self, seed: int, text: str) -> None:
        self.report.faults.append(f"seed {seed}: {text}")


#: The main thread waits for a thread that found no memory before it could say that it had begun.
_THREAD_START = re.compile(
    r'Current thread .*\n(?:  File ".*/threading\.py", line \d+ in (?!start).*\n)+.*threading\.py", line \d+ in start'
)
SIGNALS = {
    "SIGKILL": (signal.SIGKILL, 1),
    "SIGTERM": (signal.SIGTERM, 1),
    "SIGHUP": (signal.SIGHUP, 1),
    "SIGINT": (signal.SIGINT, 1),
    "SIGINT twice": (signal.SIGINT, 2),
}
ERRORS = {
    "EIO": errno.EIO,
    "ENOSPC": errno.ENOSPC,
    "EDQUOT": errno.EDQUOT,
    "EROFS": errno.EROFS,
    "EACCES": errno.EACCES,
}
FAULTS = ("SIGKILL",) * 5 + ("power cut",) * 5 + (*SIGNALS, *ERRORS, *("descriptors", "file size", "pipe", "memory"))
FAULTS += ("disk", "disk")
#: A run may end by a signal where it got one.
KILLS = {*SIGNALS, "power cut", "worker", "parent"}


def run(rounds: int, seed: int, names: Sequence[str] = (), *, workers: bool = True) -> Report:
    """Kills and other faults, and damaged working folders; the seed of a round is ``seed`` and its number.

    ``names``: of the scenarios, otherwise all. ``workers``: now and then with worker processes, which takes seconds.
    """
    report = Report("kills", seed)
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # what a killed run leaves behind becomes a child of this process
    with tempfile.TemporaryDirectory(prefix="rbdata-kills-") as folder, report.measured():
        try:
            campaign = Campaign(Path(folder), report, names, workers=workers)
            for number in range(rounds):
                is_damage = number % 10 < DAMAGED_SHARE * 10
                (campaign.damage if is_damage else campaign.disturb)(seed * 1_000_000 + number)
                report.rounds += 1
        finally:
            for pid in _OWN:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            _OWN.clear()
    return report


def tree(root: Path) -> dict[str, bytes]:
    """Every file below a root by its path, links and empty folders too; of manifests what two runs have in common."""
    found: dict[str, bytes] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.name.startswith(".rbdata-") and name.startswith("cache/"):
            continue  # which stay in a cache
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            found[name] = b"link or pipe"
        elif path.is_file():
            found[name] = path.read_bytes()
            if path.name == FILENAME:
                with suppress(ValueError):
                    record = json.loads(found[name])
                    found[name] = json.dumps({**record, "provenance": 0, "checksum": 0}).encode()
        elif not any(path.iterdir()):
            found[name] = b"empty folder"
    return found


def differences(found: dict[str, bytes], wanted: dict[str, bytes]) -> str:
    """In words, for a report."""
    left, missing = sorted(set(found) - set(wanted)), sorted(set(wanted) - set(found))
    other = sorted(name for name in found if name in wanted and found[name] != wanted[name])
    return f"left: {left[:6]}, missing: {missing[:6]}, other: {other[:6]}"


def _limit(kind: int, value: int) -> None:
    resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))


def _limit_memory(room: int) -> None:
    """Limit the address space to what it is, and some bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + room)


def _break_pipes() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for number in (1, 2):
        os.dup2(writing, number)


def _descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(one for child in children for one in _descendants(int(child)))]


def _serve(folder: Path) -> str:
    """A plain web server in its own process; it states sizes and no checksums."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    pid = os.fork()
    if not pid:
        try:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # it ends with its parent
            server.serve_forever()
        finally:
            os._exit(0)
    _OWN.add(pid)
    port = server.server_address[1]
    server.socket.close()
    return f"http://127.0.0.1:{port}"
