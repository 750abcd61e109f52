"""memload.score: a function over a whole dataset, as a tensor or as shards."""

import weakref

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import memload


@pytest.fixture
def ds():
    return memload.from_arrays(x=torch.arange(3000.0).reshape(1000, 3), label=torch.arange(1000))


def mean(batch):
    return batch["x"].mean(dim=1)


@pytest.mark.parametrize("chunk", [1000, 500, 7])
def test_scores_come_in_the_order_of_the_rows_whatever_the_chunk(ds, chunk):
    before = torch.get_rng_state()
    assert torch.equal(memload.score(mean, ds, chunk), torch.arange(1.0, 3000.0, 3.0))
    assert torch.equal(torch.get_rng_state(), before)  # a script that scores draws what it would draw without


def test_what_is_kept_of_a_chunk_is_its_result_alone(ds):
    def whole(batch):
        seen.append(len(batch["label"]))
        return batch["label"]  # a view of the loader's memory, which is used again

    seen = []
    assert torch.equal(memload.score(whole, ds, 300), torch.arange(1000))
    assert seen == [300, 300, 300, 100]


def test_a_dict_comes_as_a_dict_and_other_datasets_and_options_of_the_loader_serve_too(ds):
    made = memload.score(lambda batch: {"sum": batch[0].sum(1), "text": [str(int(k)) for k in batch[1]]}, ds.as_tuple())
    assert made["sum"].shape == (1000,)
    assert made["text"][999] == "999"
    stock = TensorDataset(torch.arange(10))
    assert memload.score(lambda batch: batch[0] * 2, stock, 4).tolist() == [*range(0, 20, 2)]
    mapped = ds.map(lambda sample: sample["x"])
    assert torch.equal(memload.score(lambda x: x.mean(1), mapped), memload.score(mean, ds))


def test_results_written_as_shards_lie_beside_the_rows(ds, tmp_path):
    def teacher(batch):
        return {"logits": batch["x"].double() * 2, "features": batch["x"][:, :2].bfloat16()}

    outputs = memload.score(teacher, ds, 300, path=tmp_path / "teacher")
    assert memload.verify(tmp_path / "teacher") > 0
    both = memload.zip(images=ds, teacher=outputs)
    assert list(both.fields) == ["x", "label", "logits", "features"]
    assert torch.equal(both[513]["logits"], ds[513]["x"].double() * 2)
    single = memload.score(mean, ds, path=tmp_path / "mean")
    assert list(memload.zip(images=ds, difficulty=single).fields) == ["x", "label", "difficulty"]


def test_what_is_complete_is_opened_and_not_computed_again(ds, tmp_path):
    calls = torch.zeros(1)

    def counted(batch):
        with torch.no_grad():
            calls.add_(1)
        return mean(batch)

    for expected in (2, 2):
        memload.score(counted, ds, 500, path=tmp_path / "scores", version="1")
        assert int(calls) == expected
    with pytest.raises(FileExistsError, match="counted for other rows or of other code"):
        memload.score(counted, ds, path=tmp_path / "scores", version="2")
    with pytest.raises(FileExistsError, match="other rows"):
        memload.score(counted, ds.select(range(999)), path=tmp_path / "scores", version="1")


def test_options_that_change_what_is_in_batches_are_part_of_what_a_result_is_known_by(ds, tmp_path):
    halved = {"cast": {"x": memload.Cast(torch.float16)}}
    memload.score(mean, ds, path=tmp_path / "scores", threads=1, **halved)
    assert len(memload.score(mean, ds, path=tmp_path / "scores", depth=3, **halved)) == 1000
    for options in ({}, {"cast": {"x": memload.Cast(torch.bfloat16)}}, {"batch_transform": lambda batch: batch}):
        with pytest.raises(FileExistsError):
            memload.score(mean, ds, path=tmp_path / "scores", **options)


def test_an_interrupted_call_goes_on_where_it_was_with_another_chunk_too(ds, tmp_path, capsys):
    large = ds.select(torch.arange(20_000) % 1000)
    seen = []

    def failing(batch):
        seen.append(len(batch["x"]))
        if sum(seen) > stop:
            raise OSError("the machine is needed")
        return batch["x"]

    stop = 15_000
    with pytest.raises(RuntimeError, match=r"rows 15,000 to 15,499: .*failing raised OSError: the machine"):
        memload.score(failing, large, 500, path=tmp_path / "x", version="1")
    assert not (tmp_path / "x").exists()
    seen.clear()
    stop = 10**9
    made = memload.score(failing, large, 400, path=tmp_path / "x", version="1")
    assert torch.equal(made[19_999]["score"], ds[999]["x"])
    assert sum(seen) < 7_500  # a chunk to see what rows are, and what lacked
    assert "resumed where it was interrupted" in capsys.readouterr().err
    assert len(made) == 20_000


def test_little_of_a_small_result_is_lost_too_when_the_work_is_interrupted(ds, tmp_path):
    seen = []

    def failing(batch):
        seen.append(len(batch["x"]))
        if sum(seen) > stop:
            raise OSError("the machine is needed")
        return batch["x"].sum(1)

    stop = 500
    with pytest.raises(RuntimeError, match="the machine is needed"):
        memload.score(failing, ds, 10, path=tmp_path / "x", version="1")
    seen.clear()
    stop = 10**9
    memload.score(failing, ds, 10, path=tmp_path / "x", version="1", progress=False)
    assert sum(seen) <= 500 + 2 * 10 + 1000 / 32


