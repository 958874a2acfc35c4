"""Long attacks on everything that reads or writes what others may damage.

    python benchmarks/campaign [--rounds-scale X] [--seed N] [--report FILE] [NAME ...]

Each campaign runs in its own process, without the settings and credentials of this machine. A fault names the seed that
repeats it. The exit status is 1 where a fault was found.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests/support"), str(ROOT / "examples")]

from report import page, table  # noqa: E402
from runner import ROUNDS, campaigns, run  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(campaigns())} (all)")
    parser.add_argument("--rounds-scale", type=float, default=1.0, help="of the rounds of a full run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, help="write the table as a page of Markdown as well")
    given = parser.parse_args()
    unknown = set(given.names) - set(campaigns())
    if unknown:
        parser.error(f"there is no campaign {', '.join(sorted(unknown))}; there are {', '.join(campaigns())}")
    reports = []
    for name in given.names or campaigns():
        rounds = max(1, round(ROUNDS[name] * given.rounds_scale))
        print(f"{name}: {rounds:,} rounds, seed {given.seed}", file=sys.stderr, flush=True)
        reports.append(run(name, rounds, given.seed))
        print(table(reports[-1:]), file=sys.stderr, flush=True)
        if given.report:  # after each, so that one which is ended early leaves the others'
            given.report.write_text(page(reports, given.rounds_scale))
    print(table(reports), end="")
    sys.exit(any(report.faults for report in reports))


if __name__ == "__main__":
    main()
