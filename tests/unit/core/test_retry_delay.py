"""Delays between tries of a call that failed."""

from perdure.core.backoff import RetryDelay


def test_delays_double_up_to_the_longest_and_lose_at_most_half(monkeypatch):
    draws = []
    monkeypatch.setattr("random.uniform", lambda low, high: draws.append((low, high)) or high)
    delay = RetryDelay(first=0.1, longest=0.5)
    assert [delay.next() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    assert set(draws) == {(0.5, 1.0)}


def test_after_a_success_it_begins_again():
    delay = RetryDelay(first=0.1, longest=10)
    for _ in range(5):
        delay.next()
    delay.reset()
    assert 0.05 <= delay.next() <= 0.1
