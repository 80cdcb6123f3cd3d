"""`python -m symmem`: runs the program `symmem` that was installed with this package, in place of this process."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import NoReturn


def _places() -> Iterator[Path]:
    """Where the program may be, the surest first."""
    try:
        installed = files("symmem") or []
    except PackageNotFoundError:
        installed = []
    yield from (Path(str(file.locate())) for file in installed if file.name == "symmem")
    yield Path(sysconfig.get_path("scripts"), "symmem")
    yield Path(sys.executable).with_name("symmem")


def main() -> NoReturn:
    """Does not return."""
    for path in _places():
        if os.access(path, os.X_OK) and path.is_file():
            os.execv(path, [str(path), *sys.argv[1:]])
    sys.exit(
        "the program symmem was not installed with this package. Hint: `pip install .` in a checkout installs it, and "
        "`cargo run --release -- ...` runs it there"
    )


if __name__ == "__main__":
    main()
