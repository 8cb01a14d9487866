"""Experiments tried one after another: the work behind `llm-perf optimize`.

`setup` profiles a model or reads a run, `situation` says what may be tried there, `user_experiments` reads experiments
of the user's; `optimize_run` tries one after another. An experiment is its own process that stays alive
(`children.optimize_worker`), so that its passes and those of the baseline can be interleaved without starting anything
again: `workers` is the client side, `worker_protocol` the messages. A user's program is started for every pass
(`program_experiments`), `metered` reads the GPU meanwhile. Sub-package: `server`, searches over the settings of a
server. Decisions are in `llm_perf_opt.optimize`, what is shown in `report/optimize`.
"""
