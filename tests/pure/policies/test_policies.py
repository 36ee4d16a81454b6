import pytest

from herasys_rt.core.events import PoolDeclared
from herasys_rt.core.instances import Instance, Pool
from herasys_rt.core.plan import plan_of
from herasys_rt.core.policy import PolicyNames
from herasys_rt.core.state import Flight, Fragment, Node, Run
from herasys_rt.core.values import Value
from herasys_rt.errors import ConfigError
from herasys_rt.graph.spec import NodeOptions, WorkflowSpec
from herasys_rt.policies import DEFAULTS, ORDERINGS, build, register
from herasys_rt.policies.batching import SizeLimited
from herasys_rt.policies.ordering import Fcfs, WorkflowFcfs
from herasys_rt.policies.placement import LeastLoaded


def test_default_policies_are_built_by_name() -> None:
    built = build()
    assert (built.ordering.name, built.placement.name, built.batching.name) == DEFAULTS


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match="unknown ordering 'lifo'; known: atlas, depth, fcfs"
    ):
        build(PolicyNames("lifo", "least_loaded", "size_limited"))
    with pytest.raises(ConfigError, match="known: batching, ordering, placement"):
        register("orderings", "x", Fcfs)


def test_a_name_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ORDERINGS, "spare", Fcfs)
    with pytest.raises(ConfigError, match="registered already"):
        register("ordering", "spare", Fcfs)
    monkeypatch.delitem(ORDERINGS, "spare")
    register("ordering", "spare", Fcfs)
    assert build(PolicyNames("spare", *DEFAULTS[1:])).ordering.name == "fcfs"
    del ORDERINGS["spare"]


def test_workflow_fcfs_orders_by_the_arrival_of_the_run() -> None:
    plan, inputs = plan_of(WorkflowSpec("w", (), (), {})), Value(b"", 0, b"")
    run = Run("r", "c", "t", inputs, 0, 2.5, 0)
    node = Node(run, Fragment(run, 0, plan, inputs, False, {}), 0, ())
    assert WorkflowFcfs().key(node, run) == 2.5


def test_least_loaded_scores_the_share_of_slots_in_use() -> None:
    pool = Pool(PoolDeclared("p", "llm"))
    flight = Flight(1, None, pool, "v", False, None, NodeOptions())
    score = LeastLoaded().score
    assert score(Instance("i", pool, 4, 1), flight) == 0.25
    assert score(Instance("i", pool, 2, 1), flight) == 0.5


@pytest.mark.parametrize(
    ("queued", "idle", "limit", "size"),
    [(1, 1, 8, 1), (9, 1, 8, 8), (9, 2, 8, 5), (2, 4, 8, 1), (100, 3, 8, 8)],
)
def test_size_limited_shares_the_queue_between_idle_slots(
    queued: int, idle: int, limit: int, size: int
) -> None:
    assert SizeLimited().size(queued, idle, limit) == size
