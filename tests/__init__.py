"""The tests: unit, stages, system (whole commands and real tools), golden, and what they share in support."""
