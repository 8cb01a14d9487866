"""DeepSeek-OCR: two image encoders, a projector and a decoder with experts.

Reading order: `adapter` (configuration, geometry, what the rest of the project asks of a model; no torch), `preprocess`
(how a page becomes views and tokens; no torch), `vision` and `network` (the torch modules), `load` (builds and fills
them), `run` (one forward for the page and the prompt, then one a token). The adapter imports `load` and `run` only when
a model is loaded or built.
"""

from llm_perf_opt.workload.models.deepseek_ocr.adapter import ADAPTER

__all__ = ["ADAPTER"]
