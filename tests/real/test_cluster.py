"""Runtimes on a Ray cluster that is already there: a faked one with four labelled GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from herasys_rt import load_config, workflow
from herasys_rt.client.client import Client
from herasys_rt.client.link import Link
from herasys_rt.config import Config, PoolConfig, with_modelled_engines
from herasys_rt.errors import ClusterError, RuntimeStateError
from herasys_rt.runtime.places import new_run_dir, remove_run_dir
from herasys_rt.runtime.stack import Stack
from operators import generate

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A one-machine cluster that claims four RTX 4090 and 16 CPUs."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_AUTH_MODE"] = "disabled"
    folder = Path(tempfile.mkdtemp(prefix="hc-", dir="/tmp"))
    # Ray notes its address here whatever its own folder is, and fails without it.
    note = Path("/tmp/ray/ray_current_cluster")
    made = not note.parent.exists()
    note.parent.mkdir(exist_ok=True)
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 16,
            "num_gpus": 4,
            "labels": {"gpu-class": "RTX4090"},
            "object_store_memory": 100 * 1024 * 1024,
            "temp_dir": str(folder),
        },
    )
    yield str(cluster.address)
    ray.shutdown()
    cluster.shutdown()
    os.environ.pop("RAY_AUTH_MODE")
    shutil.rmtree(folder, ignore_errors=True)
    if made:
        shutil.rmtree(note.parent, ignore_errors=True)


@pytest.fixture
def run_dir() -> Iterator[Path]:
    path = new_run_dir()
    yield path
    remove_run_dir(path)


def on(address: str, config: Config) -> Config:
    """The configuration with that cluster's address."""
    ray = config.ray.model_copy(update={"address": address})
    return config.model_copy(update={"ray": ray})


def named_actors() -> list[str]:
    from ray.util import list_named_actors

    return [a["name"] for a in list_named_actors(all_namespaces=True)]  # pyright: ignore


def test_the_papers_testbed_starts_on_four_gpus_and_answers(address: str, run_dir: Path):
    import ray

    from examples.stdlib_rag import rag_rerank

    config = load_config(ROOT / "configs" / "gpu-4x4090.yaml")
    stack = Stack(on(address, with_modelled_engines(config)), run_dir)
    try:
        endpoint = stack.start(lambda _: None)
        link = Link(endpoint, "test")
        link.open()
        with Client(link, "cluster", lambda: None) as client:
            assert client.submit(rag_rerank, question="q?").result(30)
            pools = {p["name"]: p["instances"] for p in client.status()["pools"]}
        counts = {name: len(instances) for name, instances in pools.items()}
        on_gpus = {"llm": 2, "embedding": 3, "rerank": 3}
        assert counts == on_gpus | {"retrieval": 1, "search": 1, "python": 1}
        assert ray.available_resources().get("GPU", 0.0) < 0.1
        assert endpoint.tcp.startswith("tcp://")
        assert "herasys-scheduler" in named_actors()
    finally:
        stack.stop()
    from herasys_rt.runtime.cluster import join_ray

    join_ray(address)
    assert named_actors() == []


def test_a_selector_that_no_node_satisfies_is_refused_at_once(address: str, run_dir: Path):
    pool = PoolConfig(
        name="llm", resource="llm", engine="modelled", gpus=1, gpu_class="H100"
    )
    stack = Stack(on(address, Config(pools=(pool,))), run_dir)
    with pytest.raises(ClusterError, match=r"gpu-class=H100.*RTX4090"):
        stack.start(lambda _: None)
    stack.stop()


def test_more_gpus_than_there_are_is_refused_with_the_numbers(address: str, run_dir: Path):
    pool = PoolConfig(name="llm", resource="llm", engine="modelled", gpus=1, instances=5)
    stack = Stack(on(address, Config(pools=(pool,))), run_dir)
    with pytest.raises(ClusterError, match=r"5 GPUs.*has 4"):
        stack.start(lambda _: None)
    stack.stop()


