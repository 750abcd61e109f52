"""Random numbers of a row: torch's functions draw them from its own generator, and from nothing else."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from memload.engine.transforms.seeding import _REFUSED, _REWRITTEN, _TAKES_GENERATOR, PassSeed, Randomness, _device_of

x = torch.rand(40)

DRAWS = [
    lambda: torch.rand(4),
    lambda: torch.randn(4),
    lambda: torch.randint(9, (4,)),
    lambda: torch.randint(0, 9, size=(4,)),
    lambda: torch.randperm(9),
    lambda: torch.normal(0.0, x),
    lambda: torch.bernoulli(x),
    lambda: torch.multinomial(x, 4),
    lambda: torch.poisson(x * 9),
    lambda: torch.binomial(torch.full((40,), 9.0), x),
    lambda: torch.rand_like(x),
    lambda: torch.randn_like(x, dtype=torch.float64),
    lambda: torch.randint_like(x, 9),
    lambda: torch.randint_like(x, 3, high=9),
    lambda: torch.empty(4).uniform_(),
    lambda: torch.empty(4).normal_(),
    lambda: torch.empty(4).random_(),
    lambda: torch.empty(4).exponential_(),
    lambda: torch.empty(4).cauchy_(),
    lambda: torch.empty(4).log_normal_(),
    lambda: torch.empty(4).geometric_(0.1),
    lambda: torch.empty(40).bernoulli_(0.5),
    lambda: x.bernoulli(),
    lambda: x.multinomial(4),
    lambda: F.dropout(x, 0.5),
    lambda: torch.nn.Dropout(0.3)(x),
    lambda: torch.nn.init.normal_(torch.empty(4)),
    lambda: torch.nn.init.uniform_(torch.empty(4)),
    lambda: torch.nn.init.trunc_normal_(torch.empty(4)),
    lambda: torch.nn.init.kaiming_uniform_(torch.empty(4, 4)),
    lambda: torch.nn.init.xavier_normal_(torch.empty(4, 4)),
    lambda: torch.distributions.Normal(0.0, 1.0).sample((4,)),
    lambda: torch.distributions.Uniform(0.0, 1.0).sample((4,)),
    lambda: torch.distributions.Beta(2.0, 3.0).sample((4,)),
    lambda: torch.distributions.Categorical(x).sample((9,)),
]


@pytest.mark.parametrize("draw", DRAWS, ids=range(len(DRAWS)))
def test_what_draws_is_seeded_and_leaves_the_default_generator_alone(draw):
    random, state = Randomness(), torch.get_rng_state()
    drawn = []
    for seed in (5, 6, 5):
        random.begin(lambda seed=seed: seed)
        with random:
            drawn.append(draw())
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(torch.get_rng_state(), state)


REFUSED = [
    lambda: F.dropout1d(torch.ones(2, 3, 4)),
    lambda: F.dropout2d(torch.ones(2, 3, 4, 5)),
    lambda: F.alpha_dropout(x, training=True),
    lambda: F.rrelu(x, training=True),
    lambda: F.gumbel_softmax(x),
    lambda: torch.dropout(x, 0.5, True),
]


@pytest.mark.parametrize("draw", REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_given_a_generator_is_refused(draw):
    state = torch.get_rng_state()
    with Randomness(), pytest.raises(RuntimeError, match="process-wide generator"):
        draw()
    assert torch.equal(torch.get_rng_state(), state)


def test_what_the_page_calls_not_covered_is_all_that_is_not():
    handled = {f.__name__ for f in (*_TAKES_GENERATOR, *_REWRITTEN, *_REFUSED)}
    random = set()
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        packet = getattr(torch.ops.aten, name, None) if namespace == "aten" else None
        overload = getattr(packet, schema.overload_name or "default", None)
        if torch.Tag.nondeterministic_seeded in getattr(overload, "tags", ()) and (
            callable(getattr(torch, name, None)) or hasattr(torch.Tensor, name)
        ):
            random.add(name)
    public = {name for name in random - handled if not name.startswith("_")}
    assert public <= {"gru", "lstm", "rnn_relu", "rnn_tanh", "miopen_rnn"}  # with a dropout of their own


def test_dropout_keeps_its_scale_and_its_edges():
    with Randomness():
        assert set(F.dropout(torch.ones(400), 0.75).tolist()) == {0.0, 4.0}
        assert F.dropout(torch.ones(4), 1.0).tolist() == [0.0] * 4
        assert F.dropout(torch.ones(4), 0.9, training=False).tolist() == [1.0] * 4
        y = torch.ones(400)
        assert F.dropout(y, 0.5, inplace=True) is y
        assert set(y.tolist()) == {0.0, 2.0}


def test_generators_are_the_same_for_the_same_seed_and_independent_of_what_was_drawn_before():
    random = Randomness()
    drawn = []
    for seed, before in ((3, 0), (4, 5), (3, 7)):
        random.begin(lambda: 99)
        random.rng().random(before)
        random.rng().integers(9, dtype=np.uint32)  # leaves half a word behind
        torch.rand(before, generator=random.generator())
        random.begin(lambda seed=seed: seed)
        drawn.append(
            (*random.rng().integers(1000, size=8, dtype=np.uint32), *torch.rand(8, generator=random.generator()))
        )
    assert drawn[0] == drawn[2] != drawn[1]


def test_a_users_generator_is_used():
    own = torch.Generator().manual_seed(1)
    expected = torch.rand(3, generator=torch.Generator().manual_seed(1))
    with Randomness():
        assert torch.equal(torch.rand(3, generator=own), expected)


def test_seeds_differ_for_bases_epochs_rows_and_batches():
    seeds = [PassSeed(base, epoch) for base in (0, 1, 2**62) for epoch in (0, 1)]
    rows = [one.of_row(row) for one in seeds for row in range(100)]
    batches = [one.of_batch(np.array([row])) for one in seeds for row in range(100)]
    assert len({*rows, *batches}) == 1200
    assert all(0 <= seed < 2**64 for seed in rows)
    assert PassSeed(0).of_batch(np.array([1, 2])) != PassSeed(0).of_batch(np.array([2, 1]))


def test_what_names_no_device_draws_on_torchs_default_device():
    assert _device_of((3,), {}) == torch.device("cpu")
    with torch.device("meta"):
        assert _device_of((3,), {}) == torch.device("meta")
        assert _device_of((torch.zeros(1, device="cpu"),), {}) == torch.device("cpu")
