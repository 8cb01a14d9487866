"""Which commit, version or setting made a program slower: the work behind `llm-perf bisect`.

`bisect_session` carries the search (`compare.bisect`) out and keeps its `bisect_journal`; a `line` is the points in
order, of `commits`, `versions` or `flags`; `measure` runs one pass at a point; `neighbours` compares the answer with
the point before it. What is shown is `report/compare/bisect`.
"""
