"""One kernel: its name, its class, and what ncu measured of it.

`names` shortens and classifies, `match` joins nsys's and ncu's names, `ncu_records` holds counters and their units,
`ncu_figures` derives figures from counters, `ncu` puts figures, roof and explanation into one row per kernel.
"""
