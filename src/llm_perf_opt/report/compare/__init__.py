"""What `llm-perf compare`, `bisect_page`, `runs` and `sweep report` show, made from records alone.

`compare_text` for terminals and pull requests, `compare_page` as HTML, `gates` as JUnit reports and annotations;
`bisect_page` the answer of a bisection; `trends` draws many runs over time and over the keys of a sweep. All use the
style sheet of the report.
"""
