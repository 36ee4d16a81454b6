"""The unprivileged account the embedded server runs under when we are root.

PostgreSQL refuses to run as root. No account has to be made for it: the kernel needs a
number only, so a free one is taken. Only ``initdb`` insists on an entry in the password
database; it runs under any named unprivileged account and its files change hands after.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from herasys_rt.errors import EnvironmentFaultError

FREE_IDS = range(65521, 65534)
"""Numbers that neither distributions nor systemd's dynamic users hand out, below nobody."""

_ASK_FOR_DSN = "Give a server of your own as database.dsn instead of the embedded one."


@dataclass(frozen=True, slots=True)
class Account:
    """A user and group number to run a process under."""

    uid: int
    gid: int


def server_account(cluster: Path) -> Account | None:
    """Who runs the server over ``cluster``; None: we ourselves, who are not root.

    The owner of an existing cluster stays its owner.
    """
    if os.geteuid() != 0:
        return None
    if cluster.exists():
        owner = cluster.stat()
        if owner.st_uid != 0:
            return Account(owner.st_uid, owner.st_gid)
    number = free_id(_is_taken)
    return Account(number, number)


def free_id(taken: Callable[[int], bool]) -> int:
    """The first number of `FREE_IDS` nobody holds. Errors: `EnvironmentFaultError`."""
    for number in FREE_IDS:
        if not taken(number):
            return number
    raise EnvironmentFaultError(
        f"no user number between {FREE_IDS.start} and {FREE_IDS.stop - 1} is free to run "
        "the embedded PostgreSQL, which refuses to run as root",
        hint=_ASK_FOR_DSN,
    )


def _is_taken(number: int) -> bool:
    try:
        pwd.getpwuid(number)
    except KeyError:
        return False
    return True


def named_account() -> Account:
    """An unprivileged account with a name, for ``initdb`` run by root.

    Errors: `EnvironmentFaultError` when the password database knows root alone.
    """
    entries = {entry.pw_name: entry for entry in pwd.getpwall() if entry.pw_uid != 0}
    preferred = [name for name in ("nobody", "postgres", "daemon") if name in entries]
    for name in [*preferred, *sorted(entries)]:
        return Account(entries[name].pw_uid, entries[name].pw_gid)
    raise EnvironmentFaultError(
        "this machine has no unprivileged account to set up PostgreSQL with",
        hint=f"Add a user named 'nobody'. {_ASK_FOR_DSN}",
    )


def may_enter(directory: Path, account: Account) -> bool:
    """Whether ``account`` may pass through ``directory`` by its permission bits."""
    entry = directory.stat()
    if entry.st_uid == account.uid:
        return bool(entry.st_mode & stat.S_IXUSR)
    if entry.st_gid == account.gid:
        return bool(entry.st_mode & stat.S_IXGRP)
    return bool(entry.st_mode & stat.S_IXOTH)


def admit(directory: Path, *accounts: Account) -> None:
    """Let accounts reach ``directory``, a directory of ours, and no one else further.

    Its parents are not ours to open. Errors: `EnvironmentFaultError` naming the first
    parent that stands in the way.
    """
    for account in accounts:
        for parent in reversed(directory.resolve().parents):
            if not may_enter(parent, account):
                raise EnvironmentFaultError(
                    f"the embedded PostgreSQL runs as user {account.uid}, who may not "
                    f"enter {parent} on the way to {directory}",
                    hint="Choose a directory below /var/lib or /tmp (database.data_dir), "
                    f"or open that one with: chmod o+x {parent}",
                )
    if all(may_enter(directory, account) for account in accounts):
        return
    mode = stat.S_IMODE(directory.stat().st_mode)
    if len({account.gid for account in accounts}) == 1:
        os.chown(directory, -1, accounts[0].gid)
        directory.chmod(mode | stat.S_IXGRP)
    else:
        directory.chmod(mode | stat.S_IXGRP | stat.S_IXOTH)


def give(tree: Path, account: Account) -> None:
    """Hand a directory tree to ``account``; links themselves, never what they lead to."""
    os.lchown(tree, account.uid, account.gid)
    for folder, folders, files in os.walk(tree):
        for name in (*folders, *files):
            os.lchown(os.path.join(folder, name), account.uid, account.gid)
