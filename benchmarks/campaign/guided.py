"""Inputs that coverage leads to, by atheris, which whoever wants it installs: ``pip install atheris``.

    python benchmarks/campaign/inputs.py --atheris parquet --seconds 600
    python benchmarks/campaign/inputs.py --atheris all --seconds 60      # every reader: a line for each

A run ends with the first fault; the input that led to it is left in the folder that is printed, and is read again by
``--atheris READER --again FILE``.
"""

from __future__ import annotations

import importlib
import random
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from input_readers import READERS, Reader

#: Of the changes, those that a reader's own function makes (with the right checksums, say), where there is one.
_OWN_CHANGES = 0.5
_LONGEST = 1_000_000


def fuzz(name: str, seconds: int, memory: int, timeout: float, try_input: Callable[..., tuple[str, str]]) -> None:
    """Run until the first fault or the end of the time, and end the process."""
    atheris: Any = importlib.import_module("atheris")
    reader, folder = READERS[name], Path(tempfile.mkdtemp(prefix=f"rbdata-{name}-"))
    seeds = folder / "seeds"
    seeds.mkdir()
    print(f"inputs and faults: {folder}", flush=True)
    warnings.simplefilter("ignore")
    with atheris.instrument_imports(include=["rbdata"]):  # imports at the point of use, so every file is read once
        for number, data in enumerate(reader.corpus(folder / "corpus")):
            (seeds / str(number)).write_bytes(data)
            try_input(reader.read, data, folder)

    def one(data: bytes) -> None:
        _, fault = try_input(reader.read, data or b"\0", folder)  # the first byte of some names the file
        if fault:
            raise AssertionError(fault)

    bounds = [f"-rss_limit_mb={memory >> 20}", f"-timeout={timeout:.0f}", f"-max_total_time={seconds}"]
    more = {"custom_mutator": _mutator(atheris, reader)} if reader.change else {}
    atheris.Setup(
        [sys.argv[0], str(seeds), *bounds, f"-artifact_prefix={folder}/", f"-max_len={_LONGEST}"], one, **more
    )
    atheris.Fuzz()


def _mutator(atheris: Any, reader: Reader) -> Callable[[bytes, int, int], bytes]:
    """Changes by libFuzzer, and those that the campaign itself makes."""

    def change(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if reader.change and rng.random() < _OWN_CHANGES:
            with suppress(Exception):  # which expect what a valid file has
                return reader.change([data] * 3, rng, 0)[:most]
        return bytes(atheris.Mutate(data, most))

    return change


def fuzz_all(seconds: int) -> bool:
    """Every reader for so long, and a line of each; whether there was no fault."""
    sound = True
    for name in (name for name in READERS if name != "bombs"):
        command = [sys.executable, sys.argv[0], "--atheris", name, "--seconds", str(seconds)]
        try:  # what a reader hangs in may not take signals
            ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds + 300)
            line, is_sound = summary(ended.stdout.decode(errors="replace"), ended.returncode)
        except subprocess.TimeoutExpired as late:
            said, _ = summary((late.stdout or b"").decode(errors="replace"), 1)
            line, is_sound = f"no end after {seconds + 300} s: {said}", False
        print(f"{name}: {line}", flush=True)
        sound &= is_sound
    return sound


def summary(output: str, code: int) -> tuple[str, bool]:
    """What a run's output says in a line, and whether it ended without a fault."""
    covered = re.findall(r"(?:cov: (\d+) )?ft: (\d+) ", output)
    done = re.search(r"Done (\d+) runs in (\d+) second", output)
    counts = re.findall(r"^#(\d+)\t", output, re.MULTILINE)
    points = (
        f"coverage {covered[0][0]} to {covered[-1][0]}, paths {covered[0][1]} to {covered[-1][1]}" if covered else ""
    )
    if done and not code:
        return f"{int(done[1]):,} inputs in {done[2]} s, {points}, no fault", True
    fault = re.findall(r"^(?:\w*Error: .*|==\d+== ?ERROR: .*|.*Test unit written to .*)$", output, re.MULTILINE)
    said = "; ".join(fault) or output.strip()[-300:]
    return f"{int(counts[-1]) if counts else 0:,} inputs, {points}, ended with {code}: {said}", False
