"""What the other tests rely on: none waits for ever, and Ctrl-C reaches what they start, however they were started."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest


@pytest.mark.timeout(0.5)
@pytest.mark.xfail(strict=True, raises=pytest.fail.Exception, reason="it waits for ever, and must be stopped")
def test_a_test_that_waits_for_ever_fails():
    threading.Event().wait()


def test_every_test_has_a_limit(request: pytest.FixtureRequest):
    assert 0 < float(request.config.getini("timeout")) <= 120
    assert float(request.config.getini("faulthandler_timeout")) > 0


@pytest.fixture
def background_job() -> Iterator[None]:
    """A shell starts one with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("background_job")
def test_interrupts_reach_children_of_a_background_job(request: pytest.FixtureRequest):
    code = "import signal, sys; sys.exit(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"

    def ignored() -> bool:
        return bool(subprocess.run([sys.executable, "-c", code], check=False).returncode)

    assert ignored(), "what is ignored stays so in children"
    request.getfixturevalue("interruptible")
    assert not ignored()
