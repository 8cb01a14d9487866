"""What a model needs and what hardware allows: counts, closed forms, peaks, estimates. No process, no capture.

`static` counts FLOPs, bytes and memory of a model in two independent ways, `families` has closed forms by model family,
`hardware` peaks and bandwidths, measured ceilings and the roofline, `estimate` what a deployment would take.

Called by `diagnosis` (lower bounds), `planning` (predict, plan) and the stage `static_analysis`. Start with `static`.
"""