def test_modules_are_in_eval_mode_without_gradients_and_as_they_were_afterwards(ds):
    body, head = torch.nn.Dropout(0.5), torch.nn.Linear(3, 2)
    model = torch.nn.Sequential(body, head)
    head.eval()
    seen = []

    def through_a_global(batch):
        out = model(batch["x"])
        seen.append((model.training, body.training, head.training, out.requires_grad))
        return out

    direct = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.5))
    for fn in (through_a_global, lambda batch: through_a_global(batch)):
        first, second = memload.score(fn, ds), memload.score(fn, ds)
        assert torch.equal(first, second)
    assert set(seen) == {(False, False, False, False)}
    assert (model.training, body.training, head.training) == (True, True, False)
    memload.score(direct, ds.only("x"))
    assert direct.training
    assert direct[1].training

    def failing(batch):
        assert not model.training
        raise ValueError

    with pytest.raises(RuntimeError, match="rows 0 to 499"):
        memload.score(failing, ds)
    assert model.training


def test_batches_are_on_the_device_and_results_on_the_cpu(ds):
    seen = []

    def where(batch):
        seen.append({value.device.type for value in batch.values()})
        return torch.ones(500)

    assert memload.score(where, ds, device="meta").device.type == "cpu"
    assert seen == [{"meta"}, {"meta"}]


@pytest.mark.gpu
def test_on_a_gpu_batches_come_through_the_loader_and_scores_are_the_same(ds):
    def fn(batch):
        assert batch["x"].is_cuda
        return (batch["x"] * 2).sum(1)

    assert torch.equal(memload.score(fn, ds, 300, device="cuda"), (torch.arange(3000.0).reshape(1000, 3) * 2).sum(1))


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (
            lambda batch: batch["x"].mean(),
            ValueError,
            r"rows 0 to 499: .* of shape \(\) for 'score'; .* 500 rows",
        ),
        (lambda batch: batch["x"][1:], ValueError, r"shape \(499, 3\)"),
        (lambda batch: {"a": 3}, TypeError, "'a': int; expected a tensor"),
        (lambda batch: {"a": ["x"]}, ValueError, "1 text for 'a'"),
        (lambda batch: {1: batch["x"]}, TypeError, "returned 1: Tensor"),
        (lambda batch: None, TypeError, "NoneType"),
    ],
)
def test_what_is_no_result_for_each_row_is_an_error_that_names_the_rows(ds, made, error, message):
    with pytest.raises(error, match=message):
        memload.score(made, ds)


def test_results_that_change_their_form_are_an_error(ds):
    with pytest.raises(
        ValueError, match=r"row 500: field 'score' is float64 \(3,\), and float32 \(3,\) in the rows before"
    ):
        memload.score(lambda batch: batch["x"].double() if batch["label"][0] else batch["x"], ds)


def test_what_cannot_be_scored_is_refused(ds):
    for arguments, error, message in [
        ((3, ds), TypeError, "a function of one batch"),
        ((mean, DataLoader(ds)), TypeError, "needs a dataset with a length"),
        ((mean, ds, 0), ValueError, "chunk must be a number of rows"),
        ((mean, ds.select([])), ValueError, "no rows"),
    ]:
        with pytest.raises(error, match=message):
            memload.score(*arguments)
    with pytest.raises(TypeError, match="leave out shuffle"):
        memload.score(mean, ds, shuffle=True)


def test_a_function_that_holds_what_cannot_be_hashed_needs_a_version(ds, tmp_path):
    with (tmp_path / "log").open("w") as log:

        def logged(batch):
            log.write("chunk\n")
            return mean(batch)

        with pytest.raises(ValueError, match=r"logged cannot be hashed \(captured 'log': .*; give version="):
            memload.score(logged, ds, path=tmp_path / "a")
        assert len(memload.score(logged, ds, path=tmp_path / "a", version="1")) == 1000


def test_a_result_that_does_not_fit_is_refused_before_memory_is_taken(ds):
    with pytest.raises(MemoryError, match=r"the results take .*TB and need .* free, .* give a path"):
        memload.score(lambda batch: torch.zeros(1).expand(500, 10**9), ds.select(torch.zeros(10**6, dtype=torch.int64)))


def test_memory_does_not_grow_with_the_rows(tmp_path):
    held = []

    def teacher(batch):
        out = batch["x"] + 1
        held.append(weakref.ref(out))
        assert sum(one() is not None for one in held) <= 3
        return out

    large = memload.from_arrays(x=torch.zeros(1, 1000).expand(5000, 1000))
    memload.score(teacher, large, 100, path=tmp_path / "x", version="1")
    assert len(held) == 50


def test_scores_feed_a_sampler_that_draws_hard_rows_more_often(ds):
    difficulty = memload.score(lambda batch: (batch["label"] % 10 == 0).float() * 9 + 1, ds)
    sampler = memload.WeightedSampler(difficulty, generator=torch.Generator().manual_seed(0))
    loader = memload.FastLoader(ds.only("label"), batch_size=100, sampler=sampler)
    share = torch.cat(list(loader)).remainder(10).eq(0).float().mean()
    assert 0.45 < share < 0.6  # 100 rows of weight 10 among 900 of weight 1
    sampler.weights = memload.score(lambda batch: (batch["label"] < 500).float(), ds)  # the next lesson
    assert int(torch.cat(list(loader)).max()) < 500
