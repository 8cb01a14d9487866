"""Readers of files other tools wrote: bytes or rows in, records out, nothing decided.

`kinds` finds out what a file is, `foreign` names what is not a capture.

nsys:  `nsys_sqlite` (timeline; over `nsys_database` and `sqlite_pages`), `nsys_summary` and
       `nsys_stats` (kernel summaries), `nsys_log` (what it printed)
ncu:   `ncu_report` (.ncu-rep), `ncu_csv` (both pages), `ncu_log` (what it printed)
torch: `torch_trace` (the reader; over `trace_text`, `trace_decode`, `trace_rare` and `trace_workers`),
       `memory_snapshot` (pickles of its allocator)
others: `rocpd` (AMD's rocprofv3), `ascend` (torch_npu)

A damaged file is a ParseError that names the file and what to do, never an empty result.
"""
