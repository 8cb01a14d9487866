"""One module per built-in stage, each with its configuration and `STAGE`, found by entry point.

static_analysis, host_samples, torch_profiler, direct_inference, nsys, ncu; the order comes from each stage's `after`.
A stage says what it is (its traits), what is in its way (`preflight`) and does its work (`run`).
It cannot claim a status or a time: `pipeline.run` sets them. `docs/adding-a-stage.md` walks through one.
"""
