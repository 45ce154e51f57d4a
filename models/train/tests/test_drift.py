"""Drift: how often detectors are wrong on steady traffic, and that they see changes."""

import numpy as np
import pytest

from fenxi_train import drift

PORTS = [443] * 12 + [80] * 4 + [53] * 2 + [22, 8080]
PER_HOUR = 2000
HOURS = 20  # between false alarms


def flows(rng, count, burst, moved=0.0):
    """(port, length, loss) of flows that come in sessions of `burst` similar ones on average."""
    made = []
    while len(made) < count:
        port = PORTS[rng.integers(len(PORTS))]
        length = rng.normal(500 + moved, 200)
        hard = 1.5 if length < 300 + moved else 0.1
        for _ in range(rng.geometric(1 / burst)):
            made.append(
                (port, length + rng.normal(0, 20), hard + 0.3 * rng.exponential() + moved / 400)
            )
    return made[:count]


def alarms(found, hours=HOURS):
    """The alarms of both detectors over these flows, each with the flow's number."""
    shares, loss, made = drift.Shares(("port", "length"), hours), drift.Loss(hours), []
    for number, (port, length, value) in enumerate(found):
        now = number * drift.HOUR_US // PER_HOUR
        made += [
            (number, *alarm)
            for alarm in shares.add((port, length), 1.0, now) + loss.add(value, 1.0, now)
        ]
    return made


@pytest.mark.parametrize("burst", [1, 4, 8])
def test_false_alarms_are_no_more_frequent_than_the_knob_says(burst):
    hours, found = 0, {"shares": 0, "loss": 0}
    for seed in range(6):
        rng = np.random.default_rng(seed)
        for _, name, *_ in alarms(flows(rng, 50_000, burst)):
            found["loss" if name == "loss" else "shares"] += 1
        hours += 50_000 / PER_HOUR
    # Of each 7.5 are expected; 13 or more have a chance of 5 % then.
    assert all(count < 13 for count in found.values()), (hours, found)


def test_a_change_is_seen_soon_and_told_once():
    rng = np.random.default_rng(5)
    # Ten hours of traffic: a knob of 20 would allow a false alarm.
    found = alarms(flows(rng, 10_000, 4) + flows(rng, 10_000, 4, moved=200), 10 * HOURS)
    names = [name for _, name, *_ in found]
    assert "length" in names and "loss" in names and "port" not in names
    assert all(10_000 <= number < 11_000 for number, *_ in found), found
    assert len(found) == 2


def test_reservoir_weights_do_not_look_like_a_change():
    """Half of the flows of one kind stand for two."""
    rng, watch, found = np.random.default_rng(2), drift.Shares(("kind",), 1000), []
    for number in range(40_000):
        kind, thinned = rng.random() < 0.3, number > 20_000
        if kind and thinned and rng.random() < 0.5:
            continue
        found += watch.add(
            (kind,), 2.0 if kind and thinned else 1.0, number * drift.HOUR_US // PER_HOUR
        )
    assert found == []


def test_numbers_that_never_change_and_new_values():
    watch, found = drift.Shares(("same", "protocol"), HOURS), []
    for number in range(6_000):
        protocol = 6 if number % 10 and number < 4_000 else 17
        found += watch.add((1, protocol), 1.0, number * drift.HOUR_US // PER_HOUR)
    assert [name for name, *_ in found] == ["protocol"]
    assert len(drift.edges_of(np.ones(50), np.ones(50))) == 0


def test_another_model_gets_another_reference():
    watch, labels = drift.Drift(1000), ["small", "huge"]
    sample = {
        "proto": 6,
        "server_port": 443,
        "elements": [[100, 0], [-1400, 9]],
        "truth": {"label": "small"},
        "output": {"label": "small", "confidence": 0.9, "generation": 1},
    }
    rng = np.random.default_rng(1)
    for number in range(20_000):
        generation = 1 + number // 10_000
        sample["elements"][0][0] = int(rng.integers(60, 1400))
        right = rng.random() < (0.9 if generation == 1 else 0.5)
        sample["output"] = {
            "label": "small" if right else "huge",
            "confidence": 0.9,
            "generation": generation,
        }
        assert watch.add(sample, labels, number * 1_000_000) == []
    assert watch.loss.usual > 1
