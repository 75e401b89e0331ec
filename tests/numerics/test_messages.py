"""Messages between two ranks, over real gloo, while a third one dies."""

from tests.numerics import message_scripts, worlds


def test_messages_between_live_ranks_pass_whoever_dies() -> None:
    results = worlds.run(message_scripts.messages, size=4).results

    assert results[0] == [8.0]
    assert results[1][:5] == [0.0, 1.0, 2.0, 3.0, 7.0]
    assert "rank 2" in results[1][5]
    assert results[1][6] == 6.0
    assert results[3] == [5.0]


def test_a_send_does_not_wait_for_its_receiver() -> None:
    assert worlds.run(message_scripts.a_send_waits_for_nobody, size=2).results == {0: 0.0, 1: 1.0}
