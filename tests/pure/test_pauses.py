"""What a watcher counts as silence: time in which it was awake itself,
and nothing of a pause of the whole machine.
"""

from __future__ import annotations

from python_backends.linux.pauses import AwakeClock, Silence
from tests.support.clock import Clock


def test_a_clock_goes_with_time_as_long_as_it_is_read_in_time() -> None:
    time = Clock()
    clock = AwakeClock(1.0, time)
    for _ in range(10):
        time.now_s += 0.5
        clock.advance()
    assert clock.now_s == 5.0
    assert clock.since_pause_s == 5.0


def test_a_pause_counts_as_no_more_than_one_look() -> None:
    time = Clock()
    clock = AwakeClock(1.0, time)
    time.now_s += 3600
    assert clock.advance() == 1.0
    assert clock.since_pause_s == 0.0
    time.now_s += 0.25
    assert clock.advance() == 1.25
    assert clock.since_pause_s == 0.25


def test_silence_is_counted_from_the_last_change_of_the_sign() -> None:
    time = Clock()
    silence = Silence(1.0, time)
    heard = []
    for sign in (1, 1, 1, 2, 2):
        time.now_s += 0.5
        heard.append(silence.look(sign))
    assert heard == [0.0, 0.5, 1.0, 0.0, 0.5]
    assert silence.seconds == 0.5


def test_three_pauses_of_fifteen_seconds_are_no_silence_of_ten() -> None:
    """The watcher looks first after each of them, before the other has given a sign."""
    time = Clock()
    silence, longest = Silence(1.0, time), 0.0
    for sign in range(3):
        for _ in range(3):
            time.now_s += 0.2
            silence.look(sign)
        time.now_s += 15
        longest = max(longest, silence.look(sign))
    assert longest < 2


def test_what_stands_still_while_the_watcher_is_awake_is_found() -> None:
    time = Clock()
    silence = Silence(1.0, time)
    silence.look(7)
    for _ in range(60):
        time.now_s += 0.2
        silence.look(7)
    assert silence.seconds > 10
