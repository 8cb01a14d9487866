"""Sections of a report: tables and charts that a stage or a command adds, built here and stored in the manifest.

`idle_sections` GPU idle time, `rank_sections` communication and late ranks, `capture_detail` and `capture_pictures` a
detailed reading of one capture, `served_load` and `load_pictures` a server under load, `slow_requests` and
`startup_sections` what its slowest requests and its start were spent on. Called by `profiling` and `pipeline`, which
say when; `report/view/sections` decides where they are shown.
"""
