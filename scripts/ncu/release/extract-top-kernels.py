#!/usr/bin/env python3
"""Write the kernels that take most of the time, from an nsys kernel summary, as a list for ncu-profile-kernels.

Input is the CSV of `nsys stats --report cuda_gpu_kern_sum` (or gpukernsum). Output is a YAML list of name, anchored
regex and description. Needs nothing beyond the Python standard library. Exit codes: 0 done, 2 bad usage or input.
"""

import argparse
import csv
import io
import re
import sys
from pathlib import Path

TIME_PCT = ("Time (%)", "Time(%)")
TIME_NS = ("Total Time (ns)", "Total Time")
CALLS = ("Instances", "Count", "Calls")


class BadInput(Exception):
    """The summary is not what it should be."""


def main(argv):
    args = parse_args(argv)
    try:
        kernels = top_kernels(read_summary(args.csv), args.sort_by, args.topk)
    except BadInput as error:
        print(f"extract-top-kernels: {args.csv}: {error}", file=sys.stderr)
        return 2
    text = to_yaml(kernels, source=args.csv.name, sort_by=args.sort_by)
    if args.output is None:
        sys.stdout.write(text)
        return 0
    try:
        args.output.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"extract-top-kernels: {args.output}: {error.strerror}", file=sys.stderr)
        return 2
    print(f"{len(kernels)} kernels written to {args.output}", file=sys.stderr)
    return 0


def parse_args(argv):
    parser = argparse.ArgumentParser(prog="extract-top-kernels.py", description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=Path, help="kernel summary of nsys as CSV")
    parser.add_argument("--topk", type=positive, default=30, help="how many kernels (default: 30)")
    parser.add_argument("--sort-by", choices=("time_pct", "time_ns"), default="time_pct")
    parser.add_argument("-o", "--output", type=Path, help="file to write (default: standard output)")
    return parser.parse_args(argv)


def positive(text):
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def read_summary(path):
    """The rows of the summary; lines nsys prints before the table are skipped."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    except OSError as error:
        raise BadInput(f"could not be read ({error.strerror})") from error
    start = next((i for i, line in enumerate(lines) if line.startswith(("Time", '"Time')) and "Name" in line), None)
    if start is None:
        raise BadInput("no kernel summary of nsys in it: no header with Time and Name")
    reader = csv.reader(io.StringIO("".join(lines[start:])))
    header = [cell.strip() for cell in next(reader)]
    return [dict(zip(header, row)) for row in reader if len(row) == len(header)]  # noqa: B905 (Python 3.8)


def top_kernels(rows, sort_by, topk):
    """The first kernels by time. Rows with equal percentages keep the order nsys gave them."""
    if not rows:
        raise BadInput("the kernel summary is empty: no kernel ran")
    columns = {key: find_column(rows[0], names) for key, names in
               (("pct", TIME_PCT), ("ns", TIME_NS), ("calls", CALLS), ("name", ("Name",)))}  # fmt: skip
    sort_column = columns["pct" if sort_by == "time_pct" else "ns"]
    ranked = sorted(rows, key=lambda row: -number(row[sort_column]))
    return [
        {
            "name": row[columns["name"]],
            "regex": "^" + re.escape(row[columns["name"]]) + "$",
            "description": f"Kernel #{rank} - {row[columns['pct']]}% of GPU time, {row[columns['calls']]} calls",
        }
        for rank, row in enumerate(ranked[:topk], start=1)
    ]


def find_column(row, names):
    found = next((name for name in names if name in row), None)
    if found is None:
        raise BadInput(f"the column {names[0]!r} is missing")
    return found


def number(text):
    try:
        return float(text.replace(",", ""))
    except ValueError as error:
        raise BadInput(f"{text!r} is not a number") from error


def to_yaml(kernels, *, source, sort_by):
    """One key a line and single-quoted values, so that the shell version of the profiler can read it as well."""
    lines = [
        f"# Top kernels of {source}, by {sort_by}.",
        "# `regex` is what ncu-profile-kernels gives to `ncu --kernel-name`; it matches exactly this kernel.",
        "# Loosen it by hand to match a family of kernels.",
        "kernels:",
    ]
    for kernel in kernels:
        lines += [f"- name: {quoted(kernel['name'])}"]
        lines += [f"  {key}: {quoted(kernel[key])}" for key in ("regex", "description")]
    return "\n".join(lines) + "\n"


def quoted(text):
    """A YAML single-quoted scalar on one line."""
    return "'" + " ".join(text.split("\n")).replace("'", "''") + "'"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
