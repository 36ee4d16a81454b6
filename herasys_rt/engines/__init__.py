"""Engines: verb code behind one protocol. Nothing here knows Ray or the kernel."""
