"""Names of the first releases, kept for those who type them: `python -m llm_perf_opt.runners.NAME`.

`profile_orchestrator` is `llm-perf profile` and `direct_inference_runner` is `llm-perf infer`; `llm_profile_runner` and
`deep_profile_runner` are deprecated and say what replaces them. Stages start their children by these names too.
"""
