"""Readers of files other tools wrote: bytes or rows in, records out, nothing decided.

nsys:  `nsys_sqlite` (timeline; over `nsys_database` and `nsys_columns`), `nsys_summary` (kernel summaries)
ncu:   `ncu_report` (.ncu-rep), `ncu_csv` (both pages), `ncu_log` (what it printed)
other: `other.rocpd` (AMD's rocprofv3), `other.ascend` (torch_npu), `other.memory_snapshot` (torch's allocator)
torch: `torch_trace` (the reader; over `trace_text`, `trace_decode` and `trace_workers`)

A damaged file is a ParseError that names the file and what to do, never an empty result.
"""
