"""What is shown, decided once for every renderer: one module per section of the page.

`report` puts them together for its `subject`: a run of a model, a `program`, a capture (`captured`), kernels alone.
`headline` is the first screen, then `findings`, `ledger`, `waterfall`, `modules`, `kernels`, `roofline`, `timeline`,
`flame`, `memory`, `sections` of stages, `provenance`, `what_if` and `cost`. `shown` is the form of one figure.

A view takes facts and gives frozen records with text ready to print; what is not known comes with its reason and what
to enable.
"""
