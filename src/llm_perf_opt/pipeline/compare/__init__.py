"""Two sides read and measured: the work behind `llm-perf compare`.

`sides` reads runs, captures and loads (`served_comparison`), `about` says what they are, `compare_document` is both as
one, `compared` answers what a command asks; `interleave` makes runs in the order A B B A … and resumes them. The
comparison itself is `llm_perf_opt.comparison`; what is shown is `report/compare`.
"""
