"""terse: long-context language-model inference with a compressed KV cache.

    import terse
    model = terse.Model("model.gguf")          # None: the built-in model
    session = model.session(kv="terse-3")
    print(session.generate("It was a dark and stormy", max_tokens=32))

docs/python.md is the guide. terse.plot needs matplotlib, terse.lm_eval the package lm_eval; neither is imported here.
"""
from ._library import cpu_name, version
from .cache import Cache, CacheReport, Codebook, Method, methods
from .errors import ArgumentError, CancelledError, ContextError, Error, FileError, FormatError, OutOfMemoryError, UnsupportedError
from .measures import Divergence, Perplexity, Speed, kl_divergence, perplexity, speed
from .model import Message, Model, ModelInfo, Tool, chat_formats
from .session import Counters, Sampling, Session
from .tools import Reply, ToolCall

__version__ = version()
__all__ = [
    "ArgumentError", "Cache", "CacheReport", "CancelledError", "Codebook", "ContextError", "Counters", "Divergence", "Error", "FileError", "FormatError", "Message",
    "Method", "Model", "ModelInfo", "OutOfMemoryError", "Perplexity", "Reply", "Sampling", "Session", "Speed", "Tool", "ToolCall", "UnsupportedError",
    "chat_formats", "cpu_name", "kl_divergence", "methods", "perplexity", "speed", "version",
]
