"""The subcommands of `llm-perf`: each module parses its arguments, calls what does the work, and prints.

`run` (with `attach`), `bench`, `analyze`, `predict`, `plan`, `compare`, `bisect`, `optimize`, `report` (also `open`),
`runs`, `sweep`, `export` and `doctor`; `profile` and `infer` are `runners.profile_orchestrator` and
`runners.direct_inference_runner`. `entry` turns errors into messages and exit codes. `llm_perf_opt.cli` imports only
the chosen module.
"""
