"""Parts of a job that takes a place and may give it up: writers of it that are late reach no set of another job."""

import contextlib
import os

import pytest
import torch
from obstore.store import LocalStore, MemoryStore

import memload
from memload.cli.main import main
from memload.formats.remote.writable_objects import WritableObjects
from memload.formats.shards.part_terms import PartNumber
from memload.formats.shards.sealing import seal_parts
from memload.writing.conversion import Conversions
from memload.writing.part_set import PartSet
from memload.writing.parts import PartJob, fields_of_parts, parts_at
from memload.writing.writer import RowWriter

OLD, NEW = "job-old", "job-new"
ENDED = "the job that this writer belongs to has ended"


pytestmark = pytest.mark.usefixtures("uploads")


@pytest.fixture(params=["folder", "memory", "local"])
def place(request, tmp_path):
    """Where sets are written: a folder, and stores that need no server."""
    (tmp_path / "store").mkdir()
    return {"folder": tmp_path / "set", "memory": MemoryStore(), "local": LocalStore(tmp_path / "store")}[request.param]


def write(place, job, part, value, meanwhile=lambda: None, rows=4):
    """Write a part of equal rows, each in a shard of its own; before the last one something else happens."""

    def given():
        for k in range(rows):
            if k == rows - 1:
                meanwhile()
            yield {"x": torch.full((100,), value)}

    made = PartJob(PartNumber(part), given(), Conversions(None, None, None), fields_of_parts((), None), 500)
    return made.run(parts_at(place, job), resume=False, progress=False)


def complete(place, job=NEW, parts=2):
    """Take the place, write parts with their own numbers from 10 on, and seal them."""
    parts_at(place, job).reserve()
    for part in range(parts):
        write(place, job, part, 10 + part)
    seal_parts(parts_at(place, job), parts)


def assert_new(place, parts=2):
    """The set has the rows of `complete`, and nothing else lies there."""
    ds = memload.open(place)
    assert [int(row["x"][0]) for row in ds] == [10 + part for part in range(parts) for _ in range(4)]
    names = names_in(place)
    assert (names[0], len(names)) == ("index.json", 1 + 4 * parts)
    assert all(name.startswith("shard-") for name in names[1:])


def names_in(place):
    if isinstance(place, MemoryStore | LocalStore):
        return sorted(one["path"] for chunk in place.list() for one in chunk)
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


def ended_or_error():
    """What a writer that is late ends with: its job has ended, or there is a set, or its files have gone."""
    return pytest.raises((FileNotFoundError, FileExistsError))


def test_a_writer_that_begins_after_its_job_ended_writes_nothing(place):
    parts_at(place, OLD).reserve()
    write(place, OLD, 0, 1)
    parts_at(place, OLD).abandon()
    with pytest.raises(FileNotFoundError, match=ENDED):
        write(place, OLD, 0, 1)
    assert not names_in(place)
    parts_at(place, NEW).reserve()
    with pytest.raises(FileNotFoundError, match=ENDED):
        write(place, OLD, 0, 1)
    parts_at(place, NEW).abandon()
    complete(place)
    with pytest.raises(FileExistsError, match="this set is complete"):
        write(place, OLD, 0, 1)
    assert_new(place)


@pytest.mark.parametrize("rows", [2, 4])
def test_a_writer_whose_job_ends_meanwhile_leaves_nothing(place, rows):
    parts_at(place, OLD).reserve()
    with ended_or_error():
        write(place, OLD, 0, 1, parts_at(place, OLD).abandon, rows)
    assert not names_in(place)
    complete(place)
    assert_new(place)


@pytest.mark.parametrize("part", [0, 1, 7])
def test_a_writer_that_ends_while_the_next_job_writes_is_in_no_set(place, part):
    """Its part has the number of one of the next job's, or of none of them."""

    def next_begins():
        parts_at(place, OLD).abandon()
        parts_at(place, NEW).reserve()
        write(place, NEW, 0, 10)

    parts_at(place, OLD).reserve()
    with ended_or_error():
        write(place, OLD, part, 1, next_begins)
    write(place, NEW, 1, 11)
    seal_parts(parts_at(place, NEW), 2)
    assert_new(place)


@pytest.mark.parametrize("part", [0, 7])
def test_a_writer_that_ends_after_the_next_job_sealed_removes_its_own(place, part):
    def next_is_done():
        parts_at(place, OLD).abandon()
        complete(place)

    parts_at(place, OLD).reserve()
    with contextlib.suppress(FileNotFoundError, FileExistsError):
        write(place, OLD, part, 1, next_is_done)
    assert_new(place)


def test_what_a_killed_late_writer_left_keeps_no_job_away_and_goes_when_the_set_is_sealed(place):
    parts_at(place, OLD).reserve()
    attempt = parts_at(place, OLD).attempt(PartNumber(0))
    parts_at(place, OLD).abandon()
    name = attempt.shard(0).name
    if isinstance(place, MemoryStore | LocalStore):
        place.put(name, b"late")
        place.put(f".parts/{OLD}/00000.{attempt.key}", b"")
    else:
        place.mkdir()
        (place / name).write_bytes(b"late")
    complete(place)
    assert_new(place)
    attempt.discard()
    assert_new(place)


