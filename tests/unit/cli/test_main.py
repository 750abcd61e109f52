"""The command line as a whole: JSON of every command, errors of one line with the next step, completion."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

import memload
from memload.cli import completion, measure
from memload.cli import main as command_line
from memload.cli.main import COMMANDS, main
from memload.cli.output import plain
from memload.cli.words import in_options


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with an array, a set, a set in parts, a cache and a script."""
    here = tmp_path_factory.mktemp("made")
    rows = torch.arange(320, dtype=torch.float32).reshape(80, 4)
    np.save(here / "x.npy", rows.numpy())
    np.save(here / "a b.npy", np.arange(80))
    np.save(here / "y.npy", np.arange(9))
    np.save(here / "none.npy", np.zeros((0, 4)))
    np.save(here / "complex.npy", np.zeros((80, 4), np.complex64))
    np.savez(here / "two.npz", v=np.arange(3), k=np.arange(3))
    (here / "nothing").touch()
    (here / "raw").write_bytes(bytes(40))
    memload.write(here / "set", {"x": rows}, progress=False)
    memload.write_part(here / "parts", {"x": rows}, part=0, parts=1)
    memload.open(here / "set").map(_twice).cache(here / "cached", progress=False)
    (here / "train.py").write_text("from torch.utils.data import DataLoader\nloader = DataLoader(data)\n")
    return here


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """A copy of that folder as working directory."""
    monkeypatch.setattr(measure, "_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(measure, "_COPY_SECONDS", 0.01)
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _twice(row):
    return {"x": row["x"] * 2}


JSON = {
    "init": (["train.py"], {"script", "findings", "patch", "written"}),
    "doctor": ([], {"facts"}),
    "bench": (["set", "--rounds", "1", "--batch-size", "8"], {"machine", "lines", "all_fields", "memcpy"}),
    "write": (["x.npy", "made"], {"path", "rows", "nbytes", "fields"}),
    "seal": (["parts"], {"path", "rows", "nbytes", "fields"}),
    "info": (["set"], {"paths", "rows", "fields", "files", "advice"}),
    "plan": (["set", "--ram", "4GB"], {"fits", "ram", "stock", "gpu", "disk", "mem", "notes", "ways_out"}),
    "monitor": ([str(os.getpid()), "--count", "1"], {"pid", "command", "ended", "summary"}),
    "cache list": (["cached"], {"path", "entries"}),
    "cache rm": (["cached", "--all"], {"path", "removed"}),
    "verify": (["set"], {"path", "agrees", "nbytes", "damages"}),
    "completion": (["bash"], {"shell", "script"}),
}


def test_the_table_of_this_test_has_every_command():
    others = set(COMMANDS) - {words.split()[0] for words in JSON}
    assert others == {"demo"}  # which takes seconds, and has its own in test_demo.py


@pytest.mark.parametrize("command", JSON)
def test_every_command_has_json_on_standard_output_alone(command, folder, capsys):
    arguments, keys = JSON[command]
    assert main([*command.split(), *arguments, "--json"]) == 0
    said = capsys.readouterr().out
    assert keys <= set(json.loads(said.splitlines()[-1] if command == "monitor" else said))
    if command not in ("bench", "write", "seal", "cache rm"):
        assert main([*command.split(), *arguments, "--json", "kept.json"]) == 0
        assert capsys.readouterr().out.strip()
        assert keys <= set(json.loads((folder / "kept.json").read_text()))


def test_a_removal_of_nothing_says_so(folder, capsys):
    assert main(["cache", "rm", "cached", "--all"]) == 0
    assert capsys.readouterr().out.startswith("removed ")
    assert main(["cache", "rm", "cached", "--all"]) == 0
    assert capsys.readouterr().out == "cached: there is nothing to remove\n"


def test_json_does_not_take_a_path_for_its_file(folder, capsys):
    assert main(["info", "--json", "set"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 80
    assert main(["info", "--json=here", "set"]) == 0
    assert json.loads((folder / "here").read_text())["rows"] == 80


def test_json_of_what_differs_and_of_what_does_not_fit_keeps_the_exit_status(folder, capsys):
    (shard,) = (folder / "set").glob("*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert main(["verify", "set", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["agrees"] is False
    assert found["damages"][0]["field"] == "x"
    assert main(["plan", "--rows", "1000", "--field", "x:float32:1000000", "--ram", "1MB", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["fits"] is False


def test_arrays_that_form_no_dataset_are_told_one_by_one(folder, capsys):
    np.savez("several.npz", one=np.zeros((5, 2)), other=np.float64(1))
    assert main(["info", "several.npz", "--json"]) == 0
    arrays = json.loads(capsys.readouterr().out)["arrays"]
    assert arrays["one"]["rows"] == 5
    assert "single number" in arrays["other"]["unfit"]


def test_values_become_what_json_has():
    made = plain({1: np.int64(2), "dtype": torch.uint8, "rows": np.arange(2), "rate": np.float32("inf"), "none": None})
    assert made == {"1": 2, "dtype": "torch.uint8", "rows": [0, 1], "rate": None, "none": None}


# Errors

WRONG = [
    (["wirte", "x", "y"], "invalid choice: 'wirte'", "did you mean write?"),
    (["plan", "set", "--bacth-size", "3"], "unrecognized arguments: --bacth-size 3", "did you mean --batch-size?"),
    (["write", "x.npy", "s", "--maks", "m.npy"], "unrecognized arguments: --maks", "did you mean --mask"),
    (["bench", "--rounds", "many"], "argument --rounds: expected a whole number, got 'many'", "`memload bench --help`"),
    (["verify"], "the following arguments are required: path", "`memload verify --help` lists what it takes."),
    (["info", "set", "--json=nowhere/x"], "--json nowhere/x: there is no folder", "nowhere"),
    (["info", "no_such.npy"], "no_such.npy: there is nothing at this path", "; give a path that exists"),
    (["write", "x.npy"], "expected what to convert and the directory to make", "memload write [options]"),
    (["write"], "expected what to convert and the directory to make", "memload write [options]"),
    (["verify", "x.npy"], "x.npy", "memload"),
    (["seal", "set2"], "set2", "part"),
    (["monitor", "999999999"], "there is no process 999999999", "`pgrep -af python` lists"),
    (["monitor", "1", "--count", "0"], "--count is a whole number from 1, not 0", "from 1"),
    (["monitor", "1", "--interval", "x"], "--interval: expected a number, got 'x'", "`memload monitor --help`"),
    (["monitor", "--plot", "nowhere"], "nowhere: there is nothing at this path", "expected the log of memload.Monitor"),
    (["cache", "list", "nowhere"], "nowhere: there is nothing at this path", "expected the folder that cache() was"),
    (["cache", "list", "x.npy"], "x.npy: a file", "expected the folder that cache() was"),
    (["plan", "x.npy", "--gpu", "RTX 9"], "did you mean RTX 5090", "`memload plan --help` lists all names"),
    (["write", "x.npy", "o", "--mask", "nowhere"], "nowhere: there is nothing at this path", "bool array of a mask"),
    (["write", "x.npy", "o", "--mask", "set"], "set: a folder", "expected a .npy file with the bool array of a mask"),
    (["write", "x.npy", "o", "--mask", "raw"], "raw: not a .npy file of numbers; expected", "array of a mask"),
    (["write", "x.npy", "o", "--rows", "no.npy"], "no.npy: there is nothing at this path", "with row numbers, or"),
    (["write", "x.npy", "o", "--on", "k"], "--on finds rows of further sources, and there is one: data", "further"),
    (
        ["write", "x.npy", "a b.npy", "o", "--on", "k"],
        "these have one name, data",
        "name each, as in `memload write x=x.npy 'a_b=a b.npy' o --on k`",
    ),
    (
        ["write", "two.npz", "two.npz", "o", "--on", "k"],
        "these have one name, v and k",
        "and join them by memload.join",
    ),
    (["init", "x.npy"], "x.npy", "not a Python script"),
    (["init", "nowhere.py"], "nowhere.py", "give the path of the script"),
    (["init", "train.py", "--write", "no/x.py"], "--write no/x.py: there is no folder", "make it first"),
    (
        ["plan", "x.npy", "--plot", "x.png", "--log", "no"],
        "no: there is nothing",
        "expected the log of memload.Monitor",
    ),
    (["plan", "x.npy", "--depth", "0"], "--depth must be an int from 1 to 1024, got 0", "left out, memload chooses it"),
    (["write", "x.npy", "o", "--mask", "no=x.npy"], "--mask names 'no', which is no field", "there are data"),
    (["init", "."], "a folder", "give "),
    (["cache", "rm", "cached"], "name the entries to remove", "--all"),
    (["plan"], "give a path", "--rows and --field"),
    (["plan", "x.npy", "--plot", "nowhere/x.png"], "--plot nowhere/x.png: there is no folder", "make it"),
    (["bench", ""], "memload bench: the path is empty", "the current folder is '.'"),
    (["verify", ""], "memload verify: the path is empty", "the current folder is '.'"),
    (["write", "x.npy", "made", "--rows", "80:"], "--rows 80: is none of the 80 rows", "which count from 0"),
    (["write", "x.npy", "made", "--shard-bytes", "huge"], "--shard-bytes: not a size: 'huge'", '"512MB"'),
    (["write", "x.npy", "made", "--part", "9/3"], "--part must be from 0 to 2 for 3 parts, got 9", "count from 0"),
    (["plan", "x.npy", "--ram", "lots"], "--ram: not a size: 'lots'", '"64 MiB"'),
    (["plan", "x.npy", "--cache-bytes", "lots"], "--cache-bytes: not a size: 'lots'", '"64 MiB"'),
    (["plan", "--rows", "0", "--field", "x:int8:1"], "--rows is a whole number from 1, not 0", "from 1"),
    (["plan", "x.npy", "--batch-size", "-3"], "--batch-size is a whole number from 1, not -3", "from 1"),
    (["monitor", "1", "--interval", "0"], "--interval is a number of seconds above 0", "above 0, not 0"),
    (["doctor", "--folder", "x.npy"], "--folder x.npy: no such folder", "name one that is there"),
    (["seal", "."], "no parts of a set are here", "`memload write --part`"),
    (["plan", "x.npy", "--plot", "x.docx"], "--plot x.docx: an image ends in .png", "that matplotlib writes"),
    (["monitor", "--plot", "m.jsonl", "--out", "x.svg"], "--out x.svg: the plot is a PNG", "end its name in .png"),
    (
        ["info", "raw", "--dtype", "int8", "--shape", "7"],
        "raw: the file has 40 bytes",
        "5 bytes; check --dtype, --shape (of one row) and",
    ),
    (["write", "x.npy", "a b.npy", "o"], "in dataset 1", "name each: `memload write x=x.npy 'a_b=a b.npy' o`"),
    (["write", "x.npy", "y.npy", "o"], "x.npy has 80 rows, y.npy has 9 rows", "write each into a set of its own"),
    (["write", "x=x.npy", "y=y.npy", "o"], "x has 80 rows, y has 9 rows", "into a set of its own, or give --on FIELD"),
    (["info", "x.npy", "a b.npy"], "in dataset 1", "name each: `memload write x=x.npy 'a_b=a b.npy' DST`"),
    (["bench", "none.npy"], "none.npy: it has no rows", "give a path that has some"),
    (["write", "--images", "sett", "o"], "sett: there is nothing at this path", "'set'; give a folder of JPEG or PNG"),
    (["info", "x.npy", "--plot", ""], "--plot .: a folder", "give the name of a file"),
    (["info", "x.npy", "--json=set"], "--json set: a folder", "give the name of a file"),
    (["write", "x.npy", "o", "--rows", "x.npy"], "--rows x.npy: expected row numbers", "in one dimension; got float32"),
    (["write", "x.npy", "o", "--mask", "complex.npy"], "the mask complex.npy is complex64", "expected a bool array"),
    (["plan", "x.npy", "--batch-size", "set=3"], "--batch-size is given by data set, for set, and", "leave names out"),
    (["plan", "x.npy", "--rows", "5"], "--rows: of a dataset that does not exist yet", "leave it out, or the path"),
    (["plan", "--rows", "5", "--field", "x"], "--field: expected NAME:DTYPE:SHAPE", "such as stim:uint8:425,425,3"),
    (["plan", "--rows", "5", "--field", "x:intt:3"], "got 'x:intt:3'; not a dtype: 'intt'", "known are bfloat16"),
    (["demo", "--folder", "nowhere"], "--folder nowhere: no such folder", "name one that is there"),
    (["monitor", "1", "--out", "x.png"], "--out x.png: where the plot of --plot LOG goes", "which is not given"),
    (["info", "parts"], "parts of a set are here", "which `memload seal`, or memload.seal, makes one set of"),
    (["info", "nothing"], "nothing: an empty file", "get it again, or write it anew"),
    (
        ["info", "raw", "--dtype", "int8", "--shape", "-1"],
        "raw: --shape and --offset must be counts",
        "got (-1,) and 0",
    ),
    (["write", "--images", "s3://box/x", "o"], "s3://box/x: images are read from a folder", "copy them to one"),
    (["write", "--images", ".", "o", "--size", "20,24"], "--size: expected a number of pixels", "as in 480x640"),
    (["info", "raw", "--dtype", "int8", "--shape", "8x5"], "--shape: expected sides", "such as 425,425,3"),
    (["plan", "--rows", "9", "--field", "x:int8:8x5"], "--field: expected NAME:DTYPE:SHAPE", "stim:uint8:425,425,3"),
    (["cache", "rm", ".", "--all"], ".: no cache, but a folder with other content", "give the folder that cache()"),
    (["cache", "list", "s3://box/x"], "s3://box/x: a cache lies on a disk", "give its folder"),
    (["write", "--images", "x.npy", "o"], "x.npy: a file", "give the folder that has the images"),
    (["info", "x.npy", "--plot", "nowhere/x.png"], "--plot nowhere/x.png: there is no folder", "make it"),
]


@pytest.mark.parametrize(("arguments", "what", "step"), WRONG, ids=[" ".join(one[0]) for one in WRONG])
def test_an_error_is_one_line_with_the_next_step(folder, capsys, arguments, what, step):
    try:
        status = main(arguments)
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    assert status == 2
    assert said.err.count("\n") == 1, said.err
    assert what in said.err
    assert step in said.err
    assert said.out == ""


@pytest.mark.parametrize("command", ["info", "plan", "bench", "monitor --plot", "cache list", "verify", "write"])
def test_the_error_of_a_file_that_opens_and_cannot_be_read_names_it(command, folder, capsys):
    target = {"write": ["made"], "monitor --plot": ["--out", "made.png"]}.get(command, [])
    assert main([*command.split(), "/proc/self/mem", *target]) == 2
    assert capsys.readouterr().err.startswith("memload: /proc/self/mem: ")


_WITHOUT_RIGHTS = """
import os, sys
import memload.cli.info, memload.cli.verify
from memload.cli.main import main
os.seteuid(65534)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user who may not read")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["verify", "set"], "set/shard-00000.safetensors: Permission denied; give a path that you may read and write"),
        (["info", "x.npy", "--json=shut/x"], "--json shut/x: this process may not write to"),
    ],
)
def test_what_may_not_be_read_or_written_is_said_at_once(folder, arguments, said):
    for part in (folder, *folder.parents[:2]):
        part.chmod(0o755)
    (folder / "set" / "shard-00000.safetensors").chmod(0)
    (folder / "shut").mkdir()
    (folder / "shut").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_RIGHTS, *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith(f"memload: {said}")


def test_an_error_of_the_system_without_a_file_says_how_to_find_it():
    said = command_line._one_line(OSError(22, "Invalid argument"), "info")
    assert said == "Invalid argument; `memload --traceback info ...` shows where"


WORDS = [
    ("pick some by key=[...]", "pick some by --key"),
    ("key=['a', 'b']", "--key a --key b"),
    ("cast={'x': 'bfloat16', 'y': 0.5}", "--cast x=bfloat16 --cast y=0.5"),
    ("dtype= and shape=(8, 8) stated", "--dtype and --shape 8,8 stated"),
    ('tier="ram" takes 10 TB', "--tier ram takes 10 TB"),
    (
        "size=(480, 640) is the most frequent, size=96 makes squares",
        "--size 480x640 is the most frequent, --size 96 makes squares",
    ),
    ("skip_damaged=True leaves them out", "--skip-damaged leaves them out"),
    ("mask_suffix='_m': 3", "--mask-suffix _m: 3"),
    ("tier is one of 'mmap', 'direct'; got 'attic'", "--tier is one of 'mmap', 'direct'; got 'attic'"),
    ("call memload.open(path, key='x')", "call memload.open(path, key='x')"),
    ("no_option=3, x.key=3, key==3", "no_option=3, x.key=3, key==3"),
    ("/data/shape=3/x.npy, shape=3/x.npy, key=4.npy", "/data/shape=3/x.npy, shape=3/x.npy, key=4.npy"),
]


@pytest.mark.parametrize(("python", "options"), WORDS, ids=[one[0] for one in WORDS])
def test_arguments_of_python_become_options(python, options):
    known = ["--key", "--size", "--cast", "--dtype", "--shape", "--tier", "--skip-damaged", "--mask-suffix", "--append"]
    assert in_options(python, known, ["info", "key=4.npy"]) == options


def test_the_sizes_that_an_error_offers_are_spelled_as_the_option_takes_them(tmp_path, capsys):
    pillow = pytest.importorskip("PIL.Image")
    for name, size in (("a", (24, 20)), ("b", (24, 20)), ("c", (9, 9))):
        pillow.new("L", size).save(tmp_path / f"{name}.png")
    words = ["write", "--images", str(tmp_path), str(tmp_path / "made"), "--quiet"]
    assert main(words) == 2
    offered = re.findall(r"--size \S+", capsys.readouterr().err)
    assert offered == ["--size 20", "--size 20x24"]
    assert main([*words, *offered[1].split()]) == 0


def test_every_command_speaks_of_its_own_options(folder, capsys):
    np.savez("several.npz", one=np.zeros((5, 2)), other=np.zeros((3, 2)))
    for command in (["plan", "several.npz"], ["write", "several.npz", "made"]):
        assert main(command) == 2
        assert capsys.readouterr().err.endswith("; pick those that belong together by --key\n")
    assert main(["write", "x.npy", "set"]) == 2
    said = "exists already (a complete set: memload.open reads it, and --append adds more rows to it)"
    assert said in capsys.readouterr().err


def test_a_cast_without_a_name_names_the_fields_that_exist(folder, capsys):
    np.save("pixels.npy", np.zeros((5, 2), np.uint8))
    for command, dtype in ((["write", "pixels.npy", "made"], "bfloat16"), (["plan", "pixels.npy"], "bf16")):
        assert main([*command, "--cast", "bf16"]) == 2
        said = capsys.readouterr().err
        assert said.startswith("memload: --cast without a name is for floating fields, and no field is: name it, as in")
        assert f"--cast data={dtype}; the fields are data" in said


@pytest.mark.parametrize("command", ["plan set", "bench set", "info set", "monitor --plot"])
def test_a_plot_without_matplotlib_is_refused_before_any_work(command, folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    words = [*command.split(), "mem.jsonl"] if command.startswith("monitor") else [*command.split(), "--plot", "x.png"]
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == 'memload: plots need matplotlib: pip install "memload[monitor]"\n'


def test_an_error_that_nobody_foresaw_is_one_line_and_a_traceback_if_asked_for(monkeypatch, capsys):
    def fail(options):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("memload.cli.doctor.run", fail)
    assert main(["doctor"]) == 2
    expected = "memload: RuntimeError: first line second line; `memload --traceback doctor ...` shows where\n"
    assert capsys.readouterr().err == expected
    with pytest.raises(RuntimeError, match="first line"):
        main(["--traceback", "doctor"])


def test_a_disk_that_is_full_says_what_to_do():
    said = command_line._one_line(OSError(28, "No space left on device", "shards/a"), "write")
    assert said == "shards/a: No space left on device; free some space, or name a folder on another disk"
    with open("/dev/full", "w") as full:  # noqa: PTH123 - the standard output of a shell
        done = subprocess.run(_COMMAND, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    said = "No space left on device; free some space, or name a folder on another disk"
    assert (done.returncode, done.stderr) == (2, f"memload: {said}\n")


def test_an_output_that_was_closed_before_is_no_error():
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *_COMMAND], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


_COMMAND = [sys.executable, "-m", "memload", "completion", "bash"]


# Completion


def complete(script, *words):
    """Return what bash offers for the last word."""
    program = f"{script}\nCOMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}\n"
    program += 'f=$(complete -p memload | sed -E "s/.*-F ([^ ]+).*/\\1/"); COMPREPLY=(); $f\n'
    program += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "--norc", "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_fish_gets_commands_choices_files_and_folders(capsys):
    assert main(["completion", "fish"]) == 0
    script = capsys.readouterr().out
    for name, one in COMMANDS.items():
        (line,) = [line for line in script.splitlines() if f" -a {name} -d " in line]
        assert line.startswith(f"complete -c memload -n 'not __fish_seen_subcommand_from {' '.join(COMMANDS)}'"), one
    of_write = "complete -c memload -n '__fish_seen_subcommand_from write'"
    assert f"{of_write} -l fit -x -a 'stretch crop pad' -d " in script
    assert f"{of_write} -l images -x -a '(__fish_complete_directories)' -d " in script
    assert f"{of_write} -l mask -r -F -d " in script
    assert f"{of_write} -l anew -d " in script
    assert f"{of_write} -F -d " in script
    inner = "__fish_seen_subcommand_from cache; and __fish_seen_subcommand_from rm"
    assert f"complete -c memload -n '{inner}' -l unfinished -d 'those that were interrupted'" in script


@pytest.mark.skipif(shutil.which("fish") is None, reason="completion is tried in fish")
def test_fish_offers_what_the_parsers_take(folder, capsys):
    assert main(["completion", "fish"]) == 0
    (folder / "memload.fish").write_text(capsys.readouterr().out)

    def offered(line):
        program = f"source memload.fish; complete -C '{line}'"
        done = subprocess.run(["fish", "--no-config", "-c", program], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return {one.partition("\t")[0] for one in done.stdout.splitlines()}

    assert offered("memload ") == set(COMMANDS)
    assert offered("memload cache ") == {"list", "rm"}
    assert offered("memload cache rm --un") == {"--unfinished"}
    assert offered("memload completion ") == {"bash", "zsh", "fish", "tcsh"}
    assert {"set/", "x.npy"} <= offered("memload info ")
    assert "x.npy" not in offered("memload write --images ")


@pytest.mark.skipif(shutil.which("bash") is None, reason="completion is tried in bash")
def test_bash_completes_commands_options_and_files(folder, capsys):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert {"plan", "init", "doctor"} <= complete(script, "memload", "")
    assert complete(script, "memload", "pl") == {"plan"}
    assert complete(script, "memload", "plan", "--mea") == {"--measure"}
    assert "train.py" in complete(script, "memload", "init", "tr")


def test_completion_without_its_generator_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "zsh"]) == 2
    assert 'pip install "memload[completion]"' in capsys.readouterr().err


def test_files_are_completed_where_arguments_are_paths():
    named = {action.dest for action in completion._actions(command_line.parser())}
    assert named >= completion._FILES
    assert named >= completion._FOLDERS
