"""The decisions of `llm-perf optimize`; nothing is run here.

`experiment_plan` makes candidates of the experiments that findings name, each with the most it could gain; `search`
says which to try next and combines what helped; `experiment_verdict` judges measured passes and outputs; `recommend`
says what to do with it; `optimize_document` is what optimize.json holds, `dry_run` what would be tried. Sub-package:
`server`, the same for the settings of a server.
"""
