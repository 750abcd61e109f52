"""``python -m memload``: the same as the command ``memload``."""

import sys

from memload.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
