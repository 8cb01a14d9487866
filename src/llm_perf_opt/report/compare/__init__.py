"""What `llm-perf compare`, `bisect`, `runs` and `sweep report` show, made from records alone.

`text` for terminals and pull requests, `page` as HTML, `gates` as JUnit reports and annotations; `bisect` the answer of
a bisection; `trends` draws many runs over time and over the keys of a sweep. All use the style sheet of the report.
"""
