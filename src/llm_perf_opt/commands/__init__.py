"""The subcommands of `llm-perf`: each module parses its arguments, calls what does the work, and prints.

`profile`, `run` (with `attach` and `attach_answer`), `bench`, `infer`, `analyze`, `predict`, `plan` (with
`plan_answer`), `compare`, `bisect`, `optimize`, `report` (also `open`), `runs`, `sweep`, `query`, `mcp`, `export` (with
`export_tables`) and `doctor`. `entry` makes their parsers and turns errors into messages and exit codes.
`llm_perf_opt.cli` imports only the chosen module.
"""
