"""What the nsys stage does between command line and analysis.

`nsys_session` walks through captures, exports, analysis and slowdown; `nsys_capture` runs the workload under nsys and
words the outcome; `isolation` keeps nsys away from other processes' environments, `scrub` holds back what nsys wrote
until no secret is in it, and `overwrite` finds many values in it in one pass; `live_sessions` serialises the nsys
processes of one machine. Called by `stages.nsys`; command lines come from `vendor.nsys`, files are read by
`capture.readers`.
"""
