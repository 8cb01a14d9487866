"""What to do with the result: the command to start, a compose file, a manifest for Kubernetes, and one sentence."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from llm_perf_opt.core.units import digits, format_factor
from llm_perf_opt.optimize.server.server_document import SERVER_UNITS, VerifiedGain

PORT = 8000
HOST = "0.0.0.0"
# The name of the service and of everything in its manifest.
SERVICE = "llm-server"
SHARED_MEMORY = "16Gi"
NO_IMAGE = "IMAGE"


def launch_command(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """As it is typed in a shell."""
    words = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    return " ".join([*words, *(shlex.quote(word) for word in command)])


def compose_file(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    image: str | None,
    gpus: int,
    mounts: Sequence[str] = (),
) -> str:
    """A service of docker compose; its container runs the same command and sees the same files."""
    service: dict[str, Any] = {
        "image": image or NO_IMAGE,
        "entrypoint": [],
        "command": list(command),
        "ports": [f"{PORT}:{PORT}"],
        "ipc": "host",
    }
    if mounts:
        service["volumes"] = [f"{path}:{path}:ro" for path in mounts]
    if environment:
        service["environment"] = dict(environment)
    if gpus:
        device = {"driver": "nvidia", "count": gpus, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return _yaml({"services": {SERVICE: service}})


def kubernetes_manifest(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    image: str | None,
    gpus: int,
    ready_path: str,
    mounts: Sequence[str] = (),
) -> str:
    """A deployment with its service; its container is ready when the path answers.

    Files of the command are those of the node, to be replaced where a cluster keeps models elsewhere.
    """
    labels = {"app": SERVICE}
    container: dict[str, Any] = {
        "name": SERVICE,
        "image": image or NO_IMAGE,
        "command": list(command[:1]),
        "args": list(command[1:]),
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": ready_path, "port": PORT}, "periodSeconds": 5},
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            *({"name": f"files-{n}", "mountPath": path, "readOnly": True} for n, path in enumerate(mounts)),
        ],
    }
    if environment:
        container["env"] = [{"name": name, "value": value} for name, value in environment.items()]
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    spec = {
        "containers": [container],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}},
            *({"name": f"files-{n}", "hostPath": {"path": path}} for n, path in enumerate(mounts)),
        ],
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": SERVICE},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": dict(labels)},
            "template": {"metadata": {"labels": dict(labels)}, "spec": spec},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE},
        "spec": {"selector": labels, "ports": [{"port": PORT, "targetPort": PORT}]},
    }
    return f"{_yaml(deployment)}---\n{_yaml(service)}"


def _yaml(tree: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True, width=120))


def result_in_words(
    *,
    objective: str,
    name: str | None,
    before: float | None,
    after: float | None,
    gain: VerifiedGain | None,
    starts: int,
    why_ended: str,
    check: str | None,
) -> str:
    """One sentence for the top of every page."""
    if name is None or gain is None or before is None or after is None:
        why = f" ({why_ended})" if why_ended else ""
        count = "1 start" if starts == 1 else f"{starts} starts"
        return f"Nothing is recommended: no gain in {objective} was verified in {count}{why}."
    interval = "" if gain.low is None or gain.high is None else f" (95 %: {gain.low:.2f} to {gain.high:.2f}×)"
    answers = "" if check is None else f"; answers {check}"
    return (
        f"{objective} {digits(before, 4)} → {digits(after, 4)} {SERVER_UNITS[objective]}, {format_factor(gain.gain)}"
        f"{interval} with {name}, verified in {gain.rounds} interleaved rounds{answers}."
    )
