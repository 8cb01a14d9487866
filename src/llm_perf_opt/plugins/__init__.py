"""Stages and a model that are plug-ins: they use what docs/plugin-api.md offers and nothing else, as others do.

energy  joules by phase and per token: `energy/stage.py` first
memory  where memory goes and what peaks: `memory/stage.py` first
deepseek_ocr  the model of a run without arguments: `deepseek_ocr/adapter.py` first

A stage is found by its entry point and imported when it is enabled, an adapter by the path in `model.adapter`; nothing
of the package imports them.
"""
