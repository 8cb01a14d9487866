"""The steps of a release that are the same here and in the release workflow (RELEASING.md).

python scripts/release.py check        build, check and install in empty environments; SBOM, check sums
python scripts/release.py tag v0.3.0   exit code 1 unless the tag is the version of the package and has its changes
python scripts/release.py notes v0.3.0 the changes of that version, as CHANGELOG.md has them
python scripts/release.py collect 0.3.0 2026-12-01   move the entries of changes/ into the section of that version
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
# What must work where nothing but the package is installed.
COMMANDS = (
    ("--version",),
    ("predict", "model=llama3_8b", "hardware=h200"),
    ("doctor",),
    ("profile", "--cfg", "job", "model=llama_tiny"),
)


# Entries wait in changes/AREA.NAME.md; a section of CHANGELOG.md has its areas in this order.
AREAS = {
    "run": "Programs (`llm-perf run`)",
    "diagnosis": "Diagnosis",
    "analyze": "Existing captures (`llm-perf analyze`)",
    "report": "Reports",
    "bench": "Servers (`llm-perf bench`)",
    "predict": "Predictions (`llm-perf predict`, `llm-perf plan`)",
    "compare": "Comparing (`compare`, `bisect`, `runs`, `sweep`)",
    "optimize": "Optimizing (`llm-perf optimize`)",
    "profilers": "Profilers (nsys, ncu, torch)",
    "stages": "Energy and memory",
    "python": "Data, Python and agents",
    "cli": "Command line and configuration",
    "plugins": "Plug-ins",
    "security": "Security",
    "docs": "Documentation",
}
LONGEST_ENTRY = 160
UNRELEASED = "unreleased"


class ReleaseError(Exception):
    """What is in the way of a release, in words."""


def version_of(pyproject: str) -> str:
    return str(tomllib.loads(pyproject)["project"]["version"])


def changes_of(version: str, changelog: str) -> str:
    """The section of one version, without its heading."""
    found = _section(version, changelog)
    if found is None or not found[2].strip() or UNRELEASED in found[1]:
        raise ReleaseError(f"CHANGELOG.md: no changes of {version}; run: scripts/release.py collect {version} DATE")
    return found[2].strip() + "\n"


def _section(version: str, changelog: str) -> re.Match[str] | None:
    """The heading and the text of one version."""
    pattern = rf"^(## {re.escape(version)}\b[^\n]*)\n(.*?)(?=^## |\Z)"
    return re.search(pattern, changelog, re.MULTILINE | re.DOTALL)


def read_entries(folder: Path) -> dict[str, list[str]]:
    """The entries that wait, by the title of their area; raises where one is not a single line of a known area."""
    entries: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.md")):
        if path.name == "README.md":
            continue
        area, text = path.name.partition(".")[0], path.read_text(encoding="utf-8").strip()
        if area not in AREAS:
            raise ReleaseError(f"changes/{path.name}: no such area; use one of {', '.join(AREAS)}")
        if not text or "\n" in text or len(text) > LONGEST_ENTRY:
            raise ReleaseError(f"changes/{path.name}: one line of at most {LONGEST_ENTRY} characters is needed")
        entries.setdefault(AREAS[area], []).append(f"- {text.removeprefix('- ')}")
    return entries


def collect(version: str, date: str, changelog: str, entries: Mapping[str, Sequence[str]]) -> str:
    """The changelog with the entries in the section of the version, which is made where there is none."""
    found = _section(version, changelog)
    first = re.search(r"^## ", changelog, re.MULTILINE)
    start = found.start() if found is not None else first.start() if first is not None else len(changelog)
    end = found.end() if found is not None else start
    parts = re.split(r"^### (.*)\n", "" if found is None else found[2], flags=re.MULTILINE)
    areas = {title: text.strip().splitlines() for title, text in zip(parts[1::2], parts[2::2], strict=True)}
    for title, lines in entries.items():
        areas.setdefault(title, []).extend(lines)
    order = [*(title for title in AREAS.values() if title in areas), *(t for t in areas if t not in AREAS.values())]
    body = "\n\n".join("\n".join((f"### {title}", *areas[title])) for title in order)
    return f"{changelog[:start]}## {version} — {date}\n\n{body}\n\n{changelog[end:]}"


def check_tag(tag: str, pyproject: str, package: str, changelog: str, citation: str) -> None:
    """Raise unless every place that states a version states the one of the tag."""
    version = tag.removeprefix("v")
    stated = {
        "pyproject.toml": version_of(pyproject),
        "src/llm_perf_opt/__init__.py": "".join(re.findall(r'^__version__ = "([^"]+)"', package, re.MULTILINE)),
        "CITATION.cff": "".join(re.findall(r"^version: (\S+)", citation, re.MULTILINE)),
    }
    wrong = [f"{name} has {found}" for name, found in stated.items() if found != version]
    if not tag.startswith("v") or wrong:
        raise ReleaseError(f"tag {tag}: {', '.join(wrong) or 'has no v'}; all must be {version}")
    changes_of(version, changelog)


def check(dist: Path = DIST) -> list[str]:
    """Build and try everything; the names of the files a release publishes."""
    shutil.rmtree(dist, ignore_errors=True)
    python = sys.executable
    _run([python, "-m", "build", "--no-isolation", "--outdir", str(dist), str(ROOT)])
    wheel, sdist = next(dist.glob("*.whl")), next(dist.glob("*.tar.gz"))
    _run([python, "-m", "twine", "check", "--strict", str(wheel), str(sdist)])
    with tempfile.TemporaryDirectory(prefix="llm-perf-release-") as folder:
        for package in (wheel, sdist):
            _try_package(package, Path(folder, package.suffix.lstrip(".")))
        sbom = dist / f"{wheel.name.split('-')[0]}-{version_of((ROOT / 'pyproject.toml').read_text())}.cdx.json"
        environment = Path(folder, "whl")
        _run(
            [
                _script("cyclonedx-py"),
                "environment",
                "--output-reproducible",
                "--of",
                "JSON",
                "-o",
                str(sbom),
                str(environment),
            ]
        )
    names = sorted(path.name for path in dist.iterdir())
    sums = "".join(f"{hashlib.sha256((dist / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
    (dist / "SHA256SUMS").write_text(sums)
    return [*names, "SHA256SUMS"]


def _try_package(package: Path, folder: Path) -> None:
    """Install it in an empty environment and use it away from the repository."""
    venv.create(folder, with_pip=True)
    _run([str(folder / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", str(package)])
    _run([str(folder / "bin/pip"), "--disable-pip-version-check", "check"])
    for words in COMMANDS:
        _run([str(folder / "bin/llm-perf"), *words], cwd=folder, may_end_with=(0, 1) if words == ("doctor",) else (0,))


def _script(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _run(argv: Sequence[str], *, cwd: Path | None = None, may_end_with: Sequence[int] = (0,)) -> None:
    print("+", " ".join(argv), flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in may_end_with:
        raise ReleaseError(f"{argv[0]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")


def main(args: Sequence[str]) -> int:
    try:
        match [*args]:
            case ["check"]:
                print("\n".join(check()))
            case ["tag", tag]:
                names = ("pyproject.toml", "src/llm_perf_opt/__init__.py", "CHANGELOG.md", "CITATION.cff")
                check_tag(tag, *((ROOT / name).read_text(encoding="utf-8") for name in names))
            case ["notes", tag]:
                print(changes_of(tag.removeprefix("v"), (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")), end="")
            case ["collect", version, date]:
                changelog, folder = ROOT / "CHANGELOG.md", ROOT / "changes"
                text = collect(version, date, changelog.read_text(encoding="utf-8"), read_entries(folder))
                changelog.write_text(text, encoding="utf-8")
                for path in folder.glob("*.md"):
                    if path.name != "README.md":
                        path.unlink()
            case _:
                print(__doc__, end="", file=sys.stderr)
                return 2
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
