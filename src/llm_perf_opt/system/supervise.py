"""Is between us and a command, so that nothing of it outlives us (docs/adr/0003-process-trees.md).

Run as its own script: `python -I -S supervise.py STATUS_FD PARENT_PID [--clean VALUES_FD LOG] [--remove PATH ...]
-- ARGV ...`. It starts the command, reaps what the command orphans, and ends as the command ended. When our process
dies, even by SIGKILL, the kernel notifies this one, which ends the whole tree, takes the secrets out of the log and
removes the folders it was given. It imports nothing of ours and little of Python before that, because it is started for
every command.
"""

import ctypes
import os
import signal
import sys
import time
from types import FrameType

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
NOT_STARTED = 127
# A process that waits for a device cannot be killed, and must not keep us.
PATIENCE_S = 30


def main(argv: list[str]) -> int:
    status, parent = int(argv[0]), int(argv[1])
    split = argv.index("--")
    options, command = argv[2:split], argv[split + 1 :]
    known, log = (int(options[1]), options[2]) if options[:1] == ["--clean"] else (None, "")
    removed = [word for word in options[3 if log else 0 :] if word != "--remove"]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (status, known):
        if number is not None:
            os.set_inheritable(number, False)

    def look(number: int, frame: FrameType | None) -> None:
        # A signal while the parent lives is for the command, which gets its own.
        if os.getppid() != parent:
            import shutil  # seldom needed, and slow to import

            _end_all()
            for folder in removed:
                shutil.rmtree(folder, ignore_errors=True)
            if known is not None:
                _clean(log, known)
            os._exit(128 + signal.SIGKILL)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, look)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    look(signal.SIGTERM, None)
    child = os.fork()
    if child == 0:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        try:
            os.execvpe(command[0], command, os.environ)
        except OSError as error:
            os.write(status, str(error.errno).encode())
        os._exit(NOT_STARTED)
    os.close(status)
    return _wait_for(child)


def _wait_for(child: int) -> int:
    """Reap until the command itself has ended; what it left running becomes our parent's."""
    while True:
        pid, ended = os.waitpid(-1, 0)
        if pid == child:
            break
    if os.WIFSIGNALED(ended):
        import resource  # so that no second core is dumped

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(ended)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return os.waitstatus_to_exitcode(ended) if os.WIFEXITED(ended) else NOT_STARTED


def _end_all() -> None:
    """Kill every descendant; orphans of the tree are our children, so all of them are found from here."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        found = _descendants()
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                continue
        except ChildProcessError:
            return
        time.sleep(0.01)


def _clean(log: str, known: int) -> None:
    """Take the secrets out of a log, as our process would have when the command had ended."""
    import json
    from pathlib import Path

    # Nothing that is installed is found here; what is imported needs the standard library alone.
    sys.path.append(str(Path(__file__).parents[2]))
    from llm_perf_opt.system.redact import Redactor

    with open(known, "rb") as file:
        file.seek(0)
        values = json.load(file)
    try:
        Redactor(values=tuple(values)).log(Path(log))
    except OSError:
        # No process is left to report to, and a log on a full disk keeps what it has.
        return


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The name in parentheses may hold anything.
                    after = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            children.setdefault(int(after[1]), []).append(int(name))
    found: list[int] = []
    to_see = [os.getpid()]
    while to_see:
        below = children.get(to_see.pop(), [])
        found += below
        to_see += below
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
