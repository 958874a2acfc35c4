"""The help of a command: its arguments, its own options, those of each source, and those that every command has."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from typer.core import TyperCommand

from .quick_conversion import QuickHelp

#: Options that every command has.
EVERYWHERE = ("root", "json", "quiet", "debug", "help")


class Command(QuickHelp, TyperCommand):
    """A command whose help groups the options. A parameter with an attribute ``by_source`` (the help of each source that
    declares it, by the name of the source) is listed with these sources."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """ID, not {ID}: braces are not needed around what is required."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            left, right = record
            by_source: dict[str, str] = getattr(param, "by_source", {})
            if param.param_type_name == "argument":
                sections["Arguments"].append((left.partition(" <")[0], right.removesuffix("[required]").rstrip()))
            elif by_source:
                for source, text in by_source.items():
                    sections[f"Options of {source}"].append((left, text[:1].upper() + text[1:]))
            else:
                place = "Options of every command" if param.name in EVERYWHERE else "Options"
                sections[place].append((left, right.replace("  [x>=1]", "")))
        last = sections.pop("Options of every command", [])
        for title, records in [*sections.items(), ("Options of every command", last)]:
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
