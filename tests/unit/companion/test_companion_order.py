"""The order to the companion, as options say it."""

import pytest

from recoverrun.companion.companion_order import CompanionOrder, from_json, order_of, to_json
from recoverrun.config.option_values import Endpoint
from recoverrun.config.options import read
from recoverrun.errors import RecoverrunError


def order(*words: str) -> CompanionOrder:
    options = read([*words, "train.py"], {})
    assert options is not None
    return order_of(options)


def test_without_an_option_there_is_none() -> None:
    assert order().empty


def test_options_become_an_order_which_travels_whole() -> None:
    found = order(
        "--metrics-port=9400", "--on-event=loss, end=notify --x=1", "--notify-url=https://h/x"
    )

    assert found == CompanionOrder(
        metrics=Endpoint(host="127.0.0.1", port=9400),
        classes=("loss", "end"),
        command="notify --x=1",
        notify_url="https://h/x",
    )
    assert from_json(to_json(found)) == found
    assert from_json(to_json(CompanionOrder())).empty


def test_metrics_are_served_to_this_host_unless_another_is_told() -> None:
    hosts = [order(f"--metrics-port={text}").metrics for text in ("1", "*:1", "10.0.0.1:1")]

    assert [place and place.host for place in hosts] == ["127.0.0.1", "0.0.0.0", "10.0.0.1"]


@pytest.mark.parametrize(
    "words",
    [
        "--on-event=loss",
        "--on-event=loss=",
        "--on-event=loss,death=cmd",
        "--on-event==cmd",
        f"--on-event=loss={'x' * 5000}",
        "--notify-url=file:///etc/passwd",
        "--otlp=collector:4318",
        "--notify-url=http://",
        "--notify-url=host",
        "--metrics-port=http",
        "--metrics-port=http:",
        "--metrics-port=99999",
        "--metrics-port=0",
    ],
)
def test_what_cannot_be_meant_is_refused(words: str) -> None:
    with pytest.raises(RecoverrunError) as caught:
        order(words)

    assert caught.value.exit_code == 2
