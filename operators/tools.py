"""Python functions as steps. Verb ``python.call``, resource ``python``.

See `herasys_rt.dsl.tool`, where they are declared; this is where users find them.
"""

from herasys_rt.dsl import Tool, python_operator, tool

__all__ = ["Tool", "python_operator", "tool"]
