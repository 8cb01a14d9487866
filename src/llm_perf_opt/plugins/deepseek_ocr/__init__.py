"""DeepSeek-OCR: two image encoders, a projector and a decoder with experts. `model.adapter` names `ADAPTER` here.

Reading order: `adapter` (configuration, geometry, what the rest of the project asks of a model; no torch), `preprocess`
(how a page becomes views and tokens; no torch), `vision` and `network` (the torch modules), `build` (builds and fills
them), `loaded` (one forward for the page and the prompt, then one a token). The adapter imports `build` and `loaded`
only when a model is loaded or built. `towers` is the closed form of the image side, `gallery` what is shown of a page,
`pages` draws synthetic ones.
"""

from llm_perf_opt.plugins.deepseek_ocr.adapter import ADAPTER

__all__ = ["ADAPTER"]
