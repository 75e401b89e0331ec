"""Values of options, as users write them: the place at which metrics are served."""

import pytest

from recoverrun.config.option_values import Endpoint, metrics_place
from recoverrun.errors import RecoverrunError
from rendezvous.protocol.exit_codes import ExitCode


@pytest.mark.parametrize(
    ("text", "host", "port"), [("9400", "127.0.0.1", 9400), ("*:9400", "0.0.0.0", 9400)]
)
def test_a_place(text: str, host: str, port: int) -> None:
    assert metrics_place(text, "--metrics-port") == Endpoint(host=host, port=port)


@pytest.mark.parametrize("text", ["abc", "gpu-01", ":", "9400:"])
def test_what_is_no_place_is_said(text: str) -> None:
    with pytest.raises(RecoverrunError, match="--metrics-port must be PORT or HOST:PORT") as raised:
        metrics_place(text, "--metrics-port")

    assert raised.value.exit_code == ExitCode.USAGE
