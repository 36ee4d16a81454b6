"""Questions about Python's standard library, answered from its own documentation.

The collection ``stdlib`` is filled by ``make demo``. Then:

herasys run examples/stdlib_rag.py:rag --input question='What does textwrap.dedent do?'
"""

from herasys_rt.dsl import workflow
from operators import embed, generate, hybrid, rerank, retrieve

COLLECTION = "stdlib"

ANSWER = """\
Answer the question about Python's standard library in one or two sentences, using only \
the passages.

{context}

Question: {question}
Answer:"""


@workflow
def rag(question: str):
    """An answer from the four nearest passages."""
    chunks = retrieve(embed(question), collection=COLLECTION, top_k=4)
    return generate(ANSWER, context=chunks, question=question, max_tokens=64)


@workflow
def rag_rerank(question: str):
    """An answer from the four best of the twelve nearest passages."""
    chunks = retrieve(embed(question), collection=COLLECTION, top_k=12)
    best = rerank(question, chunks, top_k=4)
    return generate(ANSWER, context=best, question=question, max_tokens=64)


@workflow
def rag_hybrid(question: str):
    """An answer from four passages found by meaning and by words, ranks fused."""
    chunks = hybrid(embed(question), question, collection=COLLECTION, top_k=4)
    return generate(ANSWER, context=chunks, question=question, max_tokens=64)
