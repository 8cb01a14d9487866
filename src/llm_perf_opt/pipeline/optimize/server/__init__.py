"""`llm-perf optimize server=…`: `server_arguments` reads the words, `server_run` drives the search and writes its
pages.

`evaluate` is one start of a server: started, warmed up, asked for its answers (`answer_check`), put under load, ended.
`server_journal` keeps every start as a line, so that an interrupted search continues. What is decided is in
`optimize/server`.
"""
