"""``rbdata audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Option

from ..errors import RbdataError
from ..storage import amounts
from .console import out
from .failure import explain
from .options import CacheDir, CacheLimit, LocalIds, Root
from .verify import CannotCheckError

if TYPE_CHECKING:
    from ..datasets.audit.findings import Audited, AuditReport, Finding

EXAMPLES = """
  rbdata audit CartPole-v1
  rbdata audit my/train my/val --strict
  rbdata audit my/robot --reward-range 0 1
  rbdata audit hopper-medium-v2 --json
"""

EXIT_CODES = """\b
Exit codes:
  0    audited; with --strict: neither errors nor warnings
  1    with --strict: errors or warnings
  2    cannot be audited (no such dataset, not readable), or wrong usage
  130  interrupted
"""

#: Leaves that are named as checked.
_SHOWN = 8
_STYLES = {"error": "bad", "warning": "doubtful", "note": "faint"}


def run(
    ids: LocalIds,
    strict: Annotated[bool, Option("--strict", help="Exit with 1 if there are errors or warnings.")] = False,
    reward_range: Annotated[
        tuple[float, float] | None,
        Option(metavar="LOW HIGH", help="Smallest and largest reward (default: as the source states)."),
    ] = None,
    cache_dir: CacheDir = None,
    cache_limit: CacheLimit = None,
    root: Root = None,
) -> int:
    """Say what is wrong with the data of datasets before training.

    Errors: the data contradict themselves, or break training. Warnings: most likely a fault. Notes: worth knowing, often
    right. Each names its steps or episodes, and what it does to a learner. Several datasets, such as those for training and for
    validation, are compared as well. `verify` compares bytes with checksums instead.
    """
    from ..datasets.audit.run import audit_datasets
    from ..datasets.local import expand
    from ..datasets.opening import opened
    from .progress import phase

    try:
        names = expand(ids, root)
        datasets = opened(names, root=root, cache_dir=cache_dir, cache_limit=cache_limit)
        with phase("auditing") as show:
            report = audit_datasets(
                datasets,
                reward_range=reward_range,
                on_progress=lambda what, done, total: show(what, done / total),
            )
    except RbdataError as error:
        if error.exit_code == 1:  # which would mean findings
            raise CannotCheckError(explain(error)) from error
        raise
    _show(report)
    return 1 if strict and not report.ok else 0


def _show(report: AuditReport) -> None:
    found = [one.id for one in report.datasets if _style(one, report.findings) != "good"]
    if out.programs(report.to_json, found):
        return
    for finding in report.findings:
        _show_finding(finding, several=len(report.datasets) > 1)
    for one in report.datasets:
        out.paragraph(_headline(one, report.findings), style=_style(one, report.findings))
        for line in _scope(one):
            out.paragraph(line, "  ")


def _of(one: Audited, findings: tuple[Finding, ...]) -> list[Finding]:
    return [finding for finding in findings if one.id in (finding.dataset, finding.other)]


def _style(one: Audited, findings: tuple[Finding, ...]) -> str:
    found = {finding.severity for finding in _of(one, findings)}
    return "bad" if "error" in found else "doubtful" if "warning" in found else "good"


def _headline(one: Audited, findings: tuple[Finding, ...]) -> str:
    """``gymnasium/CartPole-v1: 1 warning in 500 steps, 23 episodes (0.1 s)``"""
    from ..datasets.audit.findings import summary

    size = f"{amounts.plural(one.steps, 'step')}, {amounts.plural(one.episodes, 'episode')}"
    return f"{one.id}: {summary(_of(one, findings))} in {size} ({amounts.duration(one.seconds)})"


def _scope(one: Audited) -> list[str]:
    lines = [f"checked: {amounts.listed(one.checked, _SHOWN)}"]
    lines += [f"sampled: {amounts.count(steps)} steps of {name}" for name, steps in one.sampled.items()]
    return lines + [f"not checked: {name}, {why}" for name, why in one.skipped.items()]


def _show_finding(finding: Finding, several: bool) -> None:
    about = [" and ".join(filter(None, (finding.dataset, finding.other)))] * several + [finding.leaf]
    head = f"{finding.severity} {finding.code}", ", ".join(filter(None, about))
    out.paragraph("  ".join(filter(None, head)), style=_STYLES[finding.severity])
    out.paragraph(f"{finding.what} ({finding.where})", "  ")
    out.paragraph(f"to a learner: {finding.effect}", "  ", "faint")
