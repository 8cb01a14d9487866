"""`llm-perf analyze`: captures made elsewhere, read on any machine.

`cli` takes the command line, `kinds` finds out what each file is, `read` reads and analyses them, `text` prints tables,
`run` writes a run directory. `kernels` is the short way to a kernel summary and imports nothing heavy.
"""
