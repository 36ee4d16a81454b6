"""The retrieval benchmark's measures and how it reads its data."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks import retrieval_quality as quality


def test_the_measures_are_the_textbooks():
    assert quality.ndcg(["a", "b"], {"a", "b"}) == 1.0
    assert quality.ndcg(["x", "a"], {"a"}) == pytest.approx(1 / math.log2(3))
    assert quality.ndcg([*"0123456789", "a"], {"a"}) == 0.0
    assert quality.recall(["x", "a", "b"], {"a", "b", "c", "d"}) == 0.5
    assert quality.recall(["x", "a", "b"], {"a", "b"}, depth=2) == 0.5


def test_queries_join_judgements_by_their_place_in_the_file(tmp_path: Path):
    (tmp_path / "cran.all.1400.xml").write_text(
        "<doc>\n<docno>1</docno>\n<title>one\ntitle</title>\n<text>one\ntext & more</text>"
        "</doc>\n<doc><docno>2</docno><title></title><text></text></doc>\n"
        "<doc><docno>3</docno><title>three</title><text></text></doc>"
    )
    (tmp_path / "cran.qry.xml").write_text(
        "<xml><top><num> 1</num><title>\nfirst\n query</title></top>"
        "<top><num> 4</num><title>second</title></top></xml>"
    )
    judgements = "1 0 3 1\n2 0 1 3\n2 0 3 -1\n2 0 2 1\n"
    (tmp_path / "cranqrel.trec.txt").write_text(judgements)
    data = quality.read_cranfield(tmp_path)
    assert data.texts == {"1": "one text & more", "3": "three"}
    assert data.queries == ["first query", "second"]
    assert data.relevant == [{"3"}, {"1"}]


def test_without_the_data_it_says_so_and_ends_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("BENCH_DATA_DIR", str(tmp_path))
    assert quality.main(["--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["skipped"]
