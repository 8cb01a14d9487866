"""`llm-perf compare`: `cli` reads the arguments, `sides` runs, captures and loads (`served`), `about` what they are.

`interleave` makes runs in the order A B B A … and resumes them. The comparison itself is `analysis/compare`; what is
shown is `report/compare`.
"""
