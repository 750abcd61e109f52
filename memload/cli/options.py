"""The arguments of each command. Nothing here imports torch, so `memload --help` answers at once."""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from memload.cli.write_options import add_decoded, add_images
from memload.engine.tiers.tier import Tier
from memload.planning.gpus import GPUS
from memload.planning.precisions import PRECISIONS, STRATEGIES, WEIGHTS, full_name
from memload.sizes import parse_size

SHELLS = ("bash", "zsh", "fish", "tcsh")

DEMO_CROPS = 1024
DEMO_ROUNDS = 3

WRITE_USAGE = """\
memload write [options] [NAME=]SRC... DST
       memload write --images DIR [--masks DIR] [--size N] [options] DST"""

_WRITE_DESCRIPTION = """\
Convert files into a set of shards, a directory that memload reads fastest and any safetensors tool reads, too.

Each SRC is whatever `memload info` opens. Sources with the same name are concatenated; sources with different names
become fields side by side: by --on, row by row with the same keys; else in their order, equally many rows. NAME= names
the field of a source that has only one beside its keys; the fields of a source of several keep their names. {name} or
{name:d} in a pattern gives each row what its file's name has there, as one more field: a text, or a number.
Runs of NIfTI files (.nii, .nii.gz, folders of BIDS) and videos are decoded, and become recordings.
Images (--images) are decoded, and become the fields image, mask, those of --labels, file, and those of --table.

An interrupted conversion leaves nothing that opens; the same command resumes it, after verifying what is complete.
Any other command starts over.

With --part, many processes share the work, such as those of a Slurm array: --part 0/16 to --part 15/16, in any order
and on any machines that share the file system of DST, which may be an address such as s3://bucket/set. `memload seal
DST` then makes one set of the parts.
"""

_WRITE_EXAMPLES = """\
examples:
  memload write betas.npy shards/
  memload write stim=stimuli.npy robs=responses.npy --cast robs=bfloat16 shards/
  memload write session01.hdf5 session02.hdf5 --key betas --mask roi.npy --scale 1/300 --cast bfloat16 shards/
  memload write "betas_session{session:d}.hdf5" --key betas --row-field trial shards/
  memload write betas="betas{session:d}.npy" shown="shown{session:d}.npy" --row-field trial --on session,trial shards/
  memload write betas.npy shards/ --part "$SLURM_ARRAY_TASK_ID/16"
  memload write session.mat --key rates --key angle --axis rates=-1 shards/
  memload write movie.raw --dtype uint8 --shape 425,425,3 --rows 0:1000 shards/
  memload write ds000114/ runs/ --mask gray_matter.nii.gz --cast float32
  memload write derivatives/fmriprep/ runs/ --mask "*_desc-brain_mask.nii.gz" --raw ds000114/ --cast float32
  memload write movies/*.mp4 clips/ --size 144x256 --rate 30 --mode L
  memload write --images photos/ --masks masks/ --labels prompts.csv --size 1024 shards/
  memload write --images photos/ --table metadata.jsonl --size 512 --fit pad --pad-value 255 shards/
"""

_INIT_DESCRIPTION = """\
Read a training script, and say line by line what to change for memload.FastLoader, and which loaders will be native.

The script is parsed, not run and not imported. Safe changes are those after which the script does the same: the import,
and FastLoader in the place of DataLoader. The rest is advice, with the code to write.
"""

_INIT_EXAMPLES = """\
examples:
  memload init train.py
  memload init train.py --diff | patch train.py
  memload init train.py --write train_memload.py
"""

_COMPLETION_EXAMPLES = """\
how to install it (once; the extra memload[completion] brings the generator):
  memload completion bash > ~/.local/share/bash-completion/completions/memload
  memload completion zsh > "${fpath[1]}/_memload"
  memload completion fish > ~/.config/fish/completions/memload.fish      (without the extra, too)
  memload completion tcsh > ~/.memload.tcsh      and: source ~/.memload.tcsh
"""

