"""What `llm-perf optimize server=…` decides, without starting anything.

`space` reads what can be set as data (`spaces/<engine>.toml`, or a file of the user's) and puts it into a command
line; `evidence` selects what is worth trying from a measured load; `surrogate` predicts what was not measured;
`search` asks for one start of a server after the other and compares in interleaved rounds; `levels` climbs to the
load of one start; `comparing` compares two configurations, `rows` are those of the document; `outputs` says whether
answers are those of the start; `document` is what optimize_server.json holds, `recommend` the command and the
snippets of a deployment. Read `document` and `search` first. Called by `pipeline/optimize/server`.
"""
