"""Searching the web, or a local index of it: the verb ``http.search``."""
