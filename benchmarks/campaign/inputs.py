"""Files of every source with a few bytes wrong: the right values, or an error that names what is damaged.

    python benchmarks/campaign/inputs.py --rounds 3000 --seed 0 [--case minari] [--first N]

A round changes one file of a valid input (`tests/data`, written by the providers' own libraries) in one to five places, and
converts it in a fork of this process. What must come out is an exit code with one clear message, or a dataset; where the
container has a checksum, a dataset with the right values. Never a traceback, more than `SECONDS`, or more than `MEMORY` beyond
what the process held. A C library may crash in the fork: the same input is then converted by a worker process, as it is without
``--procs 0``, and must be an error. Converted datasets are damaged too: there ``verify`` must find every change.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from kills import print_to
from rbdata import cli

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
SECONDS, MEMORY = 120, 600 << 20
NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, (1 << 63) - 1, (1 << 64) - 1)


@dataclass(frozen=True)
class Case:
    """A folder of `tests/data`, the command that reads a copy of it, and whether its containers have checksums."""

    folder: str
    command: str
    checked: bool = False
    #: Which files are changed.
    pattern: str = "**/*"


_MINARI = "minari/cartpole"
CASES = {
    "atari": Case("atari", "download Pong/5 --mirror {input}", True, "**/*ckpt*"),
    "rl_unplugged": Case("rl_unplugged", "download atari/Breakout/1 --mirror {input}", True, "**/run_1-*"),
    "d4rl": Case("d4rl", "download d4rl/hopper-full-replay-v2 --mirror {input}/gym_mujoco_v2", False, "**/hopper*"),
    "minari": Case(f"{_MINARI}/random-v0", "convert {input}/data/main_data.hdf5 --name my/x"),
    "minari-arrow": Case(f"{_MINARI}/arrow-v0", "convert {input} --name my/x"),
    "lerobot": Case("lerobot/v3_plain", "convert {input} --name my/x"),
    "lerobot-v21": Case("lerobot/v21_plain", "convert {input} --name my/x"),
    "rlds": Case("rlds/toy_robot", "convert {input}/0.1.0 --name my/x", True, "**/*tfrecord*"),
    "exorl": Case("exorl/jaco", "convert {input}/diayn.zip --name my/x", True),
    "vd4rl": Case("vd4rl/vd4rl", "download vd4rl/walker_walk-medium_replay-64px --mirror {input}", True, "**/*.npz"),
    "npz": Case("exorl/truth", "convert {input}/walker-rnd.npz --name my/x", True, "walker*"),
}


def change(data: bytes, rng: random.Random) -> bytes:
    """The same with one to five small changes: bits, bytes, numbers, parts that are cut, repeated or zeroed."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        at = rng.randrange(len(out) + 1) if rng.random() < 0.7 else rng.randrange(min(len(out), 512) + 1)
        what = rng.randrange(6)
        if what == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif what == 1 and at < len(out):
            out[at] = rng.randrange(256)
        elif what == 2:
            width = rng.choice((2, 4, 8))
            out[at : at + width] = (rng.choice(NUMBERS) & (1 << 8 * width) - 1).to_bytes(
                width, rng.choice(("little", "big"))
            )
        elif what == 3:
            del out[at : at + rng.choice((1, 8, 100, 5000))]
        elif what == 4:
            out[at:at] = out[at : at + rng.choice((1, 8, 100))]
        else:
            end = min(at + rng.choice((8, 512, 4096)), len(out))
            out[at:end] = bytes(end - at)
    return bytes(out)


