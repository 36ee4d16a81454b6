import math

import pytest

from herasys_rt.errors import InternalError
from herasys_rt.sim.agenda import Agenda


def test_actions_run_by_time_and_equal_times_in_the_order_put_in() -> None:
    agenda, said = Agenda(), []
    agenda.at(2.0, lambda: said.append("late"))
    agenda.at(1.0, lambda: said.append("first"))
    agenda.at(1.0, lambda: said.append("second"))
    agenda.run()
    assert said == ["first", "second", "late"]
    assert agenda.now == 2.0


def test_what_is_added_for_this_moment_runs_in_it_before_the_moment_ends() -> None:
    agenda, said = Agenda(), []

    def first() -> None:
        agenda.after_moment("a", lambda: said.append(("end", agenda.now)))
        agenda.after_moment("a", lambda: said.append(("end once", agenda.now)))
        agenda.at(agenda.now, lambda: said.append(("same", agenda.now)))

    agenda.at(1.0, first)
    agenda.at(2.0, lambda: said.append(("next", agenda.now)))
    agenda.run()
    assert said == [("same", 1.0), ("end once", 1.0), ("next", 2.0)]


def test_time_never_goes_backwards_and_is_a_number() -> None:
    agenda = Agenda()
    agenda.at(3.0, lambda: None)
    agenda.run()
    with pytest.raises(InternalError, match="planned for 2"):
        agenda.at(2.0, lambda: None)
    with pytest.raises(InternalError, match="nan"):
        agenda.at(math.nan, lambda: None)
