"""Entry points of processes: one module or package per command, and the children a run starts.

Commands: `profile_orchestrator` (profile), `direct_inference_runner` (infer), `run_program` and `program` (run),
`bench`, `analyze`, `predict`, `plan`, `report`, `compare`, `bisect`, `optimize`, `runs`, `sweep`, `export`, `doctor`;
`cli` imports only the chosen one, `arguments` has what their command lines share.
`job` is one run from typed configuration to reports.
Children: `llm_profile_runner`, `direct_inference_runner`, `static_runner`; all begin in `child`.
`deep_profile_runner` is an old name kept for those who type it.
"""
