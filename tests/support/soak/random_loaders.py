"""Random loaders beside stock ones: datasets, samplers and arguments of every kind; generators compared as well."""

from collections import Counter

from hypothesis import HealthCheck, Phase, given, seed, settings
from loader_cases import cases
from same_batches import assert_same

CASES = 40  # in a round
PLAIN = settings(
    database=None,
    derandomize=False,
    deadline=None,
    print_blob=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def attack(rng, folder):
    """Compare the batches of some loaders; in one of ten rounds beside worker processes of the stock loader."""
    tried, workers = Counter(), rng.random() < 0.1

    @seed(rng.randrange(2**32))
    @settings(PLAIN, max_examples=4 if workers else CASES)
    @given(cases(workers=workers))
    def holds(case):
        account = assert_same(case)
        tried[f"loaders on the {account.engine} engine"] += 1
        tried["loaders beside stock workers"] += workers
        tried["batches compared"] += sum(what[0].rpartition(" ")[0].endswith("batch") for what in account.steps)

    holds()
    return tried
