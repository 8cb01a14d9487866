"""Which of many versions made a program slower, although every measurement is noisy. Nothing here touches a file.

- `search`: the state of a search: which point to compare with the good one next, and when the answer is known;
- `document`: what `llm-perf bisect` found, `bisect.json`.
"""
