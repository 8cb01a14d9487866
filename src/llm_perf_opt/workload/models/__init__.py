"""Adapters: everything known of a kind of model.

`base` is the protocol, `registry` finds adapters by import path; `causal_lm` serves any decoder of transformers. One
with an image side is a plug-in (`plugins/deepseek_ocr`). An adapter can be imported without torch; what needs torch is
in modules of its own (`causal_lm_torch`) that are imported when a model is loaded.
Parts adapters share: `snapshot` reads a folder of weights, `random_weights` makes some, `quantization` reads how they
are stored, `module_groups` names modules, `meta_run` runs on the meta device, `decode_steps` has the ways to decode,
`repeated_step` and `compiled_nodes` what graphs and compilation do, `joined` fused projections.

`docs/models.md` lists the files a new family touches.
"""
