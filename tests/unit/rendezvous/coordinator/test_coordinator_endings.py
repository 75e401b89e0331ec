"""Scripts that end while others still have to meet."""

from rendezvous.protocol.messages import Farewell, View
from tests.unit.coordination import Job, told


def test_a_view_says_whose_script_had_ended_and_goes_on_to_say_so() -> None:
    job = Job()
    job.tell(Farewell(rank=0, generation=1, step=1))

    view = told(job.end(2), View)[1]
    job.tell(Farewell(rank=1, generation=2, step=1))

    assert isinstance(view, View) and (view.live_ranks, view.ended) == ((0, 1), (0,))
    assert job.machine.view == view


def test_who_ended_before_it_met_the_others_is_not_waited_for() -> None:
    job = Job()
    job.end(2)

    again = job.tell(Farewell(rank=0, generation=1, step=1))
    met = job.tell(Farewell(rank=0, generation=1, step=1))

    view = told(again, View)[1]
    assert isinstance(view, View) and (view.generation, view.ended) == (3, (0,))
    assert not told(met, View)


def test_who_met_the_others_and_then_ended_begins_no_generation() -> None:
    job = Job()
    job.end(2)

    assert not told(job.tell(Farewell(rank=0, generation=2, step=1)), View)
