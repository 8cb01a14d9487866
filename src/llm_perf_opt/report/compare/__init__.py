"""What `llm-perf compare`, `runs` and `sweep report` show: `text` for terminals and pull requests, `page` as HTML.

`gates` writes JUnit reports and annotations; `page` draws one comparison; `trends` draws many runs: over time, and over
the keys of a sweep. All are made from records alone, in the style sheet of the report.
"""
