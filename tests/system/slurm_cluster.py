"""A Slurm of one node on loopback: everything in one folder, nothing of the system touched.

python tests/system/slurm_cluster.py start FOLDER    prints the SLURM_CONF to use
python tests/system/slurm_cluster.py stop FOLDER

Works as root without a service manager, with Debian's slurm-wlm and munge. It has no accounting, as many do not.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
CONF = """\
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock
CredType=cred/munge
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """The variables that make Slurm's commands speak to it, while it runs."""
    conf = start(folder)
    try:
        yield {"SLURM_CONF": str(conf)}
    finally:
        stop(folder)


def start(folder: Path) -> Path:
    folder = folder.resolve()
    for name in ("run", "state", "spool"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name).chmod(0o755)
    folder.chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    run = folder / "run"
    _call(
        "munged",
        "--force",
        f"--key-file={key}",
        f"--socket={run / 'munge.sock'}",
        f"--pid-file={run / 'munged.pid'}",
        f"--log-file={folder / 'munged.log'}",
        f"--seed-file={folder / 'munged.seed'}",
    )
    conf = folder / "slurm.conf"
    ctld_port, slurmd_port = _free_port(), _free_port()
    host = socket.gethostname().partition(".")[0]
    cpus = os.cpu_count() or 1
    conf.write_text(
        CONF.format(folder=folder, host=host, ctld_port=ctld_port, slurmd_port=slurmd_port, cpus=cpus),
        encoding="utf-8",
    )
    env = {"SLURM_CONF": str(conf)}
    _call("slurmctld", env=env)
    _call("slurmd", env=env)
    deadline = time.monotonic() + 30
    while "idle" not in _call("sinfo", "--noheader", "--format=%T", check=False, env=env):
        if time.monotonic() > deadline:
            stop(folder)
            raise TimeoutError(f"the node did not become idle; {folder}/slurmctld.log says why")
        time.sleep(0.5)
    return conf


def stop(folder: Path) -> None:
    """End the three daemons; a folder where none runs is left as it is."""
    for name in ("slurmd", "slurmctld", "munged"):
        path = folder.resolve() / "run" / f"{name}.pid"
        try:
            os.kill(int(path.read_text()), signal.SIGTERM)
        except (FileNotFoundError, ProcessLookupError, ValueError):
            continue


def _call(*argv: str, check: bool = True, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(argv, env=os.environ | (env or {}), capture_output=True, text=True, timeout=60, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"{argv[0]} failed: {done.stderr.strip()}")
    return done.stdout


def _free_port() -> int:
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


if __name__ == "__main__":
    if sys.argv[1] == "start":
        print(start(Path(sys.argv[2])))
    else:
        stop(Path(sys.argv[2]))
