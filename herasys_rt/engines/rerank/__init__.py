"""Rerank engines: a query and chunks to the chunks' scores, by the verb ``rerank``."""
