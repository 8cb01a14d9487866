"""From steps to requests: what serving a model takes in all likelihood.

`efficiency` is how much of a device's ceilings operators reach, `engine` adds up the operators of a forward under a way
of running, `parallel` what several devices save and what bringing results together costs. `steps` is the time of one
forward with the band of `bands`; `requests` makes latency, throughput and cost of a load of it.

Reading order: efficiency, engine, parallel, bands, steps, requests.
"""
