"""A server under load: the work behind `llm-perf bench`.

`config` composes overrides into `BenchConfig`, with the arguments of `vllm bench serve` by `vllm_flags`. `run` starts,
loads and stops the server and writes the run directory; `warm_up` sends the first requests and chooses the traffic,
`server_capture` analyses a capture of the server, `pictures` draws latency over time and throughput against latency.
"""
