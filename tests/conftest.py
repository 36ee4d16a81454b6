"""What holds for every test: a home of its own, and nothing left over.

The suite never touches a runtime, a database or a state file of whoever runs it: all of
them are sent to a folder of this session. Pure tests may leave no process and no thread,
a module of real tests no process and no run directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest

from benchmarks import _common
from tests.leftovers import GRACE_S, no_new_threads

_PURE = Path(__file__).parent / "pure"
_REAL = Path(__file__).parent / "real"

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile(
    "suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("suite")

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def pytest_configure(config: pytest.Config) -> None:
    """Give the session its home before anything is imported that asks for one.

    Signals that whoever started the session had it ignore (``nohup``, a shell's ``&``)
    work again: tests send them to their children and to themselves.
    """
    for number, handler in _SIGNALS.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    # Short: Unix sockets are made below it. Open to walk through: as root, the
    # database server runs as another user.
    home = Path(tempfile.mkdtemp(prefix="ht-", dir="/tmp"))
    home.chmod(0o755)
    for variable, name in _HOMES.items():
        folder = home / name
        folder.mkdir(mode=0o755)
        os.environ[variable] = str(folder)
    for variable in ("HERASYS_CONFIG", "HERASYS_DEBUG", "RAY_ADDRESS"):
        os.environ.pop(variable, None)
    config.stash[_HOME] = home


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the session's home."""
    home = config.stash.get(_HOME, None)
    if home is not None:
        shutil.rmtree(home, ignore_errors=True)


_SIGNALS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
}
_HOME = pytest.StashKey[Path]()
_HOMES = {
    "HERASYS_RUN_DIR": "run",
    "HERASYS_STATE_DIR": "state",
    "HERASYS_DATABASE__DATA_DIR": "data",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test's folder says what holds for it."""
    for item in items:
        if item.path.is_relative_to(_PURE):
            item.add_marker(pytest.mark.filterwarnings("error"), append=False)
            item.add_marker(pytest.mark.timeout(180))
        elif item.path.is_relative_to(_REAL):
            item.add_marker(pytest.mark.real)


@pytest.fixture
def bench_data() -> Callable[..., Path]:
    """``bench_data("retrieval", "cranfield")``: that data set, or the test is skipped."""

    def find(*parts: str) -> Path:
        found = _common.find_data(*parts)
        if found is None:
            pytest.skip(_common.no_data(*parts))
        return found

    return find


@pytest.fixture(autouse=True)
def _pure_test_leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    if not request.node.path.is_relative_to(_PURE):
        yield
        return
    threads = set(threading.enumerate())
    children = _descendants()
    yield
    no_new_threads(threads)
    _no_new_processes(children, _descendants)


@pytest.fixture(autouse=True, scope="module")
def _real_module_leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    if not request.node.path.is_relative_to(_REAL):
        yield
        return
    before = _ours()
    run_dirs = _run_dirs()
    yield
    _no_new_processes(before | _shared, _ours)
    left = sorted(_run_dirs() - run_dirs - _shared_dirs)
    if left:
        pytest.fail(f"run directories left over: {', '.join(left)}", pytrace=False)


_shared: set[psutil.Process] = set()
_shared_dirs: set[str] = set()


@pytest.fixture(scope="session")
def shared_parts() -> Iterator[Callable[[], None]]:
    """For session fixtures: call it once the part is up, and it may outlive its module.

    What it excuses must be gone when the session ends: a fixture that asks for this one
    is torn down before it.
    """
    before, run_dirs = _ours(), _run_dirs()

    def keep() -> None:
        _shared.update(_ours())
        _shared_dirs.update(_run_dirs())

    yield keep
    _no_new_processes(before, _ours)
    left = sorted(_run_dirs() - run_dirs)
    assert not left, f"run directories left over: {', '.join(left)}"


def _descendants() -> set[psutil.Process]:
    try:  # psutil looks at every process of the machine; nearly always there is no child.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    return set(psutil.Process().children(recursive=True))


def _ours() -> set[psutil.Process]:
    """Descendants, and what detached itself: it carries the session's home with it."""
    home = os.environ["HERASYS_RUN_DIR"]
    found = _descendants()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            carried = [*process.cmdline(), process.environ().get("HERASYS_RUN_DIR", "")]
            if process.pid != os.getpid() and any(home in word for word in carried):
                found.add(process)
    return found


def _run_dirs() -> set[str]:
    return {entry.name for entry in Path(os.environ["HERASYS_RUN_DIR"]).iterdir()}


def _no_new_processes(
    before: set[psutil.Process], look: Callable[[], set[psutil.Process]]
) -> None:
    """Fail on processes that were not there, once they had time to end."""
    new = [process for process in look() - before if _counts(process)]
    _, alive = psutil.wait_procs(new, timeout=GRACE_S)
    told = []
    for process in alive:
        with contextlib.suppress(psutil.Error):
            if _counts(process):
                told.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
    if told:
        lines = "\n  ".join(told)
        pytest.fail(f"processes left over:\n  {lines}", pytrace=False)


def _counts(process: psutil.Process) -> bool:
    """Not what has ended, nor `multiprocessing`'s own helper, which lives as we do."""
    with contextlib.suppress(psutil.Error):
        tracker = "multiprocessing.resource_tracker" in " ".join(process.cmdline())
        return process.status() != psutil.STATUS_ZOMBIE and not tracker
    return False
