"""Adapters: everything the product knows of a kind of model.

`base` is the protocol, and finds adapters; `causal_lm` serves any decoder of transformers, `deepseek_ocr` one model
with an image side. An adapter can be imported without torch; what needs torch is in modules of its own
(`causal_lm_torch`, `deepseek_ocr.network`, …) that are imported when a model is loaded.
`docs/models.md` lists the files a new family touches.
"""
