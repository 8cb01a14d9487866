"""A server under load: the work behind `llm-perf bench`.

`bench_config` composes overrides into `BenchConfig`, with the arguments of `vllm bench serve` by `vllm_flags`.
`bench_run` starts, loads and stops the server and writes the run directory; `warm_up` sends the first requests and
chooses the traffic, `profile_window` captures a window of the load with nsys or the server's own profiler,
`server_capture` analyses it. Charts are drawn by `report/sections/load_pictures`.
"""