_PLAN_EXAMPLES = """\
examples:
  memload plan shards/ --batch-size 64 --tier auto
  memload plan mouse/ monkey/ --tier mouse=ram --tier monkey=hybrid --batch-size mouse=64 --batch-size monkey=16
  memload plan mouse/ monkey/ --mixed --tier auto --cast stim=float32,norm_removed --ram 64GB
  memload plan betas=betas.npy image=stimuli.npy --cast image=float32,norm_removed
  memload plan --rows 30000 --field betas:float32:150,150,100 --ram 64GB --disk 1TB

"""
_NAMES = ", ".join(model.name.replace(" ", "\xa0") for model in GPUS)  # lines are not broken in a name
_GPU_NAMES = fill(f"names of GPUs: {_NAMES}", 100, subsequent_indent="  ").replace("\xa0", " ")


def demo(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `memload demo`."""
    parser.description = (
        "Feed real photographs, or without the extra `demo` drawn pictures, through the stock DataLoader and through "
        "FastLoader, and compare."
    )
    parser.add_argument("--crops", type=int, default=DEMO_CROPS, help="crops of 425 x 425 x 3 (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=DEMO_ROUNDS, help="rounds in turn (default %(default)s)")
    parser.add_argument("--no-compile", action="store_true", help="leave the stock loop's cast to eager torch")
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made (default: the system's)")
    _add_json(parser)


def doctor(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `memload doctor`."""
    parser.description = "Report what this machine has, and what that means for loading with memload."
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="the folder whose disk is examined"
    )
    _add_json(parser)


