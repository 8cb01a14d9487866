"""What `import llm_perf_opt as perf` gives: findings as data, in Python and in notebooks.

analysis  what a capture, a run or a block of code says: verdict, findings, scopes, tables, SQL
sources   where that comes from: capture files, a run directory; read when first asked for
load      `analyze`, `load_run`, `query`
profile   `with profile() as p:` in the process of the program, `p.analysis`
compare   two analyses, one verdict
predict   what the hardware allows for a model
magic     `%%llm_perf` in notebooks

Called by users, by `commands.query` and by nothing else of ours. No module here is imported before one of its names is
asked for, and torch only by `profile`.
"""
