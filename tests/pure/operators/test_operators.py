"""The operator library: what each call lowers to, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from examples import all as examples
from examples.hello import hello
from examples.stdlib_rag import rag, rag_rerank
from herasys_rt.dsl import find_operator, map_over, workflow
from herasys_rt.errors import GraphError, InputError
from herasys_rt.graph.signature import Signer
from herasys_rt.graph.spec import Expr, InputRef, Lit, NodeRef, NodeSpec
from herasys_rt.graph.types import PortType
from operators import embed, embed_many, generate, ingest, rerank, retrieve

SAMPLING = {
    *("temperature", "top_p", "top_k", "min_p", "max_tokens", "stop", "seed"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("min_tokens", "n", "logprobs"),
}


def nodes_of(function: Any) -> tuple[NodeSpec, ...]:
    return workflow(name="flow")(function).spec.nodes


def faults_of(function: Any) -> str:
    with pytest.raises(GraphError) as caught:
        workflow(name="flow")(function)
    return "\n".join(str(fault) for fault in caught.value.fields["faults"])


def value(node: NodeSpec, port: str) -> Any:
    arg = node.args[port]
    assert isinstance(arg, Lit)
    return arg.value


def test_rag_lowers_to_three_verbs():
    assert [(n.id, n.verb, n.resource, n.output) for n in rag.spec.nodes] == [
        ("embed", "embed", "embedding", PortType.VECTOR),
        ("retrieve", "pg.search", "retrieval", PortType.CHUNKS),
        ("generate", "llm.generate", "llm", PortType.TEXT),
    ]
    search, answer = rag.spec.nodes[1:]
    assert search.args == {
        "vector": NodeRef("embed"),
        "collection": Lit("stdlib"),
        "top_k": Lit(4),
        "filter": Lit(None),
        "distance": Lit(None),
        "index": Lit("auto"),
        "ef_search": Lit(None),
    }
    assert search.collection == "collection"
    assert set(answer.args) == SAMPLING | {
        "prompt",
        "messages",
        "system",
        "var:context",
        "var:question",
    }
    assert answer.args["var:question"] == InputRef("question")
    assert (value(answer, "max_tokens"), answer.streams, answer.purity) == (
        64,
        True,
        "pure",
    )


def test_the_examples_are_what_they_say():
    assert [n.verb for n in rag_rerank.spec.nodes] == [
        *("embed", "pg.search", "rerank", "llm.generate")
    ]
    assert value(hello.spec.nodes[0], "max_tokens") == 32
    assert rag.bind(question="why?") == {"question": "why?"}


def test_one_command_runs_every_example():
    folder = Path(examples.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} - {"all", "demo", "stdlib_docs"}
    assert {name.partition(":")[0] for name in examples.NAMES} == modules


def test_embed_many_gives_its_texts_under_the_name_of_the_verb():
    (node,) = nodes_of(lambda: embed_many(["a", "b"], kind="query"))
    assert node.operator == "embed_many@1"
    assert node.args == {"text": Lit(["a", "b"]), "kind": Lit("query")}
    assert (node.verb, node.output) == ("embed", PortType.VECTORS)


def test_ingest_is_cutting_embedding_and_an_effect():
    def flow(documents: list[dict[str, Any]]):
        return ingest(documents, collection="c", chunk_tokens=50, overlap=5, label="done")

    cut, embedding, write = nodes_of(flow)
    assert (cut.verb, cut.resource, cut.output) == (
        *("text.chunk", "embedding"),
        PortType.CHUNKS,
    )
    assert cut.args == {
        "documents": InputRef("documents"),
        "max_tokens": Lit(50),
        "overlap": Lit(5),
    }
    assert (embedding.operator, embedding.list_port) == ("embed_many@1", "text")
    assert embedding.args == {
        "text": Expr("texts_of", {"items": NodeRef("chunk_documents")}),
        "kind": Lit("document"),
    }
    assert (write.id, write.verb, write.purity) == ("done", "pg.write", "effect")
    assert write.args == {
        "embedded": Expr(
            "record",
            {"chunks": NodeRef("chunk_documents"), "vectors": NodeRef("embed_many")},
        ),
        "collection": Lit("c"),
        "replace": Lit(False),
        **dict.fromkeys(("distance", "storage", "language"), Lit(None)),
        **dict.fromkeys(("m", "ef_construction"), Lit(None)),
    }


def test_a_list_of_dicts_may_be_documents_chunks_and_a_conversation():
    @workflow
    def flow(
        documents: list[dict[str, Any]],
        passages: list[dict[str, Any]],
        history: list[dict[str, str]],
    ):
        ingest(documents[:5], collection="c")
        best = rerank("why?", passages)
        asked = generate(messages=["{history}"], history=history, label="asked")
        titles = map_over(documents, lambda each: generate("{t}", t=each["text"]))
        return {"best": best, "asked": asked, "titles": titles}

    records = [{"id": "1", "text": "a", "metadata": {"title": "A"}}]
    turns = [{"role": "user", "content": "hi"}]
    bound = flow.bind(documents=records, passages=records, history=turns)
    assert (bound["documents"], bound["history"]) == (records, turns)
    with pytest.raises(InputError) as caught:
        flow.bind(documents=records, passages=turns, history=["hi"])
    told = "\n".join(str(fault) for fault in caught.value.fields["faults"])
    assert "passages: expected chunks, got list" in told
    assert "history: expected records, got list ['hi']" in told


def test_a_prompt_known_only_later_enters_as_a_value():
    def flow(question: str):
        return generate(generate(question))

    first, second = nodes_of(flow)
    assert value(first, "prompt") == value(second, "prompt") == "{prompt}"
    assert first.args["var:prompt"] == InputRef("question")
    assert second.args["var:prompt"] == NodeRef("generate")


def test_sampling_fields_are_settled():
    (node,) = nodes_of(lambda: generate("x", stop="END", top_k=-1, temperature=1, seed=3))
    assert value(node, "stop") == ["END"]
    assert value(node, "top_k") == 0
    assert value(node, "temperature") == 1.0
    assert type(value(node, "temperature")) is float
    assert nodes_of(lambda: generate("x", temperature=0.7))[0].purity == "sampled"


def test_equal_generation_signs_equally_however_it_is_written():
    def signed(function: Any) -> bytes:
        spec = workflow(name="flow")(function).spec
        return Signer(spec, lambda node: "m").signed({}, "t", "r").signatures[-1]

    base = signed(lambda: generate("x"))
    same = [
        lambda: generate("x", temperature=0, top_k=-1, stop=[], max_tokens=128),
        lambda: generate("x", label="other"),
    ]
    other = [
        lambda: generate("y"),
        lambda: generate("x", system="Be brief."),
        lambda: generate("x", temperature=0.5, seed=1),
        lambda: generate("x", top_p=0.9),
        lambda: generate("x", top_k=5),
        lambda: generate("x", min_p=0.1),
        lambda: generate("x", max_tokens=129),
        lambda: generate("x", stop="a"),
        lambda: generate("x", seed=0),
        lambda: generate("x", presence_penalty=0.1),
        lambda: generate("x", frequency_penalty=0.1),
        lambda: generate("x", repetition_penalty=1.1),
        lambda: generate("{a}", a="x"),
    ]
    assert {signed(f) for f in same} == {base}
    signatures = [signed(f) for f in other]
    assert len({base, *signatures}) == len(other) + 1


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda q: embed(" "), "embed.text: is empty"),
        (lambda q: embed(q, kind="both"), "must be one of 'query', 'document'"),
        (lambda q: retrieve(embed("a"), collection="c", top_k=0), "at least 1, got 0"),
        (lambda q: retrieve(embed("a"), collection=" "), "retrieve.collection: is empty"),
        (lambda q: retrieve(embed("a"), collection="c", filter="x"), "no dict"),  # pyright: ignore
        (lambda q: retrieve(q, collection=embed("a")), "is a parameter"),  # pyright: ignore
        (lambda q: rerank("a", embed("a")), "rerank.chunks: takes chunks, got vector"),
        (lambda q: ingest(embed("a"), collection="c"), "takes documents, got vector"),
        (
            lambda q: ingest([], collection="c", chunk_tokens=5, overlap=5),
            "below max_tokens",
        ),
        (lambda q: generate(""), "generate.prompt: is empty"),
        (lambda q: generate("{a}"), "asks for {a}, which is not given (pass a=...)"),
        (lambda q: generate("{quest}", question=q), "(did you mean 'question'?)"),
        (lambda q: generate("x", a=q), "'a' is neither a parameter nor a placeholder"),
        (lambda q: generate("x", max_token=3), "(did you mean 'max_tokens'?)"),
        (lambda q: generate("{seed}"), "has the name of a parameter"),
        (lambda q: generate("{model}"), "has the name of a parameter"),
        (lambda q: generate("{label}"), "has the name of a parameter"),
        (lambda q: generate('{"a": 1}'), "is no placeholder"),
        (lambda q: generate(q, a=1), "is no literal, so it cannot have placeholders"),
        (lambda q: generate("x", max_tokens=0), "generate.max_tokens: must be at least 1"),
        (
            lambda q: generate("x", temperature=-1),
            "generate.temperature: must be at least 0",
        ),
        (lambda q: generate("x", temperature=float("nan")), "no finite number"),
        (lambda q: generate("x", top_p=0), "generate.top_p: must be at least"),
        (lambda q: generate("x", seed=2**63), "generate.seed: must be at most"),
        (lambda q: generate("x", stop=""), "generate.stop: holds an empty text"),
        (lambda q: generate("x", stop=[1]), "generate.stop: expected texts"),  # pyright: ignore
        (lambda q: generate("x", system=embed("a")), "takes text, got vector"),
        (lambda q: generate(embed("a")), "generate.var:prompt: takes text, got vector"),
        (lambda q: generate("{a}", a=None), "generate.var:a: expected any and got None"),
    ],
)
def test_a_wrong_call_is_refused(function, line):
    assert line in faults_of(function)


def test_the_library_is_registered():
    for name in ("embed", "embed_many", "chunk_documents", "retrieve", "rerank", "store"):
        assert find_operator(f"{name}@1").version == "1"
    assert find_operator("generate@1").variadic
