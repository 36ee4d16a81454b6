"""The vLLM engine: ``llm.generate`` on CPU or GPU. `create` makes one for a pool.

Importing this package imports neither vLLM nor torch; `Engine.start` does.
"""

from herasys_rt.engines.vllm.engine import VllmEngine, create
from herasys_rt.engines.vllm.options import VllmOptions

__all__ = ["VllmEngine", "VllmOptions", "create"]
