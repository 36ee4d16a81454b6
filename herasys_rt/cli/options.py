"""Options that several commands share, and what they become."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from herasys_rt.config import Config

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        envvar="HERASYS_CONFIG",
        help="Configuration; without it the laptop defaults.",
        show_default=False,
    ),
]

JsonOption = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="[FILE.json]",
        help="One JSON object on standard output, or in a file; progress goes to "
        "standard error.",
        show_default=False,
    ),
]

LabelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="KEY=VALUE",
        help="Your own words about the run, kept in its report. Give it once per label.",
        show_default=False,
    ),
]

WorkflowArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py:NAME", help="A workflow in a Python file.", show_default=False
    ),
]


def read_config(path: Path | None) -> Config:
    """The configuration of ``--config`` with the environment's overrides."""
    from herasys_rt.config import load_config

    return load_config(path)
