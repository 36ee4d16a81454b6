"""Embedding engines: texts and documents to unit vectors, by the verb ``embed``."""
