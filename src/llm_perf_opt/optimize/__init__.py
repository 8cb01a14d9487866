"""What `llm-perf optimize` decides, without running anything.

`plan` makes candidates of the findings' remedies, each with the most it could bring; `search` says which to try next
and combines what helped; `verdict` judges measured passes and outputs; `recommend` says what to do with it; `document`
is what optimize.json holds.
"""
