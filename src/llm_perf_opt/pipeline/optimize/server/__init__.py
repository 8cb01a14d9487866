"""`llm-perf optimize server=…`: `cli` reads the words, `run` drives the search and writes its pages.

`evaluate` is one start of a server: started, warmed up, asked for its answers (`answers`), put under load, ended.
`journal` keeps every start as a line, so that an interrupted search continues. What is decided is in
`optimize/server`.
"""
