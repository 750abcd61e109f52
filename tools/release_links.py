"""Gives the README and the package of a release absolute links: PyPI shows both, and knows no files beside them.

python tools/release_links.py https://github.com/someone/memload v0.2.0

rewrites README.md and pyproject.toml in place, in the checkout that sdist and wheels are then built from. Both files
keep relative links in the repository, so that they lead to the reader's own branch or fork there.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


def readme_of(text: str, address: str, tag: str) -> str:
    """Return the text of a README whose links to files beside it lead to those files in the repository at `tag`.

    Example:
        >>> readme_of("[pages](docs/README.md), ![speed](docs/speed.svg)", "https://h/me/x", "v1")
        '[pages](https://h/me/x/blob/v1/docs/README.md), ![speed](https://h/me/x/raw/v1/docs/speed.svg)'
    """
    return RELATIVE.sub(lambda link: f"{link[1]}[{link[2]}]({_to(link[3], link[1] == '!', address, tag)})", text)


def project_of(text: str, address: str, tag: str) -> str:
    """Return the text of a pyproject.toml with the table `project.urls`, before the table of scripts.

    Raises:
        ValueError: it has that table already, or none of scripts.
    """
    if "[project.urls]" in text:
        raise ValueError("pyproject.toml: [project.urls] is there already; run this once, in a fresh checkout")
    if text.count("\n[project.scripts]\n") != 1:
        raise ValueError("pyproject.toml: expected one table [project.scripts], before which [project.urls] belongs")
    urls = {
        "Source": address,
        "Documentation": _to("docs/README.md", False, address, tag),
        "Changelog": _to("CHANGELOG.md", False, address, tag),
        "Issues": f"{address}/issues",
    }
    table = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    return text.replace("\n[project.scripts]\n", f"\n[project.urls]\n{table}\n[project.scripts]\n")


def _to(path: str, shown: bool, address: str, tag: str) -> str:
    """The address of a file: of its page, or of its bytes where it is shown as an image."""
    return f"{address}/{'raw' if shown else 'blob'}/{tag}/{path}"


def main(address: str, tag: str) -> None:
    """Rewrite both files of this checkout."""
    changed = {name: of((ROOT / name).read_text(), address.rstrip("/"), tag) for name, of in REWRITTEN.items()}
    for name, text in changed.items():
        (ROOT / name).write_text(text)


REWRITTEN = {"pyproject.toml": project_of, "README.md": readme_of}

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} ADDRESS TAG, such as https://github.com/someone/memload v0.2.0")
    try:
        main(*sys.argv[1:])
    except ValueError as error:
        sys.exit(str(error))
