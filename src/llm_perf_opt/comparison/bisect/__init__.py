"""Which of many versions made a program slower, although every measurement is noisy. Nothing here touches a file.

`bisect_search` is the state of a search: which point to compare with the good one next, and when the answer is known;
`bisect_document` is what `llm-perf bisect` found, `bisect.json`.
"""
