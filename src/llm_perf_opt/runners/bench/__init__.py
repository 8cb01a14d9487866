"""`llm-perf bench`: a server under load.

`cli` reads the command line into `BenchConfig`, `run` starts, warms up, loads and stops the server and writes the run
directory, `pictures` draws latency over time and throughput against latency.
"""
