"""The snippets of the documents: found in the Markdown, and run as a reader would, in one process.

A page's fenced blocks run in order: ```` ```python ```` in one namespace, ```` ```sh ```` and ```` ```console ```` line by line
(``$ `` begins a command of a console block, what follows is what it prints). A comment above a block says more about it:

    <!-- not run: REASON -->     needs what a test machine has not
    <!-- file: NAME -->          is saved under that name, as its page says
    <!-- part of: PATH -->       is not run: its lines are lines of that file of the repository, which other tests run
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rbdata.cli import run as run_command_line

FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>\w*)\s*$")
COMMENT = re.compile(r"^ *<!-- (?P<word>not run|file|part of): (?P<rest>.+) -->$")
RUN = ("python", "sh", "console")
NUMBER = re.compile(r"[-+]?\d[\d,.]*(e[-+]?\d+)?( ?(kB|MB|GB|TB|KiB|MiB|ms|us|min|[kMGs%x])(?!\w))?")


@dataclass(frozen=True)
class Block:
    """A fenced block; ``line`` is that of its first line in the file, from 1."""

    line: int
    kind: str
    lines: list[str]
    not_run: str = ""
    file: str = ""
    part_of: str = ""


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page that can be run, marked ones included."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        opening = FENCE.match(lines[at])
        if opening is None:
            at += 1
            continue
        indent, kind = opening["indent"], opening["kind"]
        end = next(n for n in range(at + 1, len(lines)) if lines[n].rstrip() == f"{indent}```")
        before = next((line for line in reversed(lines[:at]) if line.strip()), "")
        comment = COMMENT.match(before)
        marks = {comment["word"].replace(" ", "_"): comment["rest"]} if comment else {}
        if kind in RUN:
            yield Block(at + 2, kind, [line.removeprefix(indent) for line in lines[at + 1 : end]], **marks)
        at = end + 1


def indented_commands(text: str) -> list[str]:
    """Lines of indented code blocks that are commands: these would not be run."""
    fenced = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    return re.findall(r"^ {4,}(?:\$ )?(?:rbdata|python|pip|make) .*", fenced, flags=re.M)


class Terminal(io.StringIO):
    """Captured output that the program takes for a terminal, as the documents show what a terminal shows."""

    def isatty(self) -> bool:
        return True


class Page:
    """Runs the blocks of one page. ``standins`` replaces text of blocks, such as an address by a local folder."""

    def __init__(self, path: Path, folder: Path, standins: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.folder, self.standins, self.monkeypatch = path, folder, standins, monkeypatch
        self.namespace: dict[str, Any] = {"__name__": "page"}

    def run(self) -> None:
        page = [block for block in blocks(self.path.read_text()) if not (block.not_run or block.part_of)]
        for block in page:  # commands of the head of a page use files that are shown below
            if block.file:
                (self.folder / block.file).write_text(self.text_of(block))
        for block in page:
            text = self.text_of(block)
            place = f"{self.path.name}:{block.line}"
            if block.kind == "python" and not block.file:
                # As many lines before it as on the page, so that a traceback has the page's line numbers.
                exec(compile("\n" * (block.line - 1) + text, str(self.path), "exec"), self.namespace)
            elif not block.file:
                self.run_commands(place, text, console=block.kind == "console")

    def text_of(self, block: Block) -> str:
        """What is run, or saved."""
        text = "\n".join(block.lines) + "\n"
        for word, local in self.standins.items():
            text = text.replace(word, local)
        return text

    def run_commands(self, place: str, text: str, *, console: bool) -> None:
        text = text.replace("\\\n", " ")
        if not console:
            for line in text.splitlines():
                self.command(place, line)
            return
        for piece in re.split(r"^\$ ", text, flags=re.M)[1:]:
            line, _, expected = piece.partition("\n")
            check_output(place, self.command(place, line, console), expected)

    def command(self, place: str, line: str, console: bool = False) -> str:
        """Run one line of a shell; returns what it prints."""
        words = [
            str(Path(word).expanduser()) if word.startswith("~") else word for word in shlex.split(line, comments=True)
        ]
        if not words:
            return ""
        if words[0] == "export":
            self.monkeypatch.setenv(*words[1].split("=", 1))
            return ""
        output = Terminal() if console else io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            if words[0] == "rbdata":
                code = run_command_line(words[1:])
                assert code == 0, f"{place}: {line}: exit {code}\n{output.getvalue()}"
            elif words[:2] == ["python", "-c"]:
                exec(compile(words[2], place, "exec"), {})
            elif words[0] == "python":
                self.monkeypatch.setattr(sys, "argv", words[1:])
                runpy.run_path(words[1], run_name="__main__")
            else:
                pytest.fail(f"{place}: {line}: a test cannot run this; a comment above the block can say why")
        return output.getvalue()


def check_output(place: str, printed: str, expected: str) -> None:
    """Every line that the page shows is printed, in that order; numbers with their units may differ, ``...`` is any text."""
    actual = [shape(line) for line in printed.replace("\r", "\n").splitlines()]
    at = 0
    for line in expected.splitlines():
        wanted = shape(line)
        if wanted in ("", "..."):
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in wanted.split("...")))
        found = next((n for n in range(at, len(actual)) if pattern.fullmatch(actual[n])), None)
        assert found is not None, f"{place}: the page shows {line!r}, printed was\n{printed}"
        at = found + 1


def shape(line: str) -> str:
    """The line without what differs between runs and machines: numbers, white space, the width of rules."""
    line = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", line)
    line = re.sub(r"([-─━=_])\1{2,}", r"\1", line)
    return " ".join(NUMBER.sub("#", line).split())
