"""Identifiers. Made at the edges (clients, actors); the core only compares them."""

from __future__ import annotations

import os


def new_id(prefix: str) -> str:
    """A fresh identifier such as ``run-5f0c...``: 64 random bits in hex."""
    return f"{prefix}-{os.urandom(8).hex()}"
