#!/usr/bin/env python3
"""Profile chosen kernels of any program with ncu, one after the other, and export what was measured.

Takes the kernels from a YAML list (see extract-top-kernels.py) or one regex. The default sections are those of the
preset ncu.default. Needs PyYAML alongside the standard library. ncu-profile-kernels.sh does the same without Python.
Exit codes: 0 every kernel profiled, 1 a kernel was never seen or ncu failed, 2 bad usage or YAML.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

DEFAULT_SECTIONS = ["SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "SchedulerStats"]
PROG = "ncu-profile-kernels"
DEFAULTS = """\
The defaults mirror the preset ncu.default of the runners (conf/profiling/ncu): sections
SpeedOfLight, MemoryWorkloadAnalysis, Occupancy and SchedulerStats, and no --metrics. Presets are not read here;
what ncu.high, ncu.h200 and ncu.rtx3090, ncu.rtx3090.compute, ncu.rtx3090.memory add goes to --extra-sections.
"""


class UsageError(Exception):
    """The command line or the YAML is not usable."""


def main(argv):
    try:
        args = parse_args(argv)
        kernels = load_kernels(args)
    except UsageError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 2
    ncu = shutil.which("ncu")
    if ncu is None:
        print(f"{PROG}: ncu was not found; install Nsight Compute and put ncu on PATH", file=sys.stderr)
        return 1
    args.output_dir.mkdir(parents=True, exist_ok=True)
    version = ncu_version()
    write_record(args, kernels, version)
    for kernel in kernels:
        kernel["status"] = profile(args, kernel)
        print(f"{PROG}: kernel {kernel['rank']} of {len(kernels)}: {kernel['status']}: {kernel['name']}")
        write_record(args, kernels, version)
    bad = [kernel for kernel in kernels if kernel["status"] != "profiled"]
    for kernel in bad:
        print(f"{PROG}: {kernel['status']}: {kernel['name']}", file=sys.stderr)
    if any(kernel["status"] == "missing" for kernel in bad):
        print(f"{PROG}: a missing kernel has at most {args.skip} matching launches, or its regex does not fit",
              file=sys.stderr)  # fmt: skip
    return 1 if bad else 0


def parse_args(argv):
    usage = f"{PROG} (--kernel-config YAML | --kernel-regex RE) [options] -- command…"
    layout = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=PROG, usage=usage, allow_abbrev=False, epilog=DEFAULTS, formatter_class=layout)
    parser.add_argument("--kernel-config", type=Path, metavar="YAML")
    parser.add_argument("--kernel-regex", metavar="RE")
    parser.add_argument("--output-dir", type=Path, default=Path("ncu-kernels"))
    parser.add_argument("--topk", metavar="N")
    parser.add_argument("--extra-sections", nargs="+", default=[], metavar="S")
    parser.add_argument("--num-kernel-call-skip", dest="skip", default="200", metavar="N")
    parser.add_argument("--num-kernel-call-profile", dest="count", default="1", metavar="N")
    parser.add_argument("--force-overwrite", action="store_true")
    if "--" not in argv:
        if "-h" in argv or "--help" in argv:
            parser.parse_args(["--help"])
        raise UsageError("no command: put it behind --")
    split = argv.index("--")
    args = parser.parse_args(argv[:split])
    args.command = argv[split + 1 :]
    if not args.command:
        raise UsageError("no command behind --")
    if (args.kernel_config is None) == (args.kernel_regex is None):
        raise UsageError("give one of --kernel-config and --kernel-regex")
    args.skip = whole("--num-kernel-call-skip", args.skip, least=0)
    args.count = whole("--num-kernel-call-profile", args.count, least=1)
    args.topk = None if args.topk is None else whole("--topk", args.topk, least=1)
    args.sections = list(dict.fromkeys(DEFAULT_SECTIONS + args.extra_sections))
    if not args.force_overwrite and list(args.output_dir.glob("kernel_*")):
        raise UsageError(f"{args.output_dir}: holds earlier results; pass --force-overwrite or another --output-dir")
    return args


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UsageError(message)


def whole(flag, text, least):
    if not re.fullmatch(r"[0-9]+", text) or int(text) < least:
        raise UsageError(f"{flag}: a whole number from {least} on is needed (got {text!r})")
    return int(text)


def load_kernels(args):
    """The kernels to profile, each with its rank and folder."""
    if args.kernel_regex is not None:
        pairs = [(args.kernel_regex, args.kernel_regex)]
    else:
        pairs = read_config(args.kernel_config)
    return [
        {
            "rank": rank,
            "name": name,
            "regex": regex,
            "dir": f"kernel_{rank:04d}_{hashlib.md5(os.fsencode(name)).hexdigest()}",
            "status": "pending",
        }
        for rank, (name, regex) in enumerate(pairs[: args.topk], start=1)
    ]


def read_config(path):
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: could not be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not valid YAML ({str(error).splitlines()[0]})") from error
    entries = data.get("kernels") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{path}: no list `kernels` with an entry in it")
    pairs = []
    for entry in entries:
        if not isinstance(entry, dict) or not all(
            isinstance(entry.get(k), str) and entry[k] for k in ("name", "regex")
        ):
            raise UsageError(f"{path}: every kernel needs a name and a regex")
        pairs.append((entry["name"], entry["regex"]))
    return pairs


def profile(args, kernel):
    """Run the program once for this kernel; returns profiled, missing or failed."""
    folder = args.output_dir / kernel["dir"]
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "ncu.ncu-rep"
    report.unlink(missing_ok=True)
    sections = [part for section in args.sections for part in ("--section", section)]
    argv = [
        "ncu",
        "--target-processes", "all",
        "--kernel-name-base", "demangled",
        "--kernel-name", f"regex:{kernel['regex']}",
        "--launch-skip", str(args.skip),
        "--launch-count", str(args.count),
        *sections,
        "--export", str(folder / "ncu"),
        "--force-overwrite",
        *args.command,
    ]  # fmt: skip
    code = run(argv, folder / "ncu.log")
    if not report.exists():
        return "missing" if code == 0 else "failed"
    base = ["ncu", "--import", str(report), "--page", "details", "--csv"]
    codes = [run(base, folder / "ncu.details.csv")]
    codes += [run([*base, "--section", s], folder / f"ncu.section_{s}.csv") for s in args.sections]
    return "failed" if any(codes) else "profiled"


def run(argv, out):
    """Run a command with nothing on its standard input and all it prints in a file."""
    with out.open("wb") as sink:
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, check=False
        ).returncode


def ncu_version():
    done = subprocess.run(["ncu", "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)  # fmt: skip
    found = re.search(rb"Version ([0-9.]+)", done.stdout)
    return found[1].decode() if found else "unknown"


def write_record(args, kernels, version):
    """command.yaml: what was run, and its result."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    lines = [f"time: {quoted(now)}", f"ncu_version: {quoted(version)}"]
    lines += ["sections:", *(f"  - {quoted(s)}" for s in args.sections)]
    lines += [f"launch_skip: {args.skip}", f"launch_count: {args.count}"]
    lines += ["command:", *(f"  - {quoted(a)}" for a in args.command), "kernels:"]
    for kernel in kernels:
        lines += [f"  - rank: {kernel['rank']}"]
        lines += [f"    {key}: {quoted(kernel[key])}" for key in ("name", "regex", "dir", "status")]
    (args.output_dir / "command.yaml").write_text("\n".join(lines) + "\n", encoding="ascii")


def quoted(text):
    """A YAML double-quoted scalar in plain ASCII, for any text an argument can hold."""
    return '"' + "".join(map(escaped, os.fsencode(text).decode("utf-8", "surrogateescape"))) + '"'


def escaped(char):
    code = ord(char)
    if char in '"\\':
        return "\\" + char
    if 0x20 <= code < 0x7F:
        return char
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
