"""The decisions of `llm-perf optimize`; nothing is run here.

`plan` makes candidates of the experiments that findings name, each with the most it could gain; `search` says which
to try next and combines what helped; `verdict` judges measured passes and outputs; `recommend` says what to do with
it; `document` is what optimize.json holds, `dry_run` what would be tried. Sub-package: `server`, the same for the
settings of a server.
"""
