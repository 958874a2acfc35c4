"""Commands that write are stopped at any moment and run again: the second run ends with the bytes of an undisturbed one.

    python benchmarks/campaign/kills.py --rounds 300 --seed 0 [--first N]

A moment is a system call that opens, makes, renames, removes, cuts or syncs something below the root, counted in an undisturbed
run. There the process is killed, loses what it had not synced as well (a power cut), is interrupted (Ctrl-C), or finds the disk
full. With ``--procs 2`` the command, or one of its workers, is killed after a random time instead. A fault names the round that
repeats it; the exit status is 1 where there was one.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rbdata import cli

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
_ATARI = f"--mirror {DATA}/atari --root {{root}}"
_PULL = "download Pong/5 --mirror {base}/mirror --root {root}"
_RESIZE = "preprocess Pong/5 --fn rbdata:resize_frames --args height=42 --args width=42 --batch-size 64"
#: For each name the commands that prepare a root, and the one that is stopped.
SCENARIOS = {
    "download": ([], f"download Pong/5 {_ATARI}"),
    "raw": ([], f"download Breakout/1 {_ATARI} --codec raw"),
    "keep raw": ([], f"download Breakout/1 {_ATARI} --keep-raw --shards 1,2"),
    "grow": ([f"download Breakout/1 {_ATARI} --shards 1,2"], f"download Breakout/1 {_ATARI}"),
    "pull": ([], _PULL),
    "convert": ([], f"convert {DATA}/minari/cartpole/random-v0/data/main_data.hdf5 --name my/cart --root {{root}}"),
    "record": ([], "download gymnasium/CartPole-v1 --steps 300 --root {root}"),
    "preprocess": ([_PULL], f"{_RESIZE} --dest my/small --root {{root}}"),
    "push": ([], "mirror push Pong/5 {root}/pushed --root {base}/mirror"),
    "delete": ([_PULL], "delete Pong/5 --yes --root {root}"),
}
FAULTS = ("kill", "kill", "power cut", "power cut", "interrupt", "disk full")
EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate"}
#: Seconds that a command may take; machines are shared.
LIMIT = 300.0


class Moment:
    """Counts the system calls below a root; at the ``at``-th the fault happens."""

    def __init__(self, root: Path, fault: str = "", at: int = sys.maxsize) -> None:
        self.root, self.fault, self.at, self.seen = str(root), fault, at, 0
        self.synced: set[int] = set()

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS and isinstance(arguments[0], (str, Path)) and str(arguments[0]).startswith(self.root):
            self.count()

    def count(self) -> None:
        self.seen += 1
        if self.seen != self.at:
            return
        if self.fault == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        elif self.fault == "disk full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        else:
            os.write(3, json.dumps(sorted(self.synced)).encode())
            os.kill(os.getpid(), signal.SIGKILL)


class Campaign:
    """Undisturbed results by scenario, and one round after the other."""

    def __init__(self, base: Path) -> None:
        self.base, self.root = base, base / "root"
        self.truth: dict[str, dict[str, bytes]] = {}
        self.calls: dict[str, int] = {}
        self.run(f"download Pong/5 --mirror {DATA}/atari --root {base}/mirror")
        for name, (before, words) in SCENARIOS.items():
            self.root.mkdir()
            for one in before:
                self.run(one)
            shutil.copytree(self.root, base / "prepared" / name)
            self.calls[name] = self.run(words)
            self.truth[name] = tree(self.root)
            shutil.rmtree(self.root)

    def run(self, words: str) -> int:
        """Run undisturbed, and import here what that needed; returns the number of its system calls."""
        code, said, facts = self.fork(words, Moment(self.root))
        if code:
            raise RuntimeError(f"{words} ended with {code}: {said}")
        found = json.loads(facts)
        for module in found["modules"]:
            with contextlib.suppress(Exception):
                importlib.import_module(module)
        return int(found["calls"])

    def fork(self, words: str, moment: Moment) -> tuple[int, str, str]:
        """The exit code of a command in a fork (negative: a signal), its output, and what it stated in descriptor 3."""
        output, facts = self.base / "output", self.base / "facts"
        for path in (output, facts):
            path.write_bytes(b"")
        pid = os.fork()
        if not pid:
            code = 99
            try:
                os.setpgid(0, 0)
                print_to(output)
                os.dup2(os.open(facts, os.O_WRONLY | os.O_APPEND), 3)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                real = os.fsync

                def fsync(file: Any) -> None:
                    real(file)
                    moment.synced.add(os.fstat(file).st_ino)
                    moment.count()

                os.fsync = fsync
                sys.addaudithook(moment.hook)
                code = cli.run([*self.filled(words).split(), *in_this_process(words)])
                moment.at = sys.maxsize
                if not code:
                    os.write(3, json.dumps({"calls": moment.seen, "modules": [*sys.modules]}).encode())
            finally:
                os._exit(code)
        return wait(pid), output.read_text(), facts.read_text()

    def filled(self, words: str) -> str:
        return words.format(root=self.root, base=self.base)

    def round(self, rng: random.Random) -> tuple[str, str]:
        """What was done, and the fault that it showed, if any."""
        name = rng.choice([*SCENARIOS])
        _, words = SCENARIOS[name]
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.base / "prepared" / name, self.root)
        before = {path: path.stat().st_mtime_ns for path in files(self.root)}
        if in_this_process(words) and rng.random() < 0.05:
            what = f"{name}, processes killed"
            self.kill_processes(words, rng)
        else:
            fault, at = rng.choice(FAULTS), rng.randrange(1, self.calls[name] + 1)
            what = f"{name}, {fault} at call {at}"
            code, said, facts = self.fork(words, Moment(self.root, fault, at))
            if "Traceback" in said or code == 99:
                return what, said[-1500:]
            if fault == "power cut" and facts.startswith("["):
                lose_unsynced(self.root, {*json.loads(facts)}, before, rng)
        code, said, _ = self.fork(words, Moment(self.root))
        if name == "delete" and code in (0, 2):  # what a deletion leaves when the dataset is gone is prune's
            code, said, _ = self.fork("prune --yes --root {root}", Moment(self.root))
        if code:
            return what, f"run again it ended with {code}: {said[-1500:]}"
        found, truth = tree(self.root), self.truth[name]
        other = sorted(path for path in {*found, *truth} if found.get(path) != truth.get(path))
        return what, f"other files than undisturbed: {other[:6]}" if other else ""

    def kill_processes(self, words: str, rng: random.Random) -> None:
        """With two workers, the command or one of them is killed after a moment."""
        command = [sys.executable, "-m", "rbdata", *self.filled(words).split(), "--procs", "2"]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.5, 6))
        family = [pid for pid in descendants(running.pid) if pid != running.pid]
        victim = rng.choice([running.pid, *family])
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        running.wait(LIMIT)
        until = time.monotonic() + 60
        while any(Path(f"/proc/{pid}").exists() for pid in family) and time.monotonic() < until:
            time.sleep(0.05)  # workers end by themselves


def in_this_process(words: str) -> list[str]:
    """Options of a command with workers that make it do without."""
    return ["--procs", "0"] if words.split()[0] in ("download", "convert", "preprocess") else []


def print_to(output: Path) -> None:
    """Let this process, a fork, write its output into a file, whatever its parent does with what is printed."""
    for number in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))


def wait(pid: int) -> int:
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.004)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 1000


def lose_unsynced(root: Path, synced: set[int], before: dict[Path, int], rng: random.Random) -> None:
    """Cut or zero what was written since the start and not synced, as after the machine was switched off."""
    for path in files(root):
        status = path.stat()
        if status.st_ino in synced or before.get(path) == status.st_mtime_ns or ".lock" in path.name:
            continue
        os.truncate(path, rng.randrange(status.st_size + 1))
        if rng.random() < 0.5:
            os.truncate(path, status.st_size)


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def tree(root: Path) -> dict[str, bytes]:
    """Every file below a root but locks; of manifests what two runs have in common."""
    found = {str(path.relative_to(root)): path.read_bytes() for path in files(root) if ".lock" not in path.name}
    for name in [name for name in found if name.endswith("rbdata.json")]:
        record = json.loads(found[name])
        found[name] = json.dumps({**record, "provenance": 0, "checksum": 0}).encode()
    return found


def descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(one for child in children for one in descendants(int(child)))]


def run(rounds: int, seed: int, first: int = 0) -> tuple[Counter[str], list[str]]:
    """How often each fault came, and what was wrong after it, with the round that repeats it."""
    outcomes, faults = Counter[str](), []
    with tempfile.TemporaryDirectory(prefix="rbdata-kills-") as folder:
        campaign = Campaign(Path(folder))
        for number in range(first, first + rounds):
            what, fault = campaign.round(random.Random(f"{seed} {number}"))
            outcomes[what.partition(", ")[2].partition(" at ")[0]] += 1
            if fault:
                faults.append(f"--seed {seed} --first {number} --rounds 1: {what}: {fault}")
                print(faults[-1], file=sys.stderr, flush=True)
    return outcomes, faults


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    outcomes, faults = run(given.rounds, given.seed, given.first)
    print(f"kills: {given.rounds} rounds, {len(faults)} faults; {dict(outcomes)}")
    sys.exit(bool(faults))
