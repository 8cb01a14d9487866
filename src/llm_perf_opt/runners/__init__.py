"""Processes of their own: the orchestrator of a run, and the children it starts.

`profile_orchestrator` is `llm-perf profile`, `direct_inference_runner` is `llm-perf infer` and also the child that
measures; `job` is one run from typed configuration to reports. Children: `llm_profile_runner`, `static_runner`,
`optimize_worker`; all begin in `child`. `deep_profile_runner` is an old name kept for those who type it.
"""
