"""Map-reduce over a long document: the long runs of the HeraSys paper.

herasys run examples/long_document.py:summarise --input document=@report.txt
"""

from herasys_rt import map_over, workflow
from operators import chunk, generate


@workflow
def summarise(document: str, focus: str = "the main point"):
    """One summary of a document of any length, made of summaries of its parts."""
    parts = chunk(document, max_tokens=160, overlap=0)
    notes = map_over(
        parts,
        lambda part: generate(
            "Note in one sentence what this says about {focus}.\n{part}",
            part=part,
            focus=focus,
            max_tokens=24,
            label="note",
        ),
    )
    return generate(
        "Combine the notes into two sentences.\n{notes}\nSummary:",
        notes=notes,
        max_tokens=48,
        label="reduce",
    )
