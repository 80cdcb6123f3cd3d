"""What `symmem doctor` asks of a Python: prints one line of JSON. Imports nothing that is slow; torch is only looked for."""

import importlib.metadata
import importlib.util
import json
import os
import re
import sys


def version(name):
    try:
        return importlib.metadata.version(name)
    except Exception:
        return None


def torch_version():
    """torch's version and its CUDA, by its file: an import takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return None, None
    try:
        with open(os.path.join(os.path.dirname(spec.origin), "version.py"), encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return version("torch"), None
    found = re.search(r"__version__ = '([^']+)'", text)
    cuda = re.search(r"^cuda: .*= '([^']+)'", text, re.MULTILINE)
    return found.group(1) if found else version("torch"), cuda.group(1) if cuda else None


def symmem_version():
    """The version of the package that an import finds, and why it cannot be imported."""
    if importlib.util.find_spec("symmem") is None:
        return None, None
    try:
        import symmem

        return symmem.__version__, None
    except BaseException as error:
        return version("symmem"), f"{type(error).__name__}: {error}"


def backends():
    try:
        return [point.name for point in importlib.metadata.entry_points(group="torch.backends")]
    except Exception:
        return []


torch, cuda = torch_version()
symmem, problem = symmem_version()
print(
    json.dumps(
        {
            "python": sys.version.split()[0],
            "file": sys.executable,
            "numpy": version("numpy"),
            "ml_dtypes": version("ml_dtypes"),
            "cloudpickle": version("cloudpickle"),
            "torch": torch,
            "cuda": cuda,
            "backends": backends(),
            "symmem": symmem,
            "problem": problem,
        }
    )
)
