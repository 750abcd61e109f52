"""The hooks of the documentation site, which mkdocs.yml names: pages that stand elsewhere or are generated, navigation.

    README.md, CHANGELOG.md          -> the home, the changes
    docs/design.md, its words        -> the glossary
    docs/README.md, its tables       -> the navigation: what is in an index stands in one place
    REFERENCE, the parsers of `cli`  -> an API reference made from docstrings, and one of the commands

The commands are asked for their help, so the memload that is importable must be built.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

# The public names by subject, each on one page of the reference; tests/project/test_site.py compares them with __all__.
REFERENCE = {
    "Loading": "FastLoader EngineOptions LoaderStats prepare accumulate Micro",
    "Datasets": "open open_matlab from_arrays from_hf Dataset MappedDataset Field concat GroupedDataset "
    "group_collate zip join Float32View",
    "Recordings": "recording open_recording open_nwb open_experanto open_temporaldata open_spikeglx open_nifti "
    "open_bids Recording Clock "
    "Spikes Intervals",
    "Ragged rows": "ragged Ragged Padded",
    "Graphs": "open_graphs from_graphs write_graphs GraphDataset GraphBatch graph_collate",
    "Casts and augmentation": "Cast Augment cast_stim",
    "Samplers": "WeightedSampler MixingSampler BudgetBatchSampler BlockShuffle",
    "Writing": "write ShardWriter write_part WrittenPart seal ShardSink Codec verify Damage write_images write_nifti "
    "write_videos score",
    "Tiers and devices": "Tier to_device offload Offloaded",
    "Planning": "plan Plan DatasetShape MemoryBudget StaticBytes compute_batch_size fit FitAdvice FitOption probe "
    "ProbeReport",
    "Monitoring": "Monitor Finding TensorBoardLog MLflowLog",
    "Errors and warnings": "MemloadError FormatError ShardFormatError DecodeError ChecksumError ShardReadError "
    "ShardWriteError DiskSpaceError MemorySpaceError ThreadLimitError WriterBusyError MemoryStopError DeviceError "
    "LayoutWarning MemoryWarning",
}

_FURTHER = [{"Commands": "reference/commands.md"}, {"Glossary": "glossary.md"}]


def on_config(config: Any) -> Any:
    """Set the navigation: the home, the sections of the index of pages, the reference, the changes."""
    index = (ROOT / "docs" / "README.md").read_text()
    config.nav = [
        {"memload": "index.md"},
        *sections(index),
        {"Reference": [*({title: page_of(title)} for title in REFERENCE), *_FURTHER]},
        {"Changes": "changes.md"},
    ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not files of docs/."""
    from mkdocs.structure.files import File

    for path, content in generated_pages().items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to the README, which is the home here."""
    return re.sub(r"\]\((?:\.\./)+README\.md", f"]({'../' * page.file.src_uri.count('/')}index.md", markdown)


def sections(index: str) -> list[dict[str, list[dict[str, str]]]]:
    """Return the navigation that an index of pages says: a section for each heading, the links of its tables in order.

    Example:
        >>> sections("## Training\\n\\n| page | x |\\n| --- | --- |\\n| [Casts](cast.md) | dtypes |\\n")
        [{'Training': [{'Casts': 'cast.md'}]}]
    """
    found = []
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        links = re.findall(r"\[([^\]]+)\]\(([^)#:]+\.md)\)", body)
        found.append({title.strip(): [{_named(text): path} for text, path in links]})
    return found


def generated_pages() -> dict[str, str]:
    """Return the pages that no file of docs/ holds, by their paths."""
    pages = {"index.md": _of_docs((ROOT / "README.md").read_text())}
    pages["changes.md"] = _of_docs((ROOT / "CHANGELOG.md").read_text())
    pages["glossary.md"] = "# Glossary\n" + (ROOT / "docs" / "design.md").read_text().partition("\n## Words\n")[2]
    for title, names in REFERENCE.items():
        pages[page_of(title)] = "\n".join([f"# {title}\n", *(f"::: memload.{name}\n" for name in names.split())])
    pages["reference/commands.md"] = _commands()
    return pages


def page_of(title: str) -> str:
    """Return the path of a page of the reference."""
    return f"reference/{title.lower().replace(' ', '-')}.md"


def _named(text: str) -> str:
    """Return the title of a link as the navigation shows it: plain text, with a capital."""
    plain = text.replace("`", "")
    return plain[0].upper() + plain[1:] if plain.islower() else plain


def _of_docs(markdown: str) -> str:
    """Return the text of a file beside docs/ with its links as pages of the site have them."""
    markdown = markdown.replace("](docs/README.md)", "](five-minutes.md)").replace("](docs/", "](")
    return markdown.replace("](CHANGELOG.md)", "](changes.md)")


def _commands() -> str:
    """Return the page with the help of each command, as the terminal shows it in 100 columns."""
    overview = _help()
    names = re.findall(r"^    ([a-z-]+)(?: |$)", overview, flags=re.MULTILINE)
    parts = ["# Commands\n", _block(overview)]
    parts += [f"## memload {name}\n\n{_block(_help(name))}" for name in names]
    return "\n".join(parts)


def _block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```\n"


def _help(*command: str) -> str:
    call = [sys.executable, "-P", "-m", "memload", *command, "--help"]
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(call, env=environment, capture_output=True, text=True, check=True).stdout