class Campaign:
    """What the undamaged inputs become, and one round after the other."""

    def __init__(self, base: Path, names: list[str]) -> None:
        self.base, self.names = base, names
        self.truth: dict[str, dict[str, bytes]] = {}
        for name in names:
            code, said, _ = self.convert(name, CASES[name], DATA / CASES[name].folder)
            if code:
                raise RuntimeError(f"{name} ended with {code}: {said}")
            self.truth[name] = leaves(base / "root")

    def convert(self, name: str, case: Case, source: Path, procs: int = 0) -> tuple[int, str, int]:
        shutil.rmtree(self.base / "root", ignore_errors=True)
        words = f"{case.command} --root {self.base}/root --procs {procs}"
        return self.fork(words.format(input=source).split())

    def fork(self, words: list[str]) -> tuple[int, str, int]:
        """The exit code of a command in a fork (negative: a signal), its output, the bytes that it took beyond this process."""
        output = self.base / "output"
        output.write_bytes(b"")
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        pid = os.fork()
        if not pid:
            code = 99
            try:
                with contextlib.suppress(OSError):
                    Path("/proc/self/clear_refs").write_text("5")
                print_to(output)
                signal.alarm(SECONDS)
                code = cli.run(words)
            finally:
                os._exit(code)
        _, status, usage = os.wait4(pid, 0)
        return os.waitstatus_to_exitcode(status), output.read_text(errors="replace"), (usage.ru_maxrss << 10) - held

    def round(self, number: int, rng: random.Random) -> tuple[str, str]:
        """What came of a changed input, and the fault that it showed, if any."""
        name = self.names[number % len(self.names)]
        case, copy = CASES[name], self.base / "input"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(DATA / case.folder, copy)
        chosen = rng.choice(sorted(path for path in copy.glob(case.pattern) if path.is_file()))
        before = chosen.read_bytes()
        chosen.write_bytes(change(before, rng))
        if chosen.read_bytes() == before:
            return f"{name} unchanged", ""
        code, said, taken = self.convert(name, case, copy)
        if code == -signal.SIGALRM:
            return f"{name} hung", f"took more than {SECONDS} s"
        if code < 0:
            code, said, _ = self.convert(name, case, copy, procs=1)
            if code <= 0 or "Traceback" in said:
                return f"{name} crashed", f"a worker's crash ended with {code}: {said[-800:]}"
            return f"{name} crashed in a worker", ""
        if taken > MEMORY:
            return f"{name} too large", f"took {taken >> 20} MiB"
        if "Traceback" in said or "this is a bug" in said or code == 99:
            return f"{name} untyped", said[-1500:]
        if code:
            return f"{name} refused", ""
        if case.checked and leaves(self.base / "root") != self.truth[name]:
            return f"{name} wrong", "converted to other values, though its container has a checksum"
        return f"{name} read", ""

    def verify(self, rng: random.Random) -> tuple[str, str]:
        """A byte of a converted dataset is changed: ``verify`` finds it."""
        name = rng.choice(self.names)
        self.convert(name, CASES[name], DATA / CASES[name].folder)
        root = self.base / "root"
        manifest = next(root.rglob("rbdata.json"))
        chosen = rng.choice([path for path in manifest.parent.rglob("*") if path.is_file() and path.stat().st_size])
        data = bytearray(chosen.read_bytes())
        at = rng.randrange(len(data))
        data[at] ^= 1 << rng.randrange(8)
        chosen.write_bytes(data)
        code, said, _ = self.fork(["verify", str(manifest.parent)])
        if code not in (1, 2, 3, 4, 5, 6) or "Traceback" in said:
            return "folder missed", f"{name}: bit {at} of {chosen.name}: verify ended with {code}: {said[-600:]}"
        return "folder found", ""


def leaves(root: Path) -> dict[str, bytes]:
    """The files of a dataset but the manifest, which names times and places."""
    found = [
        path for path in root.rglob("*") if path.is_file() and path.name != "rbdata.json" and ".lock" not in path.name
    ]
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def run(rounds: int, seed: int, first: int = 0, names: list[str] | None = None) -> tuple[Counter[str], list[str]]:
    """How often each outcome came, and the faults with the round that repeats them."""
    outcomes, faults = Counter[str](), []
    with tempfile.TemporaryDirectory(prefix="rbdata-inputs-") as folder:
        campaign = Campaign(Path(folder), names or [*CASES])
        for number in range(first, first + rounds):
            rng = random.Random(f"{seed} {number}")
            outcome, fault = campaign.verify(rng) if number % 12 == 11 else campaign.round(number, rng)
            outcomes[outcome] += 1
            if fault:
                case = f" --case {names[0]}" if names else ""
                faults.append(f"--seed {seed} --first {number} --rounds 1{case}: {outcome}: {fault}")
                print(faults[-1], file=sys.stderr, flush=True)
    return outcomes, faults


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--case", choices=CASES)
    given = parser.parse_args()
    began = time.monotonic()
    outcomes, faults = run(given.rounds, given.seed, given.first, [given.case] if given.case else None)
    print(f"inputs: {given.rounds} rounds, {len(faults)} faults, {time.monotonic() - began:.0f} s")
    for outcome, times in sorted(outcomes.items()):
        print(f"  {outcome}: {times}")
    sys.exit(bool(faults))
