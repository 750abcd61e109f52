"""memload.join: rows side by side by their keys, and what does not match is an error that says how much."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

import memload
from memload.cli.main import main

SESSIONS = {1: 5, 2: 4, 10: 6}


@pytest.fixture
def betas():
    """Trials of sessions 1, 2 and 10 in an order of their own; the value says which."""
    keys = [(session, trial) for session, rows in SESSIONS.items() for trial in range(rows)][::-1]
    session, trial = map(torch.tensor, zip(*keys, strict=True))
    return memload.from_arrays(betas=session * 100 + trial, session=session, trial=trial)


@pytest.fixture
def shown():
    """The image of every trial of twelve sessions."""
    session, trial = torch.arange(1, 13).repeat_interleave(8), torch.arange(8).repeat(12)
    return memload.from_arrays(image_id=(session * 7 + trial * 3) % 20, session=session, trial=trial)


def column(ds, name):
    return ds.fields[name].gather(np.arange(len(ds)))


def test_each_row_is_joined_with_the_row_of_its_key(betas, shown):
    joined = memload.join(betas, shown, on=("session", "trial"))
    assert list(joined.fields) == ["betas", "session", "trial", "image_id"]
    assert len(joined) == len(betas)
    for row in (joined[k] for k in range(len(joined))):
        assert row["betas"] == row["session"] * 100 + row["trial"]
        assert row["image_id"] == (row["session"] * 7 + row["trial"] * 3) % 20


def test_several_rows_look_up_one_row_and_nothing_is_copied(betas, shown):
    pixels = torch.rand(20, 50, 50)
    images = memload.from_arrays(image=pixels, image_id=torch.arange(20).flip(0))
    joined = memload.join(memload.join(betas, shown, on=("session", "trial")), images, on="image_id")
    wanted = (column(joined, "session") * 7 + column(joined, "trial") * 3) % 20
    loader = memload.FastLoader(joined.as_tuple("image", "betas", "session", "trial"), 4, shuffle=True)
    for image, value, session, trial in loader:
        assert torch.equal(value, session * 100 + trial)
        assert torch.equal(image, pixels.flip(0)[(session * 7 + trial * 3) % 20])
    assert loader.engine == "native"
    assert len(wanted.unique()) < len(wanted)
    pixels[:] = 7  # the rows are those of the tensor itself
    assert torch.equal(joined[3]["image"], pixels[0])


KEYS = st.sampled_from(["small", "large", "far", "text", "unsigned"])
VALUES = {
    "small": lambda n: n % 5,
    "large": lambda n: 2**62 + n % 7,  # which floating-point numbers do not tell apart
    "far": lambda n: (-1) ** n * 2 ** (n % 60),
    "text": lambda n: f"key {n % 6}",
    "unsigned": lambda n: 2**63 + n % 4,
}


def as_keys(kind, numbers):
    values = [VALUES[kind](n) for n in numbers]
    if kind == "text":
        return values, values
    array = np.array(values, np.uint64 if kind == "unsigned" else np.int64)
    return values, torch.from_numpy(array)


@given(
    st.lists(KEYS, min_size=1, max_size=3),
    st.lists(st.integers(0, 200), max_size=30),
    st.lists(st.integers(0, 200), min_size=1, max_size=60),
)
@settings(deadline=None, max_examples=60)
def test_joins_are_what_a_dictionary_finds(kinds, left, right):
    mine = [as_keys(kind, [n // 3**k for n in left]) for k, kind in enumerate(kinds)]
    theirs = [as_keys(kind, [n // 3**k for n in right]) for k, kind in enumerate(kinds)]
    rows = {}
    for row, key in enumerate(zip(*(values for values, _ in theirs), strict=True)):
        rows.setdefault(key, row)
    chosen = sorted(rows.values())
    names = [f"key{k}" for k in range(len(kinds))]
    table = memload.from_arrays(
        {"row": torch.arange(len(right)), **dict(zip(names, (d for _, d in theirs), strict=True))}
    )
    own = [*zip(*(values for values, _ in mine), strict=True)]
    found = [rows.get(key, -1) for key in own]
    asked = [np.array(data, dtype=object) if isinstance(data, list) else data for _, data in mine]
    values = memload.from_arrays(value=torch.arange(len(left)))
    if len(chosen) < len(right):
        with pytest.raises(ValueError, match=r"right: .* keys? (is|are) in several rows"):
            memload.join(values, table, left_on=asked, right_on=names)
    table = table.select(chosen)
    if -1 in found:
        with pytest.raises(ValueError, match=f"left: {found.count(-1)} of {len(left)} rows have no partner"):
            memload.join(values, table, left_on=asked, right_on=names)
        if set(found) == {-1}:
            return
    joined = memload.join(values, table, left_on=asked, right_on=names, how="inner")
    expected = [(k, row) for k, row in enumerate(found) if row >= 0]
    assert [*zip(column(joined, "value").tolist(), column(joined, "row").tolist(), strict=True)] == expected


def test_what_has_no_partner_is_told_with_counts_and_the_first_keys(betas, shown):
    with pytest.raises(ValueError, match="no partner") as refused:
        memload.join(shown, betas, on=("session", "trial"))
    assert str(refused.value) == (
        "left: 81 of 96 rows have no partner on the right, the first: (session=1, trial=5) in row 5, "
        "(session=1, trial=6) in row 6, (session=1, trial=7) in row 7; 15 of the 15 rows on the right are looked up; "
        "session is 1 to 12 on the left and 1 to 10 on the right, trial is 0 to 7 on the left and 0 to 5 on the right. "
        'how="inner" leaves rows without a partner out'
    )
    inner = memload.join(shown, betas, on=("session", "trial"), how="inner")
    assert len(inner) == 15
    assert torch.equal(column(inner, "betas"), column(inner, "session") * 100 + column(inner, "trial"))
    with pytest.raises(ValueError, match="left: 15 of 15 rows have no partner"):
        memload.join(betas, shown.select(range(24, 72)), on=("session", "trial"), how="inner")


def test_keys_that_are_there_twice_on_the_right_are_refused(betas, shown):
    twice = shown.select([*range(96), 3, 3, 50])
    with pytest.raises(ValueError, match="2 keys are in several rows") as refused:
        memload.join(betas, twice, on=("session", "trial"))
    assert "(5 of 99 rows): (session=1, trial=3) in rows 3, 96, 97; (session=7, trial=2) in rows 50, 98." in str(
        refused.value
    )
    with pytest.raises(
        ValueError, match=r"right: 12 keys are in several rows .*\(session=1\) in rows 0, 1, 2, \.\.\.;"
    ):
        memload.join(betas, shown, on="session")


def test_an_exact_join_pairs_each_row_of_either_side_once(betas, shown):
    same = memload.join(betas, shown, on=("session", "trial")).as_tuple("session", "trial", "image_id")
    shuffled = memload.from_arrays({name: column(same, name).flip(0) for name in same.fields})
    joined = memload.join(betas, shuffled, on=["session", "trial"], how="exact")
    assert torch.equal(column(joined, "image_id"), column(same, "image_id"))
    with pytest.raises(ValueError, match="right: 81 of 96 rows are looked up by no row of the left, the first: "):
        memload.join(betas, shown, on=("session", "trial"), how="exact")
    with pytest.raises(ValueError, match=r"right: 1 of 15 rows are looked up several times, the first: \(session=10"):
        memload.join(betas.select([*range(15), 0]), shuffled, on=("session", "trial"), how="exact")
    with pytest.raises(ValueError, match="left: 1 of 15 rows have no partner"):
        memload.join(betas, shuffled.select(range(14)), on=("session", "trial"), how="exact")


def ds(**fields):
    return memload.from_arrays(fields)


ONE = ds(k=torch.arange(3), v=torch.rand(3))
REFUSED = {
    "a list": (lambda: memload.join([1], ONE, on="k"), TypeError, "left is a list; join takes datasets"),
    "mapped": (lambda: memload.join(ONE.map(dict), ONE, on="k"), TypeError, r"memload\.join\(\.\.\.\)\.map\(fn\)"),
    "grouped": (
        lambda: memload.join(ONE, memload.concat({"a": ONE, "b": ds(z=torch.zeros(2))}), on="k"),
        TypeError,
        r"right is a GroupedDataset.*join each of 'a', 'b' before memload\.concat",
    ),
    "no field": (lambda: memload.join(ONE, ONE, on="trial"), KeyError, r"left: no field 'trial' .*\['k', 'v'\]"),
    "no field there": (
        lambda: memload.join(ONE, ds(z=torch.zeros(2)), on="k"),
        KeyError,
        r"right: no field 'k' to join on; there are \['z'\]",
    ),
    "nothing": (lambda: memload.join(ONE, ONE), TypeError, "join takes on="),
    "both": (lambda: memload.join(ONE, ONE, on="k", left_on="k", right_on="k"), TypeError, "join takes on="),
    "one side": (lambda: memload.join(ONE, ONE, left_on="k"), TypeError, "join takes on="),
    "an array for both": (lambda: memload.join(ONE, ONE, on=torch.arange(3)), TypeError, "on= takes a name of a field"),
    "numbers": (lambda: memload.join(ONE, ONE, left_on=[1, 2, 3], right_on="k"), TypeError, "left_on= takes a name"),
    "none": (lambda: memload.join(ONE, ONE, on=[]), TypeError, "on= takes a name"),
    "unlike many": (
        lambda: memload.join(ONE, ONE, left_on=["k", "v"], right_on="k"),
        ValueError,
        "left_on= has 2 parts of the key, right_on= has 1",
    ),
    "how": (lambda: memload.join(ONE, ONE, on="k", how="outer"), ValueError, 'how is "left", "inner" or "exact"'),
    "a name twice": (lambda: memload.join(ONE, ONE, on="k"), ValueError, "both 'left' and 'right' bring a field 'v'"),
    "text and number": (
        lambda: memload.join(ONE, ds(k=["0", "1"]), on="k"),
        TypeError,
        r"the key k is a whole number on the left \(0\) and text on the right \('0'\)",
    ),
    "bool and number": (
        lambda: memload.join(ONE, ds(k=torch.tensor([True])), on="k"),
        TypeError,
        r"a whole number on the left \(0\) and bool on the right \(True\)",
    ),
    "NaN": (
        lambda: memload.join(ONE, ds(k=torch.tensor([0.0, float("nan"), 2.0])), on="k"),
        ValueError,
        r"right: the key k is nan in row 1 \(1 such of 3 rows\)",
    ),
    "infinite": (lambda: memload.join(ONE, ds(k=torch.tensor([np.inf])), on="k"), ValueError, "is inf in row 0"),
    "a fraction": (lambda: memload.join(ONE, ds(k=torch.tensor([0.5])), on="k"), ValueError, "is 0.5 in row 0"),
    "masked": (
        lambda: memload.join(ONE, ONE, left_on=np.ma.masked_equal([0, 1, 2], 1), right_on="k"),
        ValueError,
        "left: the key k has masked values",
    ),
    "beyond 64 bits": (
        lambda: memload.join(ONE, ONE, left_on=np.array([-1, 0, 2**63], object), right_on="k"),
        ValueError,
        "left: the key k goes from -1 to 9223372036854775808, which 64 bits do not hold",
    ),
    "too large for its dtype": (
        lambda: memload.join(ONE, ds(k=torch.tensor([2.0**24 + 2])), on="k"),
        ValueError,
        "16777218.0 in row 0",
    ),
    "complex": (lambda: memload.join(ONE, ds(k=torch.ones(2, dtype=torch.complex64)), on="k"), TypeError, "complex64"),
    "of many values": (
        lambda: memload.join(ONE, ds(k=torch.zeros(3, 1, dtype=torch.int64)), on="k"),
        ValueError,
        r"right: a row of field 'k' is int64 \(1,\); a key is one number or one text",
    ),
    "ragged": (
        lambda: memload.join(ONE, ds(k=memload.ragged([torch.arange(2), torch.arange(1)])), on="k"),
        ValueError,
        r"right: the rows of field 'k' are not one number each, but int64 \(None,\); a key is one number or one text",
    ),
    "too few values": (
        lambda: memload.join(ONE, ONE, left_on=np.arange(2), right_on="k"),
        ValueError,
        r"left: the key k has the shape \(2,\); expected \(3,\), one value for each row",
    ),
    "bytes": (lambda: memload.join(ONE, ONE, left_on=np.array([b"a"] * 3), right_on="k"), TypeError, r"astype\(str\)"),
    "dates": (lambda: memload.join(ONE, ONE, left_on=np.zeros(3, "M8[s]"), right_on="k"), TypeError, "datetime64"),
    "mixed": (
        lambda: memload.join(ONE, ONE, left_on=np.array(["a", None, "b"], object), right_on="k"),
        TypeError,
        "left: the key k has a NoneType, None, in row 1",
    ),
    "beyond int64": (
        lambda: memload.join(ONE, ds(k=torch.from_numpy(np.array([2**63], np.uint64))), on="k"),
        ValueError,
        "9223372036854775808 is beyond int64",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_joined_is_refused(case):
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.uint64, torch.float64, torch.bfloat16])
def test_whole_numbers_are_equal_whatever_their_dtype(dtype):
    table = ds(k=torch.tensor([4, 0, 2]).to(dtype), w=torch.tensor([40, 0, 20]))
    assert column(memload.join(ds(k=torch.tensor([2, 4, 0])), table, on="k"), "w").tolist() == [20, 40, 0]
    assert column(memload.join(table, ds(k=torch.tensor([0, 2, 4]), z=torch.arange(3)), on="k"), "z").tolist() == [
        2,
        0,
        1,
    ]


@pytest.mark.parametrize(
    ("dtype", "first"),
    [(torch.bfloat16, 2**8), (torch.float32, 2**24), (torch.float64, 2**53), (np.longdouble, 2**63)],
)
def test_numbers_of_floating_point_are_keys_below_the_first_that_stands_for_two(dtype, first):
    def found(number):
        key = np.array([number], dtype) if dtype is np.longdouble else torch.tensor([number], dtype=dtype)
        table = ds(k=torch.from_numpy(np.array([number], np.uint64)), z=torch.tensor([1]))
        return memload.join(ds(x=torch.tensor([0])), table, left_on=key, right_on="k")[0]["z"]

    assert found(first - 1) == 1
    for number in (first, first + 1):
        with pytest.raises(ValueError, match=f"floating point below {first}"):
            found(number)


def test_unsigned_numbers_may_be_objects():
    table = ds(k=torch.from_numpy(np.array([2**63], np.uint64)), z=torch.tensor([1]))
    assert memload.join(ds(x=torch.tensor([0])), table, left_on=np.array([2**63], object), right_on="k")[0]["z"] == 1


def test_keys_beside_the_datasets_add_no_fields():
    left, right = ds(x=torch.arange(3)), ds(y=torch.tensor([10, 20, 30]), k=torch.arange(3))
    joined = memload.join(left, right.only("y"), left_on=np.array(["b", "c", "b"]), right_on=np.array([*"abc"], object))
    assert list(joined.fields) == ["x", "y"]
    assert column(joined, "y").tolist() == [20, 30, 20]
    kept = memload.join(left, right, left_on=torch.tensor([2, 2, 0]), right_on="k")
    assert column(kept, "k").tolist() == [2, 2, 0]  # a field that is a key of one side alone


def test_joined_rows_are_dicts_and_recordings_are_those_of_the_left():
    one, other = ds(x=torch.arange(4), k=torch.arange(4)), ds(x=torch.arange(4, 8), k=torch.arange(4, 8))
    table = ds(w=torch.arange(4) * 10, k=torch.arange(4)).concat(ds(w=torch.arange(4, 8) * 10, k=torch.arange(4, 8)))
    order = [7, 0, 6, 1, 5, 2, 4, 3]
    joined = memload.join(one.concat(other).as_tuple("k", "x"), table.select(order), on="k")
    assert joined.layout == "dict"
    lagged = joined.with_lags(x=range(2), w=range(2))
    assert [row["w"].tolist() for row in (lagged[k] for k in range(len(lagged)))] == [
        [10 * k, 10 * k - 10] for k in (1, 2, 3, 5, 6, 7)
    ]
    assert torch.equal(column(pickle.loads(pickle.dumps(joined)), "w"), torch.arange(8) * 10)
    named = memload.join(memload.concat({"a": one, "b": other}), table, on="k")
    assert named.rows_by_name() == {"a": range(4), "b": range(4, 8)}


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_rows_of_datasets_joined_by_name_are_found_by_name(names):
    def numbered(field, order):
        parts = {name: ds(**{field: torch.arange(3) + 10 * ord(name)}, trial=torch.arange(3)) for name in order}
        return memload.concat(parts)

    joined = memload.join(numbered("x", "ab"), numbered("y", names), on=("dataset_idx", "trial"))
    assert torch.equal(column(joined, "x"), column(joined, "y"))
    assert joined.rows_by_name() == {"a": range(3), "b": range(3, 6)}
    with pytest.raises(ValueError, match=r"\(dataset_idx='b', trial=0\) in row 3"):
        memload.join(numbered("x", "ab"), numbered("y", "ca"), on=("dataset_idx", "trial"))


def test_graphs_are_joined_with_values_by_their_names():
    edges = torch.tensor([[0, 1], [1, 0]])
    graphs = memload.from_graphs(
        [Data(x=torch.full((2, 1), float(k)), edge_index=edges, smiles=f"C{k}") for k in range(6)]
    )
    teacher = ds(smiles=[f"C{k}" for k in reversed(range(6))], logits=torch.arange(12.0).reshape(6, 2).flip(0))
    joined = memload.join(graphs, teacher, on="smiles")
    (batch,) = memload.FastLoader(joined, 6, collate_fn=memload.graph_collate)
    assert torch.equal(batch.logits, torch.arange(12.0).reshape(6, 2))


def test_an_attribute_of_whole_graphs_is_a_key_where_each_has_one_number():
    graphs = memload.from_graphs([Data(x=torch.rand(2, 3), scan=torch.tensor([number])) for number in (7, 5, 6)])
    table = ds(scan=torch.tensor([5, 6, 7]), age=torch.tensor([50, 60, 70]))
    joined = memload.join(graphs, table, on="scan")
    assert [int(graph.age) for graph in joined] == [70, 50, 60]
    with pytest.raises(ValueError, match="left: the rows of field 'x' are not one number each"):
        memload.join(graphs, table, left_on="x", right_on="scan")


def test_tables_without_rows_are_joined_or_refused():
    empty = ONE.select([])
    assert len(memload.join(empty, ds(k=torch.arange(2), w=torch.zeros(2)), on="k")) == 0
    with pytest.raises(ValueError, match=r"left: 3 of 3 rows have no partner.* k is 0 to 2 on the left and nothing on"):
        memload.join(ONE, ds(k=torch.arange(2), w=torch.zeros(2)).select([]), on="k")


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for session in (1, 2, 10):
        np.save(f"betas{session:02}.npy", session * 100 + np.arange(4, dtype=np.int16)[:, None])
    for session in range(1, 12):
        np.save(f"shown{session:02}.npy", np.arange(4, dtype=np.int32) - session)


BETAS, SHOWN = "betas=betas{session:d}.npy", "shown=shown{session:d}.npy"


def test_the_command_line_joins_by_keys_and_writes_them(files, capsys):
    assert main(["write", BETAS, SHOWN, "--row-field", "trial", "--on", "session,trial", "--quiet", "set"]) == 0
    written = memload.open("set")
    assert list(written.fields) == ["betas", "session", "trial", "shown"]
    for row in (written[k] for k in range(len(written))):
        assert row["betas"] == row["session"] * 100 + row["trial"]
        assert row["shown"] == row["trial"] - row["session"]
    assert main(["info", "shown{session:d}.npy", "--row-field", "trial", "--file-field", "file"]) == 0
    assert "file" in capsys.readouterr().out
    one = ["write", "betas{session:d}.npy", "--row-field", "trial", "--scale", "1/100", "--cast", "float64", "--quiet"]
    assert main([*one, "scaled"]) == 0
    scaled = memload.open("scaled")
    assert torch.allclose(
        column(scaled, "data")[:, 0], (column(scaled, "session") * 100 + column(scaled, "trial")).double() / 100
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([BETAS, SHOWN, "--row-field", "trial"], "betas, shown have the keys session, trial: --on session,trial puts"),
        (
            [SHOWN, BETAS, "--row-field", "trial", "--on", "session,trial"],
            "left is shown, right is betas: left: 32 of 44",
        ),
        (
            [BETAS, SHOWN, "--row-field", "trial", "--on", "session"],
            "left is betas, right is shown: right: 11 keys are in",
        ),
        ([BETAS, "--on", "session"], "--on finds rows of further sources, and there is one: betas"),
        ([BETAS, "--how", "inner"], "--how needs --on"),
        ([BETAS, SHOWN, "--on", "trial"], "--on trial: betas has no field trial; there are betas, session. Keys of"),
    ],
)
def test_the_command_line_says_what_does_not_match(files, capsys, arguments, message):
    assert main(["write", *arguments, "set"]) == 2
    assert message in capsys.readouterr().err
    assert main(["write", SHOWN, BETAS, "--row-field", "trial", "--on", "session,trial", "--how", "inner", "set"]) == 0
    assert len(memload.open("set")) == 12
