"""`llm-perf plan`: which device, how many, which batch and format meet limits of latency, cheapest first.

`cli` reads the limits, searches with the rows of `llm-perf predict`, and prints; `search` picks.
"""
