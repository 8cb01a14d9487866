"""SQL over captures and runs: one schema for nsys, torch and rocpd, in a database that reaches nothing else.

view_schema    the views and their columns: the one list behind `--schema`, the views' definitions and docs/sql.md
events    what happened in captures, as columns: kernels, launches, copies, graphs, operators, memory
range_views    the same of named ranges
gaps      the same of the times without a kernel
answers   rows of a diagnosis and of a run: ledger, findings, metrics, samples, requests
table     columns of equal length, and what they become: rows, pandas, Arrow, polars, Parquet
database  DuckDB locked down: which statements are taken, what they may use, and what they return

Pure but for `table`, which writes Parquet files. Called by `api` and, through it, by `commands.query`.
"""
