"""What `llm-perf optimize server=…` decides, without starting anything.

`space` reads what can be set as data (`spaces/<engine>.toml`, or a file of the user's) and puts it into a command line;
`server_evidence` selects what is worth trying from a measured load; `surrogate` predicts what was not measured;
`server_search` asks for one start of a server after the other and compares in interleaved rounds; `levels` climbs to
the load of one start; `comparing` compares two configurations, `configuration_rows` are those of the document;
`server_outputs` says whether answers are those of the start; `server_document` is what optimize_server.json holds,
`recommend_flags` the command and the snippets of a deployment. Read `server_document` and `server_search` first. Called
by `pipeline/optimize/server`.
"""
