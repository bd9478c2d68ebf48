"""Delays grow, stay below the cap, and differ between processes."""

import random

from gpushare.kube.backoff import Backoff


def test_delays_double_up_to_the_cap_with_jitter() -> None:
    backoff = Backoff(first_s=1, cap_s=8, random=random.Random(7))
    for most in (1, 2, 4, 8, 8, 8):
        assert most / 2 <= backoff.next_s() <= most
    backoff.reset()
    assert backoff.next_s() <= 1


def test_no_two_processes_come_back_in_step() -> None:
    assert len({Backoff(random=random.Random(seed)).next_s() for seed in range(50)}) == 50


def test_a_million_failures_are_no_overflow() -> None:
    backoff = Backoff(cap_s=20)
    backoff.failures = 1_000_000
    assert backoff.next_s() <= 20
