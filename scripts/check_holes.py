"""Says which installed packages have known holes, by pip-audit; and says so when it could not find out.

    python scripts/check_holes.py              exit code 1: a hole; 3: no database could be queried, which is not an
    all-clear python scripts/check_holes.py --may-skip   the same, but an unreachable service is not a failure: without
    a network

pip-audit exits with 0 where its service knows none of the packages, as behind a mirror that answers for the real one:
packages that were not looked up are counted here, and named.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

HOLE, NOT_ASKED = 1, 3
TIMEOUT_S = 600
# Ours, and what pip itself never fetched from an index.
_OUR_OWN = "llm-perf-opt"
# More unknown packages than these and the query failed.
LARGEST_UNKNOWN_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Audited:
    """What pip-audit says of all packages. `holes` are lines, `unknown` the names without an answer."""

    known: int
    unknown: tuple[str, ...]
    holes: tuple[str, ...]

    @property
    def is_all_clear(self) -> bool:
        total = self.known + len(self.unknown)
        return total > 0 and len(self.unknown) <= LARGEST_UNKNOWN_SHARE * total


def read_audit(text: str) -> Audited:
    """What `pip-audit --format json` printed."""
    packages = [one for one in json.loads(text)["dependencies"] if one["name"] != _OUR_OWN]
    asked = [one for one in packages if "skip_reason" not in one]
    holes = [
        f"{one['name']} {one['version']}: {hole['id']}; "
        + (f"fixed in {', '.join(hole['fix_versions'])}" if hole["fix_versions"] else "not fixed yet")
        for one in asked
        for hole in one["vulns"]
    ]
    unknown = tuple(one["name"] for one in packages if "skip_reason" in one)
    return Audited(known=len(asked), unknown=unknown, holes=tuple(holes))


def main(args: Sequence[str]) -> int:
    command = [sys.executable, "-m", "pip_audit", "--skip-editable", "--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        audited = read_audit(done.stdout)
    except subprocess.TimeoutExpired:
        print(f"NOT AUDITED: no answer within {TIMEOUT_S} s")
        return 0 if "--may-skip" in args else NOT_ASKED
    except (ValueError, KeyError):
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "it printed nothing")
        print(f"NOT AUDITED: pip-audit reached no service ({last.strip()[:200]})")
        return 0 if "--may-skip" in args else NOT_ASKED
    for line in audited.holes:
        print(line)
    if audited.known:
        print(f"{audited.known} packages looked up, {len(audited.holes)} known holes")
    if audited.unknown:
        names = ", ".join(audited.unknown[:5]) + (", …" if len(audited.unknown) > 5 else "")
        print(f"NOT AUDITED: {len(audited.unknown)} packages the service does not know ({names})")
    if audited.holes:
        return HOLE
    return 0 if audited.is_all_clear or "--may-skip" in args else NOT_ASKED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
