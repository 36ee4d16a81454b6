"""`herasys profile`: how long the running engines take, into a file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from herasys_rt.cli.options import ConfigOption, JsonOption, read_config
from herasys_rt.cli.output import Output
from herasys_rt.errors import EnvironmentFaultError

if TYPE_CHECKING:
    from herasys_rt.config import Config
    from herasys_rt.costs.profile import Profile


def profile(
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Where the profile goes: YAML, or JSON for a name that ends so.",
        ),
    ] = Path("profile.yaml"),
    pool: Annotated[
        list[str] | None,
        typer.Option(
            "--pool",
            metavar="NAME",
            help="Measure this pool only; give it once per pool.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer sizes, each measured once.")
    ] = False,
    config: ConfigOption = None,
    json: JsonOption = None,
) -> None:
    """Measure how long the engines take, for the simulator and the scheduler.

    Every operator runs alone at several sizes; language models also at several
    concurrencies, from which the times of their prefill and decode steps are fitted.
    Keep other work away meanwhile. Uses the runtime that `herasys up` left; without one
    starts a private runtime and stops it again.

    [bold]Examples[/bold]

    herasys profile --out profile.yaml

    herasys profile --pool llm --quick --json
    """
    with Output(json, {"out": str(out), "pools": []}) as output:
        loaded = read_config(config)
        from herasys_rt import profiling
        from herasys_rt.cli import runtime
        from herasys_rt.costs.profile import profile_text

        _check_path(out)
        effort = profiling.QUICK if quick else profiling.FULL
        with runtime.connect(loaded, None, output.say) as client:
            found = profiling.profile_client(
                client,
                loaded,
                output.say,
                lambda name: _drop(loaded, client.dsn, name),
                effort=effort,
                only=pool or (),
            )
        _write(out, profile_text(found, out.suffix))
        output.console.print(_table(found))
        output.console.print(f"profile written to {out}", markup=False, highlight=False)
        output.emit({"out": str(out), "pools": _pools(found), "error": None})


def _drop(config: Config, dsn: str, collection: str) -> None:
    """Drop what retrieval was measured on; without a DSN in the runtime's database."""
    from herasys_rt.cli import runtime
    from herasys_rt.engines.postgres.sync import open_store

    place = contextlib.nullcontext(dsn) if dsn else runtime.database(config)
    with place as reached, open_store(reached) as store:
        store.drop(collection)


def _check_path(path: Path) -> None:
    """Before minutes of measuring: what they find must have a place to go."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise _unwritable(path, e.strerror) from e
    place = path if path.exists() else path.parent
    if path.is_dir() or not os.access(place, os.W_OK):
        why = "it is a folder" if path.is_dir() else f"{place} may not be written to"
        raise _unwritable(path, why)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise _unwritable(path, e.strerror) from e


def _unwritable(path: Path, why: str | None) -> EnvironmentFaultError:
    return EnvironmentFaultError(
        f"the profile {path} cannot be written: {why}",
        hint="Give --out a path that can be written.",
        path=str(path),
    )


def _pools(profile: Profile) -> list[dict[str, Any]]:
    return [
        {
            "pool": pool.pool,
            "model": pool.model or None,
            "token_edge": pool.token_edge or None,
            "verbs": [
                {
                    "verb": verb.verb,
                    "points": len(verb.points),
                    "fit_error": verb.fit_error,
                }
                for verb in pool.verbs
            ],
        }
        for pool in profile.pools
    ]


def _table(profile: Profile) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("pool", "verb"):
        table.add_column(title, overflow="fold")
    for title in ("points", "least", "most", "fit error"):
        table.add_column(title, justify="right", no_wrap=True)
    for pool in profile.pools:
        for verb in pool.verbs:
            seconds = [point.seconds for point in verb.points]
            table.add_row(
                pool.pool,
                verb.verb,
                str(len(seconds)),
                f"{min(seconds):.3f} s",
                f"{max(seconds):.3f} s",
                f"{verb.fit_error:.1%}",
            )
    return table
