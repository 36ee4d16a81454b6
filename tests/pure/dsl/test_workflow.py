"""Tracing: a function becomes a spec once, and everything wrong is told together."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest

from herasys_rt.dsl import Node, Operator, edge, operator, param, workflow
from herasys_rt.errors import GraphError, InputError, UsageError
from herasys_rt.graph.spec import Expr, InputRef, ListRef, Lit, NodeRef, Port, Sampling
from herasys_rt.graph.types import PortType

ROOT = Path(__file__).resolve().parents[3]


@operator(
    name="test.say",
    version="1",
    verb="say",
    resource="cpu",
    output=PortType.TEXT,
    sampling=Sampling("heat", "seed"),
    ports={
        "text": edge(PortType.TEXT, non_empty=True),
        "loud": param(PortType.BOOL),
        "times": param(PortType.INT, minimum=1),
        "heat": param(PortType.FLOAT, minimum=0),
        "seed": param(PortType.INT, optional=True),
    },
)
def say(
    text: str | Node,
    *,
    loud: bool = False,
    times: int = 1,
    heat: float = 0.0,
    seed: int | None = None,
    model: str | None = None,
    label: str = "",
):
    """Says it."""


@operator(
    name="test.look",
    version="1",
    verb="look",
    resource="cpu",
    output=PortType.VECTOR,
    ports={"texts": edge(PortType.TEXTS), "hints": edge(PortType.JSON, optional=True)},
)
def look(texts: Any, hints: Any = None, *, model: str | None = None, label: str = ""):
    """Looks at it."""


write: Operator[...] = Operator(
    name="test.write",
    version="1",
    verb="write",
    resource="cpu",
    ports=(Port("text", PortType.TEXT),),
    output=PortType.JSON,
    purity="effect",
)


@workflow
def echo(question: str, times: int = 2):
    """Says the question."""
    return say(question, times=times)


# Wrong calls go through untyped names: the type checker refuses most of them too.
loose_say: Any = say
loose_echo: Any = echo


def faults_of(function: Any, **options: Any) -> str:
    with pytest.raises(GraphError) as caught:
        workflow(**options)(function)
    return "\n".join(str(fault) for fault in caught.value.fields["faults"])


# What a workflow becomes


def test_a_traced_workflow_is_a_spec_with_defaults_written_out():
    spec = echo.spec
    assert (spec.name, spec.doc, spec.share) == ("echo", "Says the question.", "tenant")
    assert [(i.name, i.type, i.required, i.default) for i in spec.inputs] == [
        ("question", PortType.TEXT, True, None),
        ("times", PortType.INT, False, 2),
    ]
    (node,) = spec.nodes
    assert node.id == "test.say"
    assert node.operator == "test.say@1"
    assert node.args == {
        "text": InputRef("question"),
        "loud": Lit(False),
        "times": InputRef("times"),
        "heat": Lit(0.0),
        "seed": Lit(None),
    }
    assert spec.outputs == {"output": NodeRef("test.say")}


def test_omitted_and_written_out_defaults_give_the_same_spec():
    @workflow(name="flow")
    def short(q: str):
        return say(q)

    @workflow(name="flow")
    def long(q: str):
        return say(text=q, loud=False, times=1, heat=0, seed=None)

    assert short.spec.id == long.spec.id


def test_ids_are_operator_names_numbered_or_labels():
    @workflow
    def flow(q: str):
        return say(say(say(q, label="first")))

    assert [n.id for n in flow.spec.nodes] == ["first", "test.say", "test.say_2"]
    assert [n.label for n in flow.spec.nodes] == ["first", "", ""]


def test_a_dict_names_the_outputs():
    @workflow(name="two", share="public")
    def flow(q: str):
        a = say(q, model="big")
        return {"a": a, "b": say(a)}

    assert flow.spec.outputs == {"a": NodeRef("test.say"), "b": NodeRef("test.say_2")}
    assert flow.spec.share == "public"
    assert flow.spec.nodes[0].model == "big"


def test_annotations_become_port_types():
    @workflow
    def flow(
        a: str,
        b: int,
        c: float,
        d: bool,
        e: list[str],
        f: list[dict[str, Any]],
        g: dict[str, int],
        h: Any,
        i,
        j: int | None = None,
        k: Annotated[list[dict[str, Any]], PortType.CHUNKS] = [],  # noqa: B006
        m: float = 1,
    ):
        return say("x")

    kinds = [i.type.value for i in flow.spec.inputs]
    assert kinds == [
        *("text", "int", "float", "bool", "texts", "records", "json", "any", "any"),
        *("int", "chunks", "float"),
    ]
    assert [i.name for i in flow.spec.inputs if i.optional] == ["h", "i", "j"]
    assert type(flow.spec.inputs[-1].default) is float


def test_an_annotation_may_name_something_local():
    kind = str

    @workflow
    def flow(a: kind):  # pyright: ignore[reportInvalidTypeForm]
        assert kind is str  # captured, so that the annotation can be read
        return say(a)

    assert flow.spec.inputs[0].type == PortType.TEXT


def test_lists_of_nodes_inputs_and_literals_become_joins():
    @workflow
    def flow(q: str):
        return look([say(q), q, "x"], hints=[1, 2])

    assert flow.spec.nodes[1].args["texts"] == ListRef(
        (NodeRef("test.say"), InputRef("q"), Lit("x"))
    )
    assert flow.spec.nodes[1].args["hints"] == Lit([1, 2])


def test_literals_are_copied():
    hints = {"a": [1], "v": np.zeros(2)}

    @workflow
    def flow(q: str):
        node = look([q], hints=hints)
        hints["a"].append(2)
        return node

    hints["a"].append(3)
    arg = flow.spec.nodes[0].args["hints"]
    assert isinstance(arg, Lit)
    assert arg.value["a"] == [1]


def test_sampling_is_settled_when_literals_decide():
    @workflow
    def flow(q: str, heat: float = 0.0):
        return {
            "cold": say(q, label="cold"),
            "warm": say(q, heat=0.5, label="warm"),
            "seeded": say(q, heat=0.5, seed=1, label="seeded"),
            "open": say(q, heat=heat, label="open"),
        }

    purity = {n.id: n.purity for n in flow.spec.nodes}
    assert purity == {"cold": "pure", "warm": "sampled", "seeded": "pure", "open": "pure"}


def test_an_effect_needs_no_taker():
    @workflow
    def flow(q: str):
        write(q)
        return say(q)

    assert [n.purity for n in flow.spec.nodes] == ["effect", "pure"]


def test_binding_checks_inputs_and_fills_defaults():
    assert echo.bind(question="a") == {"question": "a", "times": 2}
    with pytest.raises(InputError):
        echo.bind(question="", times=0)


def test_an_input_may_be_called_self():
    @workflow
    def flow(self: str):
        return say(self)

    assert flow.bind(self="a") == {"self": "a"}


def test_a_workflow_keeps_its_names_and_is_pickled_by_reference():
    from examples.hello import hello

    assert pickle.loads(pickle.dumps(hello)) is hello
    assert (hello.__name__, hello.__module__) == ("hello", "examples.hello")
    assert hello.__doc__ == "A short greeting."


def test_a_workflow_that_cannot_be_imported_is_pickled_as_its_spec():
    @workflow
    def flow(q: str):
        return say(q)

    back = pickle.loads(pickle.dumps(flow))
    assert back is not flow
    assert back.spec.id == flow.spec.id


def test_the_spec_is_the_same_in_every_process():
    code = "from examples.stdlib_rag import rag; print(rag.spec.id)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    from examples.stdlib_rag import rag

    assert done.stdout.strip() == rag.spec.id


# Workflows in workflows


def test_a_workflow_called_in_another_becomes_part_of_it():
    @workflow
    def outer(q: str):
        return echo(echo(q, times=3))

    assert [n.id for n in outer.spec.nodes] == ["echo.test.say", "echo_2.test.say"]
    first, second = outer.spec.nodes
    assert (first.args["text"], first.args["times"]) == (InputRef("q"), Lit(3))
    assert (second.args["text"], second.args["times"]) == (NodeRef("echo.test.say"), Lit(2))


def test_faults_of_an_inner_call_are_told():
    def outer(q: str):
        echo: Any = loose_echo
        return {"a": echo(quest=q), "b": echo(q, times=0), "c": echo(q, times=say(q))}

    found = faults_of(outer)
    assert "echo: has no input 'quest' (did you mean 'question'?)" in found
    assert "echo.question: missing" in found
    assert "echo_2.test.say.times: must be at least 1, got 0" in found
    assert "echo_3.test.say.times: is a parameter" in found


def test_unneeded_nodes_of_an_inner_workflow_are_left_out():
    @workflow
    def both(q: str):
        return {"a": say(q, label="a"), "b": say(q, label="b")}

    @workflow
    def outer(q: str):
        return both(q)["a"]

    assert [n.id for n in outer.spec.nodes] == ["both.a"]


def test_an_inner_literal_settles_sampling():
    @workflow
    def inner(q: str, heat: float = 0.0):
        return say(q, heat=heat)

    @workflow
    def outer(q: str):
        return inner(q, heat=0.9)

    assert outer.spec.nodes[0].purity == "sampled"


# Faults


def test_all_faults_of_a_graph_are_told_together():
    def flow(q: str):
        vector = look(loose_say(q, tmes=2))
        a = say(vector, times=0, label="a")
        b = loose_say(a, loud=1, label="a")
        say(b, label="lost")
        return {"one": b, "two": 3}

    found = faults_of(flow)
    assert "test.say: has no argument 'tmes' (did you mean 'times'?)" in found
    assert "test.look.texts: takes texts, got text from node 'test.say'" in found
    assert "a.text: takes text, got vector from node 'test.look'" in found
    assert "text comes from input 'q', node 'test.say'" in found
    assert "a.times: must be at least 1, got 0" in found
    assert "a: two nodes have this label" in found
    assert "a_2.loud: expected bool, got int 1" in found
    assert "output two: is int, which is no node" in found


def test_the_message_counts_and_lists_the_faults():
    with pytest.raises(GraphError, match="workflow 'flow' has 2 faults:\n  - "):

        @workflow
        def flow(q: str):
            return loose_say(q, times=0, loud="yes")


def test_a_missing_argument_is_a_fault_and_not_a_type_error():
    found = faults_of(lambda: loose_say(), name="flow")
    assert found == "test.say.text: missing; it takes text (nothing before it gives text)"


def test_a_dead_node_is_refused():
    def flow(q: str):
        say(q, label="lost")
        return say(q)

    assert "lost: no output depends on it" in faults_of(flow)


@pytest.mark.parametrize(
    ("returned", "line"),
    [
        (None, "is NoneType"),
        ("text", "is str"),
        ({}, "empty dict"),
        ((1,), "is tuple"),
    ],
)
def test_what_is_returned_must_be_nodes(returned, line):
    assert line in faults_of(lambda: returned, name="flow")


def test_an_input_is_no_output():
    assert "is <input q: text>, which is no node" in faults_of(_identity, name="flow")


def _identity(q: str):
    return q


@pytest.mark.parametrize(
    "use",
    [
        bool,
        len,
        list,
        int,
        float,
        lambda x: x == "a",
        lambda x: x != "a",
        lambda x: x > 3,
        lambda x: "a" in x,
        lambda x: x[0],
        lambda x: x.strip(),
        lambda x: range(x),
    ],
)
def test_a_symbol_has_no_value_to_branch_or_loop_on(use):
    def flow(q: str):
        say(q, times=0)
        use(q)
        return say(q)

    found = faults_of(flow)
    assert "input q: has no value while the workflow is traced" in found
    assert "test.say.times: must be at least 1" in found  # the others are told too


@pytest.mark.parametrize(
    "use",
    [
        str,
        lambda x: f"{x}",
        lambda x: f"{x:>3}",
        lambda x: x + "a",
        lambda x: "a" + x,
        lambda x: -x,
        lambda x: x % 3,
    ],
)
def test_computing_with_a_symbol_is_a_fault_and_tracing_goes_on(use):
    def flow(q: str):
        use(q)
        return say(q, times=0)

    found = faults_of(flow)
    assert "input q: has no value" in found
    assert "test.say.times" in found


def test_a_swallowed_fault_is_still_told():
    def flow(q: str):
        try:
            bool(q)
        except UsageError:
            pass
        return say(q)

    assert "nothing can branch on it" in faults_of(flow)


def test_an_error_of_the_body_is_a_fault_with_its_cause():
    def flow(q: str):
        say(q, times=0)
        raise KeyError("lost")

    with pytest.raises(GraphError, match="its body raised KeyError: 'lost'") as caught:
        workflow(flow)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "test.say.times" in caught.value.message


def test_nodes_may_stand_inside_dicts_and_lists_but_not_in_sets_or_under_odd_keys():
    @workflow
    def flow(q: str):
        return look([q], hints=[{"a": q}, ["x", say(q)]])

    assert flow.spec.nodes[1].args["hints"] == ListRef(
        (
            Expr("record", {"a": InputRef("q")}),
            ListRef((Lit("x"), NodeRef("test.say"))),
        )
    )
    assert "a set holds a node" in faults_of(lambda q: look([q], hints={q}), name="flow")
    found = faults_of(lambda q: look([q], hints={1: q}), name="flow")
    assert "test.look.hints: has the key 1 (keys must be strings)" in found


def test_values_outside_the_closed_set_are_refused():
    found = faults_of(lambda q: look([q], hints={"a": {1, 2}}), name="flow")
    assert "test.look.hints: value.a is of type set" in found


def test_a_node_of_another_workflow_is_refused():
    kept: list[Node] = []

    @workflow
    def first(q: str):
        kept.append(say(q))
        return kept[0]

    assert "belongs to another workflow" in faults_of(lambda: say(kept[0]), name="flow")
    with pytest.raises(UsageError, match="is a placeholder of workflow 'first'"):
        bool(kept[0])
    assert first.spec.nodes


@pytest.mark.parametrize("label", ["a b", "1", "\u00fc"])
def test_labels_are_names(label):
    assert "is no name" in faults_of(lambda: say("x", label=label), name="flow")


def test_options_are_literals():
    found = faults_of(lambda q: say("x", model=q, label=q), name="flow")
    assert "test.say.model: must be a literal name" in found
    assert "test.say.label: must be a literal text" in found


def test_positional_arguments_are_counted():
    found = faults_of(lambda: loose_say("x", True, text="y"), name="flow")
    assert "got two values for 'text'" in found
    assert "got 2 positional arguments (it takes text)" in found


async def _asynchronous(q: str):
    return say(q)


def _generating(q: str):
    yield say(q)


@pytest.mark.parametrize("function", [_asynchronous, _generating])
def test_only_ordinary_functions_are_workflows(function):
    assert "is asynchronous or a generator" in faults_of(function)


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda *a: say("x"), "input a: inputs are declared one by one"),
        (lambda **a: say("x"), "input a: inputs are declared one by one"),
        (lambda _a: say("x"), "input _a: names with a leading underscore"),
        (lambda a={1}: say("x"), "input a: default is of type set"),
    ],
)
def test_inputs_that_cannot_be_are_refused(function, line):
    assert line in faults_of(function, name="flow")


def test_an_unknown_annotation_lists_the_known_ones():
    def flow(q: set[str], r: Nowhere, s: int = "x"):  # noqa: F821 # pyright: ignore
        return say("x")

    found = faults_of(flow)
    assert "input q: annotation set is no input type (known are str, int" in found
    assert "input r: annotation 'Nowhere' cannot be read" in found
    assert "input s: default: expected int" in found


def test_an_unknown_share_is_refused():
    assert "one of tenant, public" in faults_of(lambda: say("x"), name="f", share="all")


def test_operators_and_workflows_outside_of_a_workflow_say_what_to_do():
    for call in (lambda: say("x"), lambda: echo("x")):
        with pytest.raises(UsageError, match="outside of a workflow") as caught:
            call()
        assert "@workflow" in caught.value.hint


def test_a_failed_trace_leaves_nothing_behind():
    faults_of(lambda q: bool(q), name="flow")
    with pytest.raises(UsageError):
        say("x")


# Return annotations


class Answer(TypedDict):
    text: str
    texts: list[str]


@pytest.mark.parametrize(
    "annotation",
    [str, Node, Any, None, "str", "Node", dict, str | None, Annotated[Any, PortType.TEXT]],
)
def test_a_return_annotation_that_fits_passes(annotation):
    def flow(q: str):
        return say(q)

    flow.__annotations__["return"] = annotation
    assert workflow(flow).spec.outputs


@pytest.mark.parametrize(
    ("annotation", "line"),
    [
        (int, "output output: is declared as int and is text"),
        (list[str], "output output: is declared as texts and is text"),
        (Answer, "output text: is declared and not returned"),
        (set, "output: return annotation set is no input type"),
        ("Nowhere", "output: return annotation 'Nowhere' cannot be read"),
    ],
)
def test_a_return_annotation_that_does_not_fit_is_told(annotation, line):
    def flow(q: str):
        return say(q)

    flow.__annotations__["return"] = annotation
    assert line in faults_of(flow)


def test_every_output_of_several_is_held_against_its_annotation():
    def flow(q: str):
        return {"text": say(q), "texts": say(q, label="b"), "more": say(q, label="c")}

    flow.__annotations__["return"] = Answer
    found = faults_of(flow)
    assert "output texts: is declared as texts and is text" in found
    assert "output more: is returned and not declared" in found
    flow.__annotations__["return"] = dict[str, int]
    assert "output text: is declared as int and is text" in faults_of(flow)
    flow.__annotations__["return"] = dict[str, str]
    assert workflow(flow).spec.outputs
    flow.__annotations__["return"] = str
    assert "output: is text by its annotation, and a dict is returned" in faults_of(flow)


def test_outputs_that_may_be_lists_of_dicts_may_be_declared_so():
    def flow(q: str):
        return {"json": write(q), "list": [write(q)]}

    flow.__annotations__["return"] = dict[str, list[dict[str, Any]]]
    assert set(workflow(flow).spec.outputs) == {"json", "list"}
    flow.__annotations__["return"] = list[dict[str, Any]]
    assert "is records by its annotation, and a dict is returned" in faults_of(flow)


def test_outputs_may_be_lists_and_dicts_of_nodes():
    @workflow
    def flow(q: str):
        return {"list": [say(q), "x"], "dict": {"a": say(q, label="b")}}

    assert flow.spec.outputs == {
        "list": ListRef((NodeRef("test.say"), Lit("x"))),
        "dict": Expr("record", {"a": NodeRef("b")}),
    }
