"""The typed configuration of a run and the ways into it.

`schema` holds the frozen dataclasses every other part reads; nothing else may define a configuration key; `output` has
those of what a run keeps. `load` turns what Hydra composed into them, is the only reader of a DictConfig, and reports
all problems together. `legacy` translates old override keys before composition, with one notice. `arguments` separates
Hydra's flags from overrides; `paths` finds conf/.

Called by `pipeline.compose`, which gives Hydra's errors the same form. Read `schema` first.
"""
