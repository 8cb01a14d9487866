"""The world outside: programs, files, terminals, and what must not leave.

`process` is the only module that starts programs: log, timeout, allow-listed environment, the end of a whole process
tree; `supervise` is the small program that is between it and every command. `files` reads and writes files other
people prepared, `lock` gives a run directory one writer, `trust` says whether this user started a run. `redact`
removes secrets from everything that is written, `secrets` says what counts as one. `terminal` lays text out for
terminals and logs, `json_output` prints the one document of `--json`, `nvml` samples GPUs, `py_spy` finds the
sampler, `arrays` sets numpy up.

Imports nothing of ours but `errors`, `config` and `core`, which writes its documents through `files`. Read `process`,
then `redact`.
"""
