"""Makes a CUDA build of torch importable without CUDA, for what runs on the CPU alone (Gloo, shared memory).

    VENV/bin/python torch_stub.py

Every library that torch's own libraries want and that is not there is made: it has the wanted symbols, and each
of them aborts when called. The CUDA runtime itself must be real (torch asks it at import how many devices exist).
"""

import collections
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile

# Never made: part of the system, or real.
REAL = re.compile(r"^(lib(c|m|dl|pthread|rt|gcc_s|stdc\+\+|gomp|cudart)\.so|ld-linux)")
# Loaded by torch only when it is asked for a device; a stub could mislead who looks for a driver.
NOT_NEEDED = re.compile(r"^lib(cuda|nvrtc|cusolver)\.so")
# Symbols without a version are told apart by how they begin; the longer beginning comes first.
FAMILIES = "cudnn cublasLt cublas cufft curand cusparseLt cusparse cusolver nccl cuFile cupti nvshmem".split()


def readelf(option, library):
    command = ["readelf", "-W", option, str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


class Needs:
    """What a set of libraries wants from others."""

    def __init__(self, libraries):
        self.libraries = set()
        self.defined = set()
        self.undefined = collections.defaultdict(set)
        self.home_of_version = {}
        for library in libraries:
            self.read(library)

    def read(self, library):
        self.libraries |= {m[1] for line in readelf("-d", library) if (m := re.search(r"NEEDED.*\[(.+?)\]", line))}
        home = None
        for line in readelf("-V", library):
            if found := re.search(r"File: (\S+)", line):
                home = found[1]
            if home and (found := re.search(r"Name: (\S+)\s+Flags", line)):
                self.home_of_version.setdefault(found[1], home)
        for line in readelf("--dyn-syms", library):
            fields = line.split()
            if len(fields) < 8 or not fields[0].endswith(":"):
                continue
            name, _, version = fields[7].partition("@")
            if fields[6] == "UND":
                self.undefined[name].add(version.lstrip("@"))
            else:
                self.defined.add(name)


def home_of(name, version, needs, missing):
    """The missing library that should hold the symbol, if any."""
    if version:
        home = needs.home_of_version.get(version)
        return home if home in missing else None
    if name in needs.defined:
        return None
    family = next((family for family in FAMILIES if name.startswith(family)), None)
    library_of_family = re.compile(rf"lib{family}(_\w+)?\.so", re.IGNORECASE)
    return next((library for library in missing if library_of_family.match(library)), None)


def make(folder, library, symbols):
    """Compiles a library whose every function aborts; `symbols` maps a version to names."""
    names = sorted({name for names in symbols.values() for name in names})
    source = "#include <stdlib.h>\n" + "".join(f"void {name}(void) {{ abort(); }}\n" for name in names)
    versions = "".join(
        f"{version} {{ global: {'; '.join(sorted(names))}; }};\n" for version, names in symbols.items() if version
    )
    with tempfile.TemporaryDirectory() as build:
        code, script = pathlib.Path(build, "stub.c"), pathlib.Path(build, "versions")
        code.write_text(source)
        script.write_text(versions)
        command = ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", str(code), "-o", str(folder / library)]
        command += [f"-Wl,-soname,{library}"] + ([f"-Wl,--version-script={script}"] if versions else [])
        subprocess.run(command, check=True)


def main():
    torch = importlib.util.find_spec("torch")
    if torch is None:
        sys.exit("this Python has no torch")
    folder = pathlib.Path(torch.origin).parent / "lib"
    present = [path for path in folder.glob("*.so*") if path.is_file() and not path.is_symlink()]
    needs = Needs(present)
    missing = {name for name in needs.libraries if not (folder / name).exists() and not REAL.match(name)}
    symbols = collections.defaultdict(lambda: collections.defaultdict(set))
    for name, versions in needs.undefined.items():
        for version in versions:
            if home := home_of(name, version, needs, missing):
                symbols[home][version].add(name)
    for library in sorted(missing):
        if not NOT_NEEDED.match(library):
            make(folder, library, symbols[library])


if __name__ == "__main__":
    main()
