"""Servers under load: start or find one, send requests, measure what a client sees.

`config` says what can be set. `engine` starts a server, waits until it answers and ends its whole tree. `prompts` makes
the texts to send, `schedule` the moments to send them, `client` sends one request and times its stream, `load` drives
many of them and keeps what came of each. `counters` reads the server's own Prometheus page beside. `records` are
what is kept of them, `results` turns requests into the figures of `bench.json`, `sections` those into tables for the
report. `foreign` reads result files of `vllm bench serve` and aiperf into the same document. `window` records a
loaded server with nsys or its own profiler.
"""
