"""`llm-perf compare`: `cli` reads the words, `sides` the runs or captures, `interleave` makes runs A B B A …

The comparison itself is `analysis/compare`; what is shown is `report/compare`.
"""
