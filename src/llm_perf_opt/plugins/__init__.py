"""Stages of ours that are plug-ins: they use what docs/plugin-api.md offers and nothing else, as an outside one would.

energy  joules by phase and per token: `energy/stage.py` first
memory  where memory goes and what peaks: `memory/stage.py` first

Each is found by its entry point and imported when it is enabled; nothing of the package imports them.
"""
