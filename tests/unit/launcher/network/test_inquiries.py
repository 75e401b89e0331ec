"""When the host of a launcher is asked whether that has ended."""

from recoverrun.launcher.network.inquiries import ASK_AGAIN_S, ASK_SELDOM_S, Inquiry


def test_a_broken_call_is_asked_about_at_once_and_then_ever_more_seldom() -> None:
    inquiry = Inquiry(0.0)
    assert not inquiry.look(up=True, now=5.0)

    asked, now = [], 5.0
    while now < 10.0:
        if inquiry.look(up=False, now=now):
            asked.append(now)
        now = max(now, inquiry.due)

    waits = [later - sooner for sooner, later in zip(asked, asked[1:], strict=False)]
    assert asked[0] == 5.0
    assert all(one <= other for one, other in zip(waits, waits[1:], strict=False))
    assert waits[0] < 3 * ASK_AGAIN_S
    assert abs(waits[-1] - ASK_SELDOM_S) < 1e-9


def test_a_call_that_is_put_through_again_is_asked_about_at_once_the_next_time() -> None:
    inquiry = Inquiry(0.0)
    for now in (1.0, 2.0, 4.0, 8.0):
        assert inquiry.look(up=False, now=now)

    assert not inquiry.look(up=True, now=8.5)

    assert inquiry.look(up=False, now=8.6)
    assert inquiry.due - 8.6 < 3 * ASK_AGAIN_S
