"""`herasys up`, `status`, `down`: the background runtime."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from herasys_rt.cli.options import ConfigOption, JsonOption, read_config
from herasys_rt.cli.output import Output


def up(
    config: ConfigOption = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Join this Ray cluster ('auto' for the one of this machine) instead of "
            "starting a private one.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Start the runtime in the background and wait until it serves.

    Without a configuration: a private Ray, an embedded PostgreSQL with pgvector, one
    small LLM, an embedder and a reranker, all on this machine.

    [bold]Examples[/bold]

    herasys up

    herasys up --config configs/gpu-4x4090.yaml --address auto
    """
    with Output(json, {"state": "down"}) as output:
        loaded = read_config(config)
        from herasys_rt.cli import runtime

        status_ = runtime.start(loaded, address, output.say)
        _show(output, status_)
        output.emit({"error": None, **public(status_)})


def status(json: JsonOption = None) -> None:
    """Say whether the runtime is up, and what its pools are doing.

    [bold]Example[/bold]

    herasys status --json
    """
    with Output(json, {"state": "down"}) as output:
        from herasys_rt.cli import runtime

        status_ = runtime.status()
        _show(output, status_)
        output.emit({"error": None, **public(status_)})


def down(json: JsonOption = None) -> None:
    """Stop the background runtime, and only it; it is no error when none is up.

    What was ingested stays: collections live in the database.
    """
    with Output(json, {"state": "up"}) as output:
        from herasys_rt.cli import runtime

        was_up = runtime.stop(output.say)
        output.console.print("The runtime is down." if was_up else "No runtime was up.")
        output.emit({"state": "down", "was_up": was_up, "error": None})


def public(status_: dict[str, Any]) -> dict[str, Any]:
    """A status without what lets one in: the key and the database's password."""
    from herasys_rt.config import mask_dsn

    hidden = {"endpoint", "token"}
    shown = {key: value for key, value in status_.items() if key not in hidden}
    if shown.get("dsn"):
        shown["dsn"] = mask_dsn(str(shown["dsn"]))
    return shown


_COUNTERS = {
    "runs": ("accepted", "active", "succeeded", "failed", "cancelled", "refused"),
    "nodes": ("submitted", "executed", "fused", "reused", "failed", "cancelled"),
}
"""Which of the scheduler's counters a human is shown."""


def _show(output: Output, status_: dict[str, Any]) -> None:
    console = output.console
    if status_.get("state") == "silent":
        console.print("The runtime is up but [bold red]does not answer[/bold red].")
    elif status_.get("state") != "up":
        console.print("The runtime is [bold]down[/bold]. Start it with `herasys up`.")
        return
    else:
        console.print(f"The runtime is [bold green]up[/bold green]{_facts(status_)}.")
    if status_.get("pools"):
        console.print(_pool_table(status_["pools"]))
    for title, names in _COUNTERS.items():
        counts = (status_.get("counters") or {}).get(title) or {}
        told = ", ".join(f"{counts[name]} {name}" for name in names if name in counts)
        if told:
            console.print(f"{title}: {told}", highlight=False)
    if status_.get("job_address"):
        console.print(_job_line(status_), highlight=False, markup=False, soft_wrap=True)


def _facts(status_: dict[str, Any]) -> str:
    facts = [f"process {status_['pid']}"] if status_.get("pid") else []
    if status_.get("uptime_s") is not None:
        facts.append(f"for {duration(float(status_['uptime_s']))}")
    return f" ({', '.join(facts)})" if facts else ""


def _job_line(status_: dict[str, Any]) -> str:
    """How a Ray job is submitted to this runtime, as a line to copy."""
    token = ""
    if status_.get("token_path"):
        token = f"RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={status_['token_path']} "
    address = status_["job_address"]
    return (
        f"jobs: {token}ray job submit --address {address} --working-dir . -- python FILE.py"
    )


def _pool_table(pools: list[dict[str, Any]]) -> Any:
    from rich import box
    from rich.table import Table

    # An instance is named after its pool, and a pool mostly after its resource: what
    # repeats is left out, so that the table fits 80 columns.
    served = any(pool.get("resource") != pool.get("name") for pool in pools)
    titles = ("instance", *(["resource"] if served else []), "engine", "model", "state")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    table.add_column("running", justify="right", no_wrap=True)
    for pool in pools:
        what = [str(pool.get(k) or "") for k in titles[1:-1]]
        for instance in pool.get("instances") or [{}]:
            slots = instance.get("slots", pool.get("slots", 0))
            load = f"{instance.get('running', 0)}/{slots}"
            name = str(instance.get("id") or pool.get("name"))
            table.add_row(name, *what, str(instance.get("state", "none")), load)
    return table


def duration(seconds: float) -> str:
    """``2 h 5 min``, ``5 min 3 s`` or ``3 s``."""
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