def test_a_job_that_another_one_follows_removes_nothing_of_it(place):
    parts_at(place, OLD).reserve()
    parts_at(place, OLD).abandon()
    parts_at(place, NEW).reserve()
    write(place, NEW, 0, 10)
    parts_at(place, OLD).abandon()
    write(place, NEW, 1, 11)
    seal_parts(parts_at(place, NEW), 2)
    parts_at(place, NEW).abandon()
    assert_new(place)


def test_of_two_jobs_the_second_is_refused(place):
    parts_at(place, OLD).reserve()
    for _ in range(2):
        with pytest.raises(FileExistsError, match="already"):
            parts_at(place, NEW).reserve()
        write(place, OLD, 0, 1)


def test_a_place_with_parts_of_no_job_is_refused(place):
    memload.write_part(place, {"x": torch.zeros(3)}, part=0, parts=2)
    before = names_in(place)
    with pytest.raises(FileExistsError, match="already"):
        parts_at(place, NEW).reserve()
    assert names_in(place) == before


def test_parts_of_no_job_are_refused_where_a_job_writes(place, capsys):
    parts_at(place, NEW).reserve()
    write(place, NEW, 0, 10)
    before = names_in(place)
    for refused in (
        lambda: memload.write_part(place, {"x": torch.zeros(3)}, part=0, parts=2),
        lambda: memload.write_part(place, {"x": torch.zeros(3)}, part=0),
        lambda: memload.seal(place, parts=1),
    ):
        with pytest.raises(FileExistsError, match=r"a job of Ray has taken this place, and seals its parts itself"):
            refused()
    if isinstance(place, os.PathLike):
        assert main(["seal", str(place)]) == 2
        assert "a job of Ray has taken this place" in capsys.readouterr().err
    assert names_in(place) == before
    write(place, NEW, 1, 11)
    seal_parts(parts_at(place, NEW), 2)
    assert_new(place)


def test_a_task_that_fails_leaves_the_place_to_the_others_of_its_job(place):
    def fails():
        raise RuntimeError("a broken row")

    parts_at(place, NEW).reserve()
    with pytest.raises(RuntimeError, match="a broken row"):
        write(place, NEW, 0, 1, fails)
    for part in range(2):
        write(place, NEW, part, 10 + part)
    seal_parts(parts_at(place, NEW), 2)
    assert_new(place)


def test_a_job_may_take_an_empty_folder(tmp_path):
    (tmp_path / "set").mkdir()
    complete(tmp_path / "set")
    assert_new(tmp_path / "set")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="exists already"):
        parts_at(tmp_path / "other", NEW).reserve()
    assert names_in(tmp_path / "other") == ["notes.txt"]


# Requests of a writer that is late, between those of the driver, and the other way around


@pytest.fixture
def at_request(monkeypatch):
    """A context in which something is done before a request to a store, of a number; it gives whether there was one."""
    armed = []

    def hooked(request):
        def with_hook(*given, **options):
            if armed:
                armed[0][0] -= 1
                if armed[0][0] < 0:
                    armed.pop()[1]()
            return request(*given, **options)

        return with_hook

    @contextlib.contextmanager
    def at_request(number, act):
        armed.append([number, act])
        yield lambda: not armed
        armed.clear()

    for name in ("read", "begin_reading", "listings", "exists", "begin_put", "upload", "begin_delete"):
        monkeypatch.setattr(WritableObjects, name, hooked(getattr(WritableObjects, name)))
    return at_request


def requests_of(case):
    """Call `case` with the number of each request, until it says that there is none of this number."""
    assert next(number for number in range(100) if not case(number)) > 3


def test_a_part_that_completes_at_any_request_of_giving_its_job_up_is_removed(at_request):
    def completes_at(number):
        place = MemoryStore()
        parts_at(place, OLD).reserve()
        fields = fields_of_parts((), None)
        late = PartSet(parts_at(place, OLD), PartNumber(0), fields, {}, None, progress=False)
        writer = RowWriter(late.disk, fields, late, 500, None, None)
        writer.extend({"x": torch.ones(4, 100)})

        def completes():
            with contextlib.suppress(FileNotFoundError):
                writer.close()

        with at_request(number, completes) as was_done:
            parts_at(place, OLD).abandon()
            done = was_done()
        if not done:
            completes()
            assert late.published is None
        assert names_in(place) == []
        return done

    requests_of(completes_at)


def test_a_job_that_is_given_up_at_any_request_of_a_part_has_nothing_in_the_next_one(at_request):
    def given_up_at(number):
        place = MemoryStore()

        def next_is_done():
            parts_at(place, OLD).abandon()
            complete(place)

        parts_at(place, OLD).reserve()
        with at_request(number, next_is_done) as was_done:
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                write(place, OLD, 0, 1)
            done = was_done()
        if not done:
            next_is_done()
        assert_new(place)
        return done

    requests_of(given_up_at)


def test_a_job_that_seals_at_any_request_of_another_attempt_at_a_part_lists_no_shard_that_goes(at_request):
    """Ray took a task for dead and ran it again, and the job sealed while the first one went on."""

    def sealed_at(number):
        place = MemoryStore()
        parts_at(place, NEW).reserve()
        write(place, NEW, 0, 10)
        with at_request(number, lambda: seal_parts(parts_at(place, NEW), 1)) as was_done:
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                write(place, NEW, 0, 10)
            done = was_done()
        seal_parts(parts_at(place, NEW), 1)
        assert_new(place, parts=1)
        return done

    requests_of(sealed_at)
