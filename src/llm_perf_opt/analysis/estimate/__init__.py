"""From steps to requests: what serving a model takes, at best and in all likelihood.

`serving_bound` puts the bounds of single steps together over whole requests. `efficiency` is how much of a device's
ceilings operators reach, `engine` adds up the operators of a forward under a way of running, `parallel` what several
devices save and what bringing results together costs. `forecast` makes requests, throughput and cost of it.

Reading order: efficiency, engine, parallel, forecast, serving_bound.
"""
