"""A short run of `tests/kill.py`: each verb is ended in the first and in the last part of its time."""

import signal
from pathlib import Path

import pytest
from kill import VERBS, Victim

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.usefixtures("interruptible")]
MOMENTS = {signal.SIGKILL: (0.4, 0.85), signal.SIGTERM: (0.6,), signal.SIGINT: (0.2,)}


@pytest.mark.parametrize("name", VERBS)
def test_ended_at_some_moment(name: str, tmp_path: Path):
    victim = Victim(name, tmp_path)
    for number, moments in MOMENTS.items():
        for moment in moments:
            victim.once(number, moment)
