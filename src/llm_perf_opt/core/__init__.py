"""What every layer shares, and the doors to the outside.

`names` is the vocabulary: phases, ranges, roles of files. `records` are the result types, written and read as
manifest.json by `manifest`; `documents` are other files of a run that several layers read. `stage` is the protocol a
stage (ours or a plug-in's) keeps, with what it may touch. `process` is the only module that starts programs: log,
timeout, allow-listed environment, the end of a whole tree. `redact` takes secrets out of what is written, `secrets`
says what counts as one. `host` says what machine this is.

Imports nothing of ours but `errors` and `config`. Read `stage`, then `records`.
"""
