"""The load client: sends requests to an OpenAI-compatible server and times their streams.

`stream` reads server-sent events and times tokens. `request` builds one request, sends it and returns its record. `lag`
measures how late the event loop is. `worker` runs one share of a load in its own process; `protocol` is what it is
given and what it sends back. `exchange` makes the short requests around a load (readiness, model list, metrics), each
bounded in time and size.
"""
