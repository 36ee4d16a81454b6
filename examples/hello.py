"""The smallest workflow: one answer from the language model.

herasys run examples/hello.py:hello --input name=Ada
"""

from herasys_rt.dsl import workflow
from operators import generate


@workflow
def hello(name: str):
    """A short greeting."""
    return generate(
        "Write one friendly sentence that greets {name} by name.",
        name=name,
        max_tokens=32,
    )
