"""What is shown, decided once for every renderer: one module per section of the page.

`report_view` puts them together for its `subject_view`: a run of a model, a `program_view`, a capture (`captured`),
kernels alone. `headline` is the first screen, then `findings`, `ledger_view`, `waterfall_view`, `modules`,
`kernels_view`, `roofline_view`, `timeline_view`, `flame`, `memory_view`, `sections_view` of stages, `provenance_view`,
`what_if_view` and `cost`. `shown` is the form of one figure.

A view takes facts and gives frozen records with text ready to print; what is not known comes with its reason and what
to enable.
"""
