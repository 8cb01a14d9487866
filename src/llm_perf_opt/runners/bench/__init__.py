"""`llm-perf bench`: a server under load.

`cli` reads the command line into `BenchConfig`, with the arguments of `vllm bench serve` by `vllm_flags`. `run` starts,
loads and stops the server and writes the run directory; `warm_up` sends the first requests and chooses the traffic,
`look` analyses a capture of the server, `pictures` draws latency over time and throughput against latency.
"""
