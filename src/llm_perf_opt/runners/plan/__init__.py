"""`llm-perf plan`: which device, how many, which batch and format meet limits of latency, cheapest first.

`cli` reads the limits and the demand and goes through devices and formats with the rows of `llm-perf predict`;
`search` finds layouts, requests in flight and replicas, `disaggregate` sizes pools for prompts and for decoding,
`table` prints, with the commands of `launch`. `calibrated` answers by a run of `llm-perf bench` instead.
"""
