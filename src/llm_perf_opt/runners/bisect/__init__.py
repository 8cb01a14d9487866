"""`llm-perf bisect`: which commit, version or setting made a program slower.

`cli` reads the arguments and resumes; `session` carries the search (`analysis/bisect`) out and keeps its `journal`; a
`line` is the points in order, of `commits`, `versions` or `flags`; `measure` runs one pass at a point; `neighbours`
compares the answer with the point before it. What is shown is `report/compare/bisect`.
"""
