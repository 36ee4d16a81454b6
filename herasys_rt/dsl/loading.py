"""Workflows and agents out of files: what ``FILE.py:NAME`` means."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from herasys_rt.dsl.agent import Agent
from herasys_rt.dsl.workflow import Workflow
from herasys_rt.errors import HerasysError, WorkflowNotFoundError
from herasys_rt.graph.checks import nearest

AnyWorkflow = Workflow[...] | Agent[...]
"""A workflow or an agent, whatever its parameters are."""


def load_workflow(target: str) -> AnyWorkflow:
    """The workflow or agent that ``FILE.py:NAME`` names; the file is imported.

    The file's folder and the current directory are put on `sys.path` first, as for a
    script, so that its own imports work; the name of the file becomes the module's where
    no other module has it. A file with one workflow may be named without ``:NAME``.

    Errors: `WorkflowNotFoundError` (no such file, not importable, no such name, not a
    workflow); errors of the workflow itself, such as `GraphError`, as they are.
    """
    file, name = _split(target)
    module = _import_file(file)
    found = workflows_in(module)
    if not name:
        return _only(file, found)
    if name in found:
        return found[name]
    if hasattr(module, name):
        kind = type(getattr(module, name)).__name__
        raise WorkflowNotFoundError(
            f"{name!r} in {file} is a {kind}, not a workflow",
            hint=f"Decorate it with @workflow or @agent. {_list(found)}",
            target=target,
        )
    near = nearest(name, found)
    guess = f" ({near})" if near else ""
    raise WorkflowNotFoundError(
        f"{file} has no workflow {name!r}{guess}", hint=_list(found), target=target
    )


def workflows_in(module: ModuleType) -> dict[str, AnyWorkflow]:
    """The workflows and agents that a module names, in the order in which it does."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, Workflow | Agent)
    }


def _split(target: str) -> tuple[Path, str]:
    path, colon, name = target.rpartition(":")
    if not colon:
        path, name = target, ""
    file = Path(path).expanduser()
    if file.suffix != ".py" or (colon and not name.isidentifier()):
        raise WorkflowNotFoundError(
            f"{target!r} is not of the form FILE.py:NAME",
            hint="For example examples/hello.py:hello.",
            target=target,
        )
    if not file.is_file():
        raise WorkflowNotFoundError(
            f"there is no file {file}",
            hint=f"Check the path; the current directory is {Path.cwd()}.",
            target=target,
        )
    return file, name


def _only(file: Path, found: dict[str, AnyWorkflow]) -> AnyWorkflow:
    if len(found) == 1:
        return next(iter(found.values()))
    raise WorkflowNotFoundError(
        f"{file} has {len(found)} workflows; say which",
        hint=f"Write {file}:NAME. {_list(found)}" if found else _list(found),
        file=str(file),
    )


def _list(found: dict[str, AnyWorkflow]) -> str:
    if not found:
        return "The file has no workflow; decorate a function with @workflow or @agent."
    return f"Workflows there: {', '.join(found)}."


def _import_file(file: Path) -> ModuleType:
    """Import a file once; a second load of an unchanged path gives the same module."""
    full = file.resolve()
    for folder in (str(Path.cwd()), str(full.parent)):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    name = _module_name(full)
    known = sys.modules.get(name)
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(name, full)
    assert spec is not None and spec.loader is not None  # the suffix is .py
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, as for any import: dataclasses and pickle look it up.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as e:
        del sys.modules[name]
        if isinstance(e, HerasysError | KeyboardInterrupt):
            raise
        raise _not_importable(file, e) from e
    return module


def _module_name(full: Path) -> str:
    """The file's stem, unless another module of that name exists or could be meant."""
    known = sys.modules.get(full.stem)
    if known is not None:
        same = getattr(known, "__file__", None) == str(full)
        free = same
    else:
        free = full.stem.isidentifier() and full.stem not in sys.stdlib_module_names
    if free:
        return full.stem
    return f"{full.stem}_{hashlib.sha256(str(full).encode()).hexdigest()[:8]}"


def _not_importable(file: Path, error: BaseException) -> WorkflowNotFoundError:
    """What stopped an import, with the line of the file that it happened in."""
    line = None
    if isinstance(error, SyntaxError):
        line = error.lineno if error.filename == str(file.resolve()) else None
        what = f"{type(error).__name__}: {error.msg}"
    else:
        what = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f.lineno for f in frames if f.filename == str(file.resolve())]
    line = line or (inside[-1] if inside else None)
    where = f"{file}, line {line}" if line else str(file)
    return WorkflowNotFoundError(
        f"{where}: importing it fails: {what}",
        hint="Mend the file, or install what it imports into this environment; "
        "--debug shows the whole traceback.",
        code="workflow_not_importable",
        file=str(file),
        line=line,
    )
