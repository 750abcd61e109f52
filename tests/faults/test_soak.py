"""The attacks of docs/reliability.md: a short round of each in every run, and rounds for as long as wanted.

pytest -m slow tests/faults/test_soak.py                                             # a quarter of a minute each
pytest -m slow tests/faults/test_soak.py --soak-minutes=30 -k killed_writers         # one of them, for long
pytest -m slow tests/faults/test_soak.py --soak-minutes=0 --soak-seed=7 -k forks     # the round of a seed again
"""

import json
import random

import pytest
from programs import run, script
from repository import SUPPORT

ROUNDS = SUPPORT / "soak" / "rounds.py"
# Rounds in a run of the suite, which has more random loaders in test_same_batches.py, and at least in any other.
ATTACKS = {
    "random_loaders": (0, 1),
    "random_files": (12, 1),
    "cut_files": (8, 1),
    "killed_writers": (2, 1),
    "early_breaks": (1, 42),  # 240 early ends each
    "full_disks": (2, 1),
    "small_limits": (4, 1),
    "forks": (3, 1),
}
SHORT_SEED = 3


@pytest.mark.parametrize("attack", [name for name, (short, _) in ATTACKS.items() if short])
def test_a_few_rounds_of_each_attack_hold(attack):
    tried = rounds(attack, 0, SHORT_SEED, ATTACKS[attack][0])
    assert tried["rounds"] == ATTACKS[attack][0]


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_the_attack_holds_for_as_long_as_is_asked(attack, pytestconfig):
    seed, minutes = pytestconfig.getoption("--soak-seed"), pytestconfig.getoption("--soak-minutes")
    seed = random.SystemRandom().randrange(10**9) if seed is None else seed
    least = ATTACKS[attack][1] if minutes else 1
    tried = rounds(attack, 60 * minutes, seed, least)
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{attack}, seeds {seed} to {seed + tried['rounds'] - 1}: {json.dumps(tried, sort_keys=True)}")


def rounds(attack, seconds, seed, least):
    """Make rounds in a process of their own; return what was tried."""
    ended = run(script(ROUNDS, attack, str(seconds), str(seed), str(least)), within=seconds + 600)
    *seeds, last = ended.out or ["none"]
    if ended.status != 0:
        failed = ([*seeds, last])[-1]
        again = f"pytest -m slow tests/faults/test_soak.py -k {attack} --soak-minutes=0 --soak-seed={failed}"
        pytest.fail(f"seed {failed}, status {ended.status}; again: {again}\n{ended.err[-4000:]}")
    return json.loads(last)
