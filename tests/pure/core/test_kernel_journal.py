"""A journal told again gives the same commands, on any hash seed, however it was cut."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from herasys_rt.core import events as ev
from herasys_rt.core.commands import Command, StartBatch
from herasys_rt.core.journal import (
    JournalError,
    JournalWriter,
    read_header,
    read_journal,
    replay,
)
from herasys_rt.core.kernel import KernelConfig, handle, new_state
from herasys_rt.core.policy import PolicyNames
from herasys_rt.core.values import Fact
from herasys_rt.graph import codec
from herasys_rt.graph.spec import NodeOptions, Retry
from herasys_rt.policies import DEFAULTS, build
from tests.pure.core.kernel_lab import (
    AGENT,
    BROKEN,
    BUSY,
    POOLS,
    placed,
    seeds_of,
    signatures_of,
    spec_of,
)

CONFIG = KernelConfig(max_active_runs=20, reuse_ttl_s={"embed": 9.0, "rerank": 3.0})
RETRY = NodeOptions(timeout_s=6.0, retry=Retry(4, 2.0, 2.0, 9.0))
ITEMS = tuple(hashlib.sha256(word).digest() for word in (b"x", b"y", b"x"))
FACTS = {"f": Fact(False), "xs": Fact(True, 3, ITEMS)}
SPECS = (
    spec_of("q embed", "s search q", "r rerank s", "a llm r q"),
    spec_of("x embed", "y search", "d dice x y", "w write x", outputs="d"),
    spec_of("l llm", "e embed % in=r", "a llm e", regions={"r": "l"}, options={"a": RETRY}),
    spec_of(
        "c llm",
        "t embed if=c",
        "e search unless=c unless=$f",
        "m rerank % in=r",
        "j llm c?t:e m",
        regions={"r": "$xs"},
        options={"c": RETRY, "m": RETRY},
    ),
)


def play(path: Path, steps: int = 600, seed: int = 7) -> list[list[Command]]:
    """Drive a kernel at random, recording a journal; gives what it answered."""
    dice = random.Random(seed)
    state = new_state(CONFIG, *build())
    answers: list[list[Command]] = []
    open_items: list[tuple[str, int, int]] = []
    with JournalWriter(path, CONFIG, DEFAULTS) as journal:
        first: list[ev.Event] = [*POOLS.values()]
        first += [ev.InstanceUp(f"{p}-{i}", p, 2) for p in POOLS for i in range(2)]
        first += [ev.SpecRegistered(spec) for spec in (*SPECS, AGENT)]
        first.append(ev.RunSubmitted("g", AGENT.id, "c9", "t", placed("task"), agent=True))
        for step in range(steps):
            now = step / 8
            event = first.pop(0) if first else choose(dice, open_items, step)
            journal.append(now, event)
            out = handle(state, event, now)
            answers.append(out)
            for batch in out:
                if isinstance(batch, StartBatch):
                    open_items += [
                        (batch.instance, i.flight, i.attempt) for i in batch.items
                    ]
    return answers


def choose(
    dice: random.Random, open_items: list[tuple[str, int, int]], step: int
) -> ev.Event:
    luck = dice.random()
    if luck < 0.3 or not open_items:
        spec, run_id = dice.choice(SPECS), f"r{step}"
        salt = str(dice.randrange(3))
        signatures, seeds = signatures_of(spec, salt, run_id), seeds_of(spec, salt, "t")
        inputs = placed(f"in-{step}")
        if step % 4 == 0:
            number = step if step % 8 else step // 2
            return ev.NodesRevealed(
                "g", number, spec.id, inputs, signatures, facts=FACTS,
                parents=((0, "q"),), seeds=seeds,
            )  # fmt: skip
        deadline_s = 9.0 if step % 5 == 0 else None
        return ev.RunSubmitted(
            run_id, spec.id, f"c{step % 3}", "t", inputs, signatures, (), False, 0,
            deadline_s, FACTS, seeds=seeds,
        )  # fmt: skip
    if luck < 0.34:
        return ev.RunCancelled(f"r{dice.randrange(step)}")
    if luck < 0.36:
        return ev.CollectionChanged("docs", step)
    if luck < 0.37:
        return ev.InstanceDown("llm-1", "killed")
    if luck < 0.43:
        return ev.TimePassed()
    if luck < 0.45:
        return ev.FragmentCancelled("g", dice.randrange(step + 9))
    instance, flight, attempt = open_items.pop(dice.randrange(len(open_items)))
    if luck < 0.5:
        return ev.ItemFailed(flight, attempt, instance, dice.choice((BUSY, BROKEN)))
    digest = hashlib.sha256(str(dice.randrange(4)).encode()).digest()
    value = replace(placed(f"v{step}"), digest=digest, truth=luck < 0.8, length=step % 4)
    return ev.ItemFinished(flight, attempt, instance, value, 0.5, b"m", {"docs": step})


def test_a_recorded_journal_replays_to_identical_commands(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    answers = play(path)
    assert sum(map(len, answers)) > 500
    told = {type(command).__name__ for out in answers for command in out}
    assert {"FinishRun", "FinishFragment", "WakeAt", "AbortItem"} <= told
    assert replay(path, build) == answers
    header = read_header(path)
    assert (header.config, header.policies) == (CONFIG, DEFAULTS)


def test_a_journal_from_before_value_seeds_replays_without_them(tmp_path: Path) -> None:
    play(tmp_path / "new")
    old, state = tmp_path / "old", new_state(CONFIG, *build())
    answers: list[list[Command]] = []
    with JournalWriter(old, CONFIG, DEFAULTS) as journal:
        for now, event in read_journal(tmp_path / "new"):
            written = codec.decode(codec.encode(event))
            if isinstance(event, ev.RunSubmitted | ev.NodesRevealed):
                event = replace(event, seeds=(), own_collections=())
                del written["seeds"], written["own_collections"]
            journal.append(now, written)
            answers.append(handle(state, event, now))
    assert replay(old, build) == answers
    assert answers != replay(tmp_path / "new", build), "values were shared"


def test_a_journal_cut_anywhere_reads_up_to_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    play(path, steps=60)
    whole, records = path.read_bytes(), list(read_journal(path))
    seen = 0
    for cut in range(len(whole) // 2, len(whole), 13):
        path.write_bytes(whole[:cut])
        part = list(read_journal(path))
        assert part == records[: len(part)] and len(part) >= seen
        seen = len(part)
    assert seen >= len(records) - 1


def test_what_is_flushed_is_readable_while_recording_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    writer = JournalWriter(path, CONFIG, DEFAULTS)
    writer.append(1.0, ev.RunCancelled("r1"))
    assert list(read_journal(path)) == []
    writer.flush()
    assert list(read_journal(path)) == [(1.0, ev.RunCancelled("r1"))]
    writer.close()
    writer.close()


def test_a_full_journal_stops_before_its_bound_and_still_replays(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with JournalWriter(path, CONFIG, DEFAULTS, max_bytes=400) as writer:
        for at in range(50):
            writer.append(float(at), ev.RunCancelled(f"r{at}"))
        assert writer.full
    assert path.stat().st_size <= 400
    told = len(list(read_journal(path)))
    assert 0 < told < 50 and replay(path, build) == [[]] * told


@pytest.mark.parametrize("content", [b"", b"\x05\x00", b"\x04\x00\x00\x00oops"])
def test_what_is_no_journal_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal"
    path.write_bytes(content)
    with pytest.raises(JournalError) as caught:
        read_header(path)
    assert caught.value.hint


def test_a_record_that_is_no_event_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    JournalWriter(path, CONFIG, DEFAULTS).close()
    path.write_bytes(path.read_bytes() + b"\x04\x00\x00\x00oops")
    with pytest.raises(JournalError, match="no event") as caught:
        list(read_journal(path))
    assert caught.value.hint


def test_another_format_is_refused_by_number(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    JournalWriter(path, CONFIG, PolicyNames("a", "b", "c")).close()
    data = path.read_bytes()
    at = data.index(b"format") + len(b"format")
    path.write_bytes(data[:at] + b"\x63" + data[at + 1 :])
    with pytest.raises(JournalError, match="format 99"):
        replay(path, build)


def digest_of_play(path: Path) -> str:
    """SHA-256 over the journal and the commands of a recording."""
    answers = play(path)
    told = hashlib.sha256(path.read_bytes())
    told.update(codec.encode([[[type(c).__name__, c] for c in out] for out in answers]))
    return told.hexdigest()


def test_journal_and_commands_are_equal_on_every_hash_seed(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; "
        "from tests.pure.core.test_kernel_journal import digest_of_play; "
        "print(digest_of_play(Path(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "there")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        cwd=Path(__file__).parents[3],
    )
    assert done.stdout.strip() == digest_of_play(tmp_path / "here")  # on another seed
