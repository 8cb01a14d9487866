"""The commits from a good one to a bad one, each in a working tree of its own, which is removed again."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.comparison.bisect.bisect_document import Kind
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline.bisect.line import PointFails, PointName, RunPlace
from llm_perf_opt.system.process import allowed_environment, run_command, run_quick
from llm_perf_opt.system.redact import Redactor

GIT_TIMEOUT_S = 600.0
SETUP_TIMEOUT_S = 4 * 3600.0
SHORT = 10
FILES_SHOWN = 20


@dataclass(kw_only=True)
class CommitLine:
    """Commits by first parent, oldest first. `below` is where inside the repository the program starts."""

    repo: Path
    below: Path
    commits: tuple[str, ...]
    names: Sequence[PointName]
    command: tuple[str, ...]
    folder: Path
    setup: str | None
    env: dict[str, str]
    kind: Kind = "commits"
    _made: dict[int, Path] = field(default_factory=dict)

    def place(self, point: int) -> RunPlace:
        tree = self._made.get(point) or self._checkout(point)
        paths = [str(tree / "src"), str(tree), *filter(None, [self.env.get("PYTHONPATH")])]
        # What is in the checkout is found before what is installed.
        env = {**self.env, "PYTHONPATH": os.pathsep.join(paths)}
        cwd = tree / self.below
        if not cwd.is_dir():
            raise PointFails(f"{self.below} does not exist in this commit")
        return RunPlace(command=self.command, cwd=cwd, env=env)

    def _checkout(self, point: int) -> Path:
        tree = self.folder / "checkouts" / self.commits[point][:SHORT]
        if tree.exists():
            # Left by a start that was killed.
            self._remove(tree)
        code, text = _git(self.repo, "worktree", "add", "--detach", str(tree), self.commits[point])
        if code != 0:
            raise PointFails(f"no checkout could be made: {text.strip()}")
        self._made[point] = tree
        if self.setup is not None:
            log = self.folder / "logs" / f"setup-{self.commits[point][:SHORT]}.log"
            result = run_command(
                ["sh", "-c", self.setup],
                env=self.env,
                timeout_s=SETUP_TIMEOUT_S,
                log=log,
                cwd=tree,
                redactor=Redactor.of(os.environ),
            )
            if not result.ok:
                raise PointFails(f"--setup failed (log: {log})")
        return tree

    def leave(self, point: int) -> None:
        if point not in (0, len(self.commits) - 1) and point in self._made:
            self._remove(self._made.pop(point))

    def _remove(self, tree: Path) -> None:
        _git(self.repo, "worktree", "remove", "--force", str(tree))

    @contextmanager
    def opened(self) -> Iterator[None]:
        try:
            yield
        finally:
            for tree in self._made.values():
                self._remove(tree)
            self._made.clear()
            _git(self.repo, "worktree", "prune")
            shutil.rmtree(self.folder / "checkouts", ignore_errors=True)

    def changed_files(self, before: int, after: int) -> tuple[str, ...]:
        code, text = _git(self.repo, "diff", "--name-only", self.commits[before], self.commits[after])
        return tuple(text.splitlines()[:FILES_SHOWN]) if code == 0 else ()


def commit_line(
    good: str,
    bad: str,
    *,
    repo: Path | None,
    command: Sequence[str],
    folder: Path,
    setup: str | None,
    env: dict[str, str],
) -> CommitLine:
    """The line from good to bad; refuses what is not a line."""
    start = Path.cwd() if repo is None else repo
    code, text = _git(start, "rev-parse", "--show-toplevel")
    if code != 0:
        raise ConfigError(f"bisect: {start} is not inside a git repository; run it there, or give --repo DIR")
    top = Path(text.strip())
    ends = {name: _commit(top, name) for name in (good, bad)}
    if ends[good] == ends[bad]:
        raise ConfigError(f"bisect: {good} and {bad} are the same commit")
    shown = "--format=%H%x09%s"
    line = ("--reverse", "--first-parent", "--ancestry-path", shown, f"{ends[good]}..{ends[bad]}")
    code, text = _git(top, "log", *line)
    commits = [row.partition("\t")[::2] for row in text.splitlines()]
    if code != 0 or not commits:
        raise ConfigError(f"bisect: {good} is not an ancestor of {bad}; give an older good commit and a newer bad one")
    _, first = _git(top, "log", "--no-walk", shown, ends[good])
    every = [first.strip().partition("\t")[::2], *commits]
    below = start.resolve().relative_to(top.resolve()) if repo is None else Path()
    return CommitLine(
        repo=top,
        below=below,
        commits=tuple(commit for commit, _ in every),
        names=[PointName(label=commit[:SHORT], title=subject) for commit, subject in every],
        command=tuple(command),
        folder=folder,
        setup=setup,
        env=env,
    )


def _commit(repo: Path, name: str) -> str:
    code, text = _git(repo, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if code != 0:
        raise ConfigError(f"bisect: {name!r} is not a commit of {repo}")
    return text.strip()


def _git(repo: Path, *words: str) -> tuple[int | None, str]:
    return run_quick(["git", "-C", str(repo), *words], env=allowed_environment(os.environ), timeout_s=GIT_TIMEOUT_S)
