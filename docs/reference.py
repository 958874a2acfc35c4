"""Writes what commands.md, api.md and audit.md generate, so that they can be read in a checkout: ``python docs/reference.py``.

The site shows the docstrings below the table of api.md (extensions/api_reference.py).
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "extensions"))

import api_reference  # noqa: E402 - found by the line above
import command_reference  # noqa: E402
from rbdata import errors  # noqa: E402
from rbdata.datasets.audit.findings import GROUPS, KINDS  # noqa: E402

BEGIN, END = "<!-- docs/reference.py writes this -->", "<!-- end -->"


def names() -> Iterator[str]:
    """Every public name with the first sentence of its docstring, in the groups of the reference."""
    escape = "\\|"
    for title, members in api_reference.groups().items():
        yield from (f"**{title}**", "", "| | |", "| --- | --- |")
        for name in members:
            head, _, _ = (inspect.getdoc(api_reference.documented(name)) or "").partition("\n\n")
            sentence = re.split(r"(?<=\.)\s", " ".join(head.split()), maxsplit=1)[0].rstrip(".:")
            yield f"| `{name}` | {sentence.replace('``', '`').replace('|', escape)} |"
        yield ""
    yield from raised()


def raised() -> Iterator[str]:
    """Every exception of `rbdata.errors` with the code and exit code of the command line."""
    yield from (
        "**Errors**, of `rbdata.errors`",
        "",
        "| name | also a | code | exits with | |",
        "| --- | --- | --- | --- | --- |",
    )
    for name, one in vars(errors).items():
        if isinstance(one, type) and issubclass(one, errors.RbdataError):
            bases = ", ".join(f"`{base.__name__}`" for base in one.__bases__ if base is not errors.RbdataError)
            sentence = " ".join((inspect.getdoc(one) or "").partition("\n\n")[0].split()).replace("``", "`").rstrip(".")
            yield f"| `{name}` | {bases} | `{one.code}` | {one.exit_code} | {sentence} |"
    yield ""


def findings() -> Iterator[str]:
    """The kinds of findings of an audit, under the heading of the module that looks for them."""
    for title, codes in GROUPS.items():
        yield from (f"**{title}**", "", "| code | severity | what it does to a learner |", "| --- | --- | --- |")
        yield from (f"| `{code}` | {KINDS[code].severity} | {KINDS[code].effect} |" for code in codes)
        yield ""


PAGES: dict[str, Callable[[], Iterable[str]]] = {
    "api.md": names,
    "audit.md": findings,
    "commands.md": command_reference.lines,
}


def written(page: str) -> str:
    """A page with what is generated between the two marks."""
    head, rest = (DOCS / page).read_text(encoding="utf-8").split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n\n{chr(10).join(PAGES[page]())}\n{END}{tail}"


if __name__ == "__main__":
    for page in PAGES:
        (DOCS / page).write_text(written(page), encoding="utf-8")
