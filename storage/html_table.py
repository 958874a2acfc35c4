"""Tables that notebooks show for datasets, buffers and records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(title: str, rows: Iterable[Sequence[object]], head: Sequence[str] = (), most: int = 40) -> str:
    """A title and a table, all text escaped; rows beyond ``most`` are counted only."""
    shown = list(rows)
    lines = [_row("th", head)] if head else []
    lines += [_row("td", row) for row in shown[:most]]
    if len(shown) > most:
        lines.append(_row("td", [f"and {len(shown) - most:,} more"]))
    return f"<div><b>{escape(title)}</b><table>{''.join(lines)}</table></div>"


def _row(tag: str, cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"
