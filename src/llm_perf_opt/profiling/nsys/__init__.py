"""What the nsys stage does between command line and analysis.

`session` walks through captures, exports, analysis and slowdown; `capture` runs the workload under nsys and says in
words what came of it; `scrub` keeps what nsys wrote apart until no secret is in it; `sessions` lets several nsys of one
machine take turns. Called by `stages.nsys`; the words of the tool come from `vendor.nsys`, its files are read by
`parsers.nsys_*`.
"""
