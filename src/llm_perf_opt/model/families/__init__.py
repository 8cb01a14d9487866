"""From a text model's `config.json` to its parts.

`known` is what adapters call. `families.toml` has a row for each family on Llama's pattern, read by `family_table`; the
others have a rule each: `dense` (Falcon, OPT), `latent` attention, `routed` experts with lists of their own, and
`hybrid`, which keeps a state instead of keys in some or all layers. `wrapped` finds the text model inside a
configuration that holds more.
"""
