"""The price of time is a ratio of sums that slowly forgets; savings pay for looks and never for more."""

from __future__ import annotations

import pytest

from smartree.policies.price import Price, Savings


def test_there_is_no_price_before_the_warm_up_is_over() -> None:
    price = Price(warm_up=3)
    for _ in range(2):
        price.update(1, 4.0, 2.0)
        assert price.at(1) is None
    price.update(1, 4.0, 2.0)
    assert price.at(1) == pytest.approx(2.0)


def test_constant_steps_give_their_ratio_exactly() -> None:
    price = Price()
    for _ in range(1000):
        price.update(2, 3.0, 0.5)
    assert price.at(2) == pytest.approx(6.0, rel=1e-9)


def test_the_price_is_a_ratio_of_sums_not_a_mean_of_ratios() -> None:
    # Steps of 1 token/1 s and 9 tokens/3 s in turn: 10/4 = 2.5 a second; the mean of 1 and 3 would be 2.
    price = Price(window=1000.0)
    for _ in range(5000):
        price.update(1, 1.0, 1.0)
        price.update(1, 9.0, 3.0)
    assert price.at(1) == pytest.approx(2.5, rel=2e-3)


def test_the_price_follows_a_change_within_a_few_windows() -> None:
    price = Price(window=50.0)
    for _ in range(500):
        price.update(1, 1.0, 1.0)
    for _ in range(250):
        price.update(1, 4.0, 1.0)
    assert price.at(1) == pytest.approx(4.0, rel=0.01)


def test_batch_sizes_have_prices_of_their_own() -> None:
    price = Price(warm_up=1)
    price.update(1, 1.0, 1.0)
    price.update(8, 8.0, 2.0)
    assert (price.at(1), price.at(8), price.at(3)) == (1.0, 4.0, None)


def test_a_batch_size_that_seldom_comes_up_has_the_speedup_of_the_nearest_one() -> None:
    price = Price(warm_up=1)
    price.update(8, 24.0, 2.0)  # 12 tokens a plain step's time: a speedup of 1.5
    price.update(20, 40.0, 1.0)  # 2
    assert [price.at(batch) for batch in (4, 7, 9, 10)] == [6.0, 10.5, 13.5, 15.0]
    assert [price.at(batch) for batch in (15, 21, 25)] == [30.0, 42.0, 50.0]


def test_batch_sizes_that_are_much_smaller_or_more_than_twice_as_large_say_nothing() -> None:
    # What two requests gain is no price for four: at that, nothing would ever begin to pay.
    price = Price(warm_up=1)
    price.update(8, 24.0, 2.0)
    assert [price.at(batch) for batch in (1, 3, 11, 16, 17, 100)] == [None] * 6


def test_a_batch_size_s_own_price_wins_once_it_is_warm() -> None:
    price = Price(warm_up=3)
    for _ in range(3):
        price.update(8, 12.0, 1.0)
    for _ in range(2):
        price.update(7, 7.0, 1.0)
        assert price.at(7) == pytest.approx(10.5)  # that of 8 requests
    price.update(7, 7.0, 1.0)
    assert price.at(7) == pytest.approx(7.0)
    assert price.at(8) == pytest.approx(12.0)


def test_a_batch_size_that_is_not_warm_helps_no_other() -> None:
    price = Price(warm_up=3)
    for _ in range(2):
        price.update(8, 8.0, 1.0)
    assert price.at(7) is None


def test_looks_never_cost_more_than_the_share_of_time_saved() -> None:
    savings, paid = Savings(0.01), 0.0
    for _ in range(1000):
        savings.save(2.0, most=1.0)
        if savings.pay(0.3):
            paid += 0.3
    assert paid <= 0.01 * 2000
    assert paid >= 0.9 * 0.01 * 2000


def test_savings_do_not_pile_up() -> None:
    savings = Savings(0.5)
    for _ in range(100):
        savings.save(1.0, most=1.2)
    assert savings.seconds == 1.2
    assert not savings.pay(1.3)
    assert savings.pay(1.2)
    assert savings.seconds == 0.0


def test_a_look_that_took_longer_than_paid_for_delays_the_next_one() -> None:
    savings = Savings(0.1)
    savings.save(10.0, 1.0)
    assert savings.pay(0.5)
    savings.owe(2.0, most=1.5)
    assert savings.seconds == 0.5 - 1.5
    savings.owe(-3.0, most=1.5)  # nothing comes back
    assert savings.seconds == -1.0
    savings.save(10.0, 1.0)
    assert not savings.pay(0.5)
    savings.save(5.0, 1.0)
    assert savings.pay(0.5)


def test_in_quiet_times_the_price_becomes_that_of_plain_decoding_soon() -> None:
    slow, quick = Price(), Price()
    for _ in range(400):
        for price in (slow, quick):
            price.update(4, 12.0, 2.0)
    for _ in range(75):
        slow.update(4, 4.0, 1.0)
        quick.update(4, 4.0, 1.0, quiet=True)
    now, soon = slow.at(4), quick.at(4)
    assert now is not None
    assert soon is not None
    assert soon < 4.9 < 5.2 < now


def test_another_engine_begins_with_the_price_and_soon_has_its_own() -> None:
    first, second = Price(), Price()
    for _ in range(300):
        first.update(4, 6.0, 1.0)
    second.load_json(first.to_json())
    assert second.at(4) == pytest.approx(6.0)
    assert second.at(2) == pytest.approx(3.0)
    assert second.at(8) is None
    for _ in range(24):
        second.update(4, 4.0, 1.0)
    assert second.at(4) == pytest.approx((8 * 6.0 + 24 * 4.0) / 32, rel=0.05)
    with pytest.raises(KeyError):
        second.load_json([{"batch": 4}])
