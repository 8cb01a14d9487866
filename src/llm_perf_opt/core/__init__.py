"""Words and contracts that every layer shares.

`names` is the vocabulary: phases, ranges, roles of files. `records` are the result types, written and read as
manifest.json by `manifest`; `documents` are other files of a run that several layers read. `stage` is the protocol a
stage (ours or a plug-in's) keeps, with what it may touch, and `sections` is what it adds to the report. `host` says
what machine this is, `slowdown` what a profiler costs; `percentiles` are of measured values. `units` and `markdown`
write numbers and tables for people; `http` posts one document.

Imports nothing of ours but `errors`, `config` and `system`. Read `stage`, then `records`.
"""