def init(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `memload init`."""
    parser.description, parser.epilog = _INIT_DESCRIPTION, _INIT_EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("script", type=Path, help="a Python file that makes a DataLoader; it is read, not run")
    parser.add_argument("--diff", action="store_true", help="print the changes that are safe as a patch, and no report")
    parser.add_argument("--write", type=Path, metavar="COPY", help="write the script with these changes to COPY")
    _add_json(parser)


def bench(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `memload bench`."""
    parser.description = "Measure the ceiling of this machine, and what FastLoader reaches of it."
    parser.add_argument("path", nargs="?", help="a dataset that memload opens (default: random images in memory)")
    parser.add_argument("--ceiling", action="store_true", help="the ceiling alone, without FastLoader")
    parser.add_argument("--batch-size", type=int, default=32, help="rows per batch (default %(default)s)")
    parser.add_argument("--threads", type=int, help="threads that gather (default: the CPUs of this process)")
    parser.add_argument("--isa", default="", help="instruction set of the ceiling (default: the best)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in turn (default %(default)s)")
    parser.add_argument("--size", type=int, default=512, help="MB of random images (default %(default)s)")
    _add_json(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them; the ending is the format, .png if none")
    parser.add_argument("--report", type=Path, metavar="FILE", help="an HTML page of it all, to send to somebody")
    _add_source(parser.add_argument_group("how to open it"))


def write(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `memload write`."""
    parser.usage, parser.description, parser.epilog = WRITE_USAGE, _WRITE_DESCRIPTION, _WRITE_EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("paths", nargs="*", metavar="PATH", help="what to convert, and last the directory to make")
    _add_conversions(parser.add_argument_group("conversions, in this order"))
    opening = parser.add_argument_group("how to open the sources")
    _add_source(opening)
    opening.add_argument(
        "--axis",
        action="append",
        metavar="[NAME=]N",
        help="the axis of a MATLAB file's variables that counts the rows, such as -1 for the last (default: the first; "
        "of a vector, its own)",
    )
    _add_join(parser.add_argument_group("how to put sources with different names side by side"))
    add_images(parser.add_argument_group("images, instead of sources"))
    add_decoded(parser.add_argument_group("runs of NIfTI files and videos, which become recordings"))
    _add_target_options(parser.add_argument_group("how to write"))
    _add_json(parser)


def seal(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `memload seal`."""
    written = "the directory or address that `memload write --part`, or memload.write_part, wrote to"
    parser.add_argument("path", help=written)
    parser.add_argument("--parts", type=int, metavar="N", help="how many parts, if memload.write_part was not told")
    _add_json(parser)


def info(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `memload info`."""
    parser.add_argument("path", nargs="+", help="what memload.open takes; several are one dataset")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw bytes and reads of each field to FILE")
    _add_json(parser)
    _add_source(parser.add_argument_group("how to open it"))


def plan(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `memload plan`."""
    parser.epilog, parser.formatter_class = f"{_PLAN_EXAMPLES}{_GPU_NAMES}", argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "path",
        nargs="*",
        metavar="[NAME=]PATH",
        help="what memload.open takes. Several are one dataset if their rows are alike; else each is a data set, named "
        "by its file or folder, and all are planned together. NAME=PATH is a field, put side by side as by write",
    )
    _add_source(parser.add_argument_group("how to open it"))
    _add_join(parser.add_argument_group("how to put sources with different names side by side"))
    shape = parser.add_argument_group("a dataset that does not exist yet, instead of a path")
    shape.add_argument("--rows", type=int, help="how many")
    shape.add_argument("--field", action="append", metavar="NAME:DTYPE:SHAPE", help="such as stim:uint8:425,425,3")
    loader = parser.add_argument_group("how it is loaded")
    loader.add_argument("--mixed", action="store_true", help="one loader mixes the data sets, by group_collate")
    for option, metavar, text in (
        ("--batch-size", "[SET=]N", "rows per batch (default: 32), or those of one data set by its name"),
        ("--cast", "[[SET:]NAME=]DTYPE", "cast while gathering: a field, or all floating ones; DTYPE as for write"),
        ("--tier", "[SET=]TIER", f"where rows are kept: {', '.join(map(str, Tier))} (default: mapped)"),
        ("--ram-dtype", "[[SET:]NAME=]DTYPE", "cast once, by --tier ram: a field, or all floating ones"),
        ("--cache-bytes", "[SET=]SIZE", "what --tier hybrid may take, such as 40GB"),
    ):
        loader.add_argument(option, action="append", metavar=metavar, help=text)
    loader.add_argument("--device-bytes", metavar="SIZE", help="rows on the GPU by --tier split, such as 60GB")
    loader.add_argument("--device", help="cuda, if batches are to be on the GPU; cpu, if models train on the CPU")
    loader.add_argument("--no-shuffle", action="store_true", help="rows in order")
    for name, text in (
        ("depth", "batches gathered ahead"),
        ("threads", "threads that gather"),
        ("num-workers", "worker processes of the stock loader; threads of FastLoader"),
        ("prefetch-factor", "batches that each worker of the stock loader makes ahead; FastLoader's depth"),
    ):
        loader.add_argument(f"--{name}", type=int, help=text)
    loader.add_argument("--processes", type=int, help="on one machine, such as one for each GPU (default: 1)")
    loader.add_argument("--share-rows", action="store_true", help="each row on one of their GPUs, or once in RAM")
    _add_trained(parser.add_argument_group("what is trained on it"))
    machine = parser.add_argument_group("another machine (default: the free memory and disk here)")
    machine.add_argument("--ram", help="such as 64GB")
    machine.add_argument("--gpu", help="of one GPU, such as 80GB; or its name, such as H100 (all: see below)")
    machine.add_argument("--disk", help="such as 1.4TB")
    parser.add_argument(
        "--measure", type=int, metavar="N", help="load N batches here, and print the memory that they took"
    )
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the plan as bars beside what is free")
    parser.add_argument(
        "--beside",
        action="append",
        metavar="TIER",
        choices=[str(tier) for tier in Tier],
        help="with --plot: bars of the same plan on this tier as well; may be given several times",
    )
    parser.add_argument("--log", type=Path, help="with --plot: draw this log of a monitor over the plan")
    _add_json(parser)


def monitor(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `memload monitor`."""
    parser.add_argument("pid", nargs="?", type=int, metavar="PID", help="a process; its children are counted with it")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between samples (default 1)")
    parser.add_argument("--count", type=int, metavar="N", help="number of samples (default: until the process ends)")
    parser.add_argument("--plot", type=Path, metavar="LOG", help="draw the last run of this log instead")
    parser.add_argument("--out", type=Path, metavar="PNG", help="where the plot goes (default: beside the log)")
    _add_json(parser, "print a line of JSON for each sample at once; with a FILE, keep one document there")


def cache(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `memload cache`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|rm")
    listing = actions.add_parser("list", help="list the rows, size, date and function, or the address, of each entry")
    listing.add_argument("root", metavar="PATH", help="the directory that cache() was given, or memload.open as cache=")
    removal = actions.add_parser("rm", help="remove entries; processes that have one open keep it")
    removal.add_argument("root", metavar="PATH", help="the directory that cache() was given, or memload.open as cache=")
    removal.add_argument("names", nargs="*", metavar="NAME", help="entries as `list` names them, or how these begin")
    removal.add_argument("--all", action="store_true", help="all of them")
    removal.add_argument("--unfinished", action="store_true", help="those that were interrupted")
    _add_json(listing)
    _add_json(removal)


def verify(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `memload verify`."""
    parser.add_argument("path", help="a directory that memload write, or memload.write, made, or its address")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")
    _add_json(parser)


def completion(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `memload completion`."""
    parser.epilog, parser.formatter_class = _COMPLETION_EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument("shell", choices=SHELLS, help="the shell that completes")
    _add_json(parser)


_JSON = "print JSON instead of text; with a FILE, keep it there beside the text"


def _add_json(parser: argparse.ArgumentParser, text: str = _JSON) -> None:
    parser.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=Path("-"),
        metavar="FILE.json",
        help=text,
    )


def _add_source(group: Any) -> None:
    group.add_argument("--key", action="append", help="which array of a file that has several; may be repeated")
    group.add_argument("--dtype", help="dtype of the elements of a raw binary file")
    group.add_argument("--shape", help="shape of one row of a raw binary file, such as 425,425,3")
    group.add_argument("--offset", type=int, help="bytes before the first row of a raw binary file (default: 0)")
    group.add_argument("--row-field", metavar="NAME", help="add a field: which row of its file each row is, from 0")
    group.add_argument("--file-field", metavar="NAME", help="add a field: the path of the file that each row is in")
    group.add_argument("--trust", action="store_true", help="unpickle any class in a torch.save file; may run code")


def _add_trained(group: Any) -> None:
    group.add_argument(
        "--model",
        metavar="MODULE:CALLABLE",
        help="a function without arguments that makes the model, on the device meta",
    )
    group.add_argument(
        "--loss",
        metavar="MODULE:CALLABLE",
        help="called with model and batch, it returns the loss (default: the mean of what the model returns)",
    )
    group.add_argument("--optimizer", metavar="NAME", help="a class of torch.optim, such as AdamW, or MODULE:CLASS")
    group.add_argument(
        "--precision", type=full_name, choices=list(PRECISIONS), default="float32", help="(default float32)"
    )
    group.add_argument("--weights", choices=list(WEIGHTS), default="ram", help="how they reach a GPU (default ram)")
    group.add_argument("--accumulate", type=int, default=1, metavar="N", help="batches that make one step")
    group.add_argument("--strategy", choices=STRATEGIES, help="how the model is spread over ranks")
    group.add_argument("--world-size", type=int, metavar="N", help="ranks of all machines together")


def _add_conversions(group: Any) -> None:
    group.add_argument(
        "--rows",
        metavar="A:B",
        help="only these rows: 0:1000 or -100:, as Python slices, or a .npy file of row numbers or bools",
    )
    group.add_argument(
        "--mask",
        action="append",
        metavar="[NAME=]FILE",
        help="keep the elements of each row where the bool array of a .npy file is true; its shape is that of a row, "
        "or of its first axes. Of NIfTI files: a NIfTI file, RUN=FILE for each run, or a pattern in quotes that finds "
        "the mask of each, such as '*_desc-brain_mask.nii.gz'",
    )
    group.add_argument(
        "--scale",
        action="append",
        metavar="[NAME=]X",
        help="multiply by X, such as 0.5 or 1/300; the result is float32",
    )
    group.add_argument(
        "--cast",
        action="append",
        metavar="[NAME=]DTYPE",
        help="to bfloat16, float16, float32 or float64: all floating and scaled fields, or the one named. A uint8 "
        "field is cast only if named, and keeps its values; with DTYPE,norm_removed it becomes (x - 127) / 255",
    )


def _add_join(group: Any) -> None:
    group.add_argument(
        "--on",
        metavar="FIELD,...",
        help="find the rows of further sources by these fields, such as session,trial: each row of the first source "
        "has its partner in every other one",
    )
    group.add_argument(
        "--how",
        choices=("left", "inner", "exact"),
        help="left (default) allows rows of other sources that are not looked up; inner also allows rows of the first "
        "without a partner; exact allows neither",
    )


def _add_target_options(group: Any) -> None:
    group.add_argument("--shard-bytes", default="512MB", help="how large a shard may grow (default: %(default)s)")
    group.add_argument(
        "--codec",
        action="append",
        metavar="[NAME=]CODEC",
        help="compress: lz4, zstd or blosc2, with options as in zstd:9,shuffle=bit; auto takes a sample, and states "
        "ratio, decode rate and choice",
    )
    group.add_argument("--append", action="store_true", help="add shards to the set if it exists")
    group.add_argument(
        "--part",
        metavar="K/N",
        help="write only part K of N, from 0/N to N-1/N, each the next Nth of the rows; `memload seal` ends the set",
    )
    group.add_argument(
        "--anew", action="store_true", help="do not resume the same command, or keep the same part, after it was run"
    )
    group.add_argument("--quiet", action="store_true", help="show no progress bar")


def attached(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with values attached to options that argparse would read otherwise.

    It takes a word such as -5: for an option, and any word behind --json for its FILE, such as a path. A FILE behind a
    space has a name that ends in .json.

    Example:
        >>> attached(["--rows", "-5:", "--json", "shards/"])
        ['--rows=-5:', '--json=-', 'shards/']
    """
    found: list[str] = []
    for argument in arguments:
        if found and found[-1] in ("--rows", "--scale") and re.match(r"-[\d.:]", argument):
            found[-1] += f"={argument}"
        elif found and found[-1] == "--json=-" and argument.endswith(".json"):
            found[-1] = f"--json={argument}"
        else:
            found.append("--json=-" if argument == "--json" else argument)
    return found


def stated(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options for opening a source, as arguments of `memload.open`.

    Raises:
        ValueError: the shape is not one of whole numbers.
    """
    key = options.key[0] if options.key and len(options.key) == 1 else options.key
    shape = None if options.shape is None else _shape(options.shape)
    given = {"key": key, "dtype": options.dtype, "shape": shape, "offset": options.offset}
    given |= {"row_field": options.row_field, "file_field": options.file_field}
    trust = {"trust": True} if options.trust else {}
    return {name: value for name, value in given.items() if value is not None} | trust


def sized(text: str | None, option: str) -> str | None:
    """Return the value of an option that is a size, such as "512MB", unchanged. Raises ValueError if it is none."""
    if text is not None:
        try:
            parse_size(text)
        except ValueError as error:
            raise ValueError(f"{option}: {error}") from None
    return text


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(side) for side in text.split(",") if side)
    except ValueError:
        raise ValueError(f"--shape: expected sides such as 425,425,3, got {text!r}") from None