def test_an_instance_without_a_place_is_given_up_with_the_numbers(
    address: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    import ray

    from herasys_rt.runtime import launch
    from herasys_rt.runtime.cluster import join_ray

    @ray.remote(num_gpus=3, num_cpus=0)
    class Other:
        """Somebody else's work."""

        def there(self) -> bool:
            return True

    monkeypatch.setattr(launch, "Placing", partial(launch.Placing, patience_s=2.0))
    pool = PoolConfig(name="llm", resource="llm", engine="modelled", gpus=1, instances=2)
    join_ray(address)
    other: Any = Other.remote()
    assert ray.get(other.there.remote())
    stack = Stack(on(address, Config(pools=(pool,))), run_dir)
    with pytest.raises(ClusterError, match=r"llm-.*1 GPUs.*0 of 4 GPUs") as caught:
        stack.start(lambda _: None)
    assert caught.value.code == "no_place"
    assert named_actors() == []

    config = on(address, Config(pools=(pool,)))
    scaling = config.ray.model_copy(update={"autoscaling": True})
    stack = Stack(config.model_copy(update={"ray": scaling}), run_dir)
    said: list[str] = []

    def hear(text: str) -> None:
        said.append(text)
        if "waiting for nodes" in text:
            ray.kill(other)

    stack.start(hear)
    assert any("instance llm-" in text for text in said)
    assert "pool llm (modelled, 2 instances) is up after" in said[-1]
    stack.stop()


@workflow
def ramble(subject: str):
    return generate("Tell all about {s}.", s=subject)


def test_a_killed_scheduler_is_told_to_clients_before_its_silence_is(
    address: str, run_dir: Path
):
    import ray

    from herasys_rt.runtime.actors import NAMESPACE, SCHEDULER_NAME

    endless = {"base_s": 600.0}
    pool = PoolConfig(name="llm", resource="llm", engine="modelled", options=endless)
    stack = Stack(on(address, Config(pools=(pool,))), run_dir)
    try:
        link = Link(stack.start(lambda _: None), "test")
        link.open()
        with Client(link, "cluster", lambda: None) as client:
            run = client.submit(ramble, subject="tides")
            until(client, lambda counters: counters["pools"]["llm"]["running"] == 1)
            ray.kill(ray.get_actor(SCHEDULER_NAME, namespace=NAMESPACE))
            with pytest.raises(RuntimeStateError, match="its scheduler has ended") as said:
                run.result(60)
        assert said.value.retryable
        assert not stack.alive()
    finally:
        stack.stop()
    from herasys_rt.runtime.cluster import join_ray

    join_ray(address)
    assert named_actors() == []


def until(client: Client, what: Callable[[dict[str, Any]], bool]) -> None:
    """Until the scheduler's counters satisfy ``what``."""
    while not what(client.status()["counters"]):
        pass


JOB = """
from pathlib import Path
from herasys_rt import connect, load_config
from herasys_rt.config import with_modelled_engines
from examples.hello import hello
import ray
with connect(with_modelled_engines(load_config())) as client:
    print("kind", client.kind)
    print("answer", client.submit(hello, name="Ada").result(30))
    print("clusters", ray.get_runtime_context().gcs_address)
"""


def test_a_job_without_a_runtime_starts_one_there_and_removes_it(
    address: str, tmp_path: Path
):
    from herasys_rt.runtime.cluster import join_ray

    script = tmp_path / "job.py"
    script.write_text(JOB)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=ROOT,
        env={**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert said["kind"] == "job"
    assert said["answer"]
    assert said["clusters"] == address
    join_ray(address)
    assert named_actors() == []


def links_over_tcp() -> Any:
    """An inbox that is only reachable over TCP, as from another host."""
    from herasys_rt.links import Endpoint, Inbox
    from herasys_rt.messages import Ping, ToScheduler

    folder = Path(tempfile.mkdtemp(prefix="hl-", dir="/tmp"))
    inbox: Any = Inbox(folder, "far", ToScheduler, tcp_host="127.0.0.1")
    there = inbox.endpoint
    far = Endpoint("another host", there.ipc, there.tcp, there.key)
    return folder, inbox, far, Ping


def test_links_between_hosts_are_encrypted_and_need_the_servers_key():
    import zmq

    from herasys_rt.links import Endpoint, Outbox

    folder, inbox, far, ping = links_over_tcp()
    outbox = Outbox()
    try:
        assert outbox.send(far, ping("client"))
        assert inbox.receive(10) == [ping("client")]
        wrong_key, _ = zmq.curve_keypair()
        outbox.send(Endpoint("x", far.ipc, far.tcp, wrong_key), ping("intruder"))
        assert inbox.receive(0.5) == []
    finally:
        outbox.close()
        inbox.close()
        remove_run_dir(folder)
