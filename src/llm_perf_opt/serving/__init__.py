"""Servers under load: start or find one, send requests, measure what a client sees.

`serving_config` says what can be set. `engine` starts a server, waits until it answers and ends its whole tree.
`traffic` makes or reads what is sent, `schedule` the moments to send it, `client` sends requests and times their
streams in processes of their own, `load_run` drives these and keeps their records. `counters` reads the server's own
Prometheus page meanwhile, `telemetry` the GPUs of this machine. `load_records` are what is kept of requests,
`load_results` turns them into the figures of `bench.json`. `saturation` names the level to run at, `capacity` searches
the highest load within an SLO. `block` is a level as text, `vllm_file` as a file of `vllm bench serve`; `requests`
explains the slowest requests, `startup` the time until a server is ready; `foreign_results` reads result files of `vllm
bench serve` and aiperf into the same document.
"""
