"""From steps to requests: what serving a model takes in all likelihood.

`efficiency` is how much of a device's ceilings operators reach, `engine_model` adds up the operators of a forward under
a way of running, `parallel` what several devices save and what bringing results together costs. `steps` is the time of
one forward with the band of `bands`; `queueing` is what requests that share an engine make of such times, `requests`
latency, throughput and cost of a load by the estimates, `measured` the same by what a server was measured to take.
`what_if` predicts a grid of other GPUs, formats, batches and lengths, for the page of a run.

Reading order: efficiency, engine, parallel, bands, steps, queueing, requests, measured, what_if.
"""
