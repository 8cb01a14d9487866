"""From a text model's `config.json` to its parts: one rule per family.

`known` has the table of all families and the first of their rules; it is what adapters call. `dense` and `routed` read
further decoders that differ from Llama in norms, biases, fusions and experts, `hybrid` those that keep a state instead
of a cache of keys in some or all layers. `older` reads those from before Llama, `variants` those
that add a feature or two to its pattern. `wrapped` finds the text model inside a configuration that holds more.
"""
