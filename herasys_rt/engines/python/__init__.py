"""User functions and text chunking: the verbs ``python.call`` and ``text.chunk``."""
