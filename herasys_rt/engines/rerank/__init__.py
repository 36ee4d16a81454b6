"""Rerank engines: a query and chunks to the best chunks, by the verb ``rerank``."""
