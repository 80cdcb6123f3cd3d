"""Compiles CUDA sources with the NVRTC of this Python environment.

    compile.py SOURCES OUT REQUEST...

A request is FILE:ARCH or FILE:ARCH:MACRO, FILE a path inside the folder SOURCES or an absolute one. Every *.cuh of SOURCES is there for it
to include. Leaves in OUT, for each request, NAME.ARCH.ptx, NAME.ARCH.log (what the compiler said) and, where ARCH is a real architecture,
NAME.ARCH.cubin, NAME being the last part of FILE.
"""

import ctypes
import multiprocessing
import os
import pathlib
import sys
import sysconfig

VERSION = (13, 0)


def library():
    root = pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    # The compiler looks for its builtins by name only: they must be there before it.
    (builtins,) = root.glob("*/lib/libnvrtc-builtins.so.*")
    ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(str(builtins.parent / f"libnvrtc.so.{VERSION[0]}"))
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    if (major.value, minor.value) != VERSION:
        sys.exit(f"NVRTC {VERSION} is wanted, {(major.value, minor.value)} is there")
    return nvrtc


def texts(values):
    return (ctypes.c_char_p * len(values))(*values)


def take(nvrtc, program, what):
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw[: size.value]


def compile_one(job):
    sources, out, request = job
    file, arch, *macros = request.split(":")
    nvrtc = library()
    headers = sorted(sources.glob("*.cuh"))
    program = ctypes.c_void_p()
    made = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program),
        (sources / file).read_bytes(),
        file.encode(),
        len(headers),
        texts([header.read_bytes() for header in headers]),
        texts([header.name.encode() for header in headers]),
    )
    if made != 0:
        return f"{file}: nvrtcCreateProgram gave {made}"
    options = [f"-arch={arch}", "--std=c++17", "--ftz=false", "--prec-div=true", "--fmad=false"]
    if arch.startswith("sm_"):
        options.append("--ptxas-options=-v")
    options += [f"-D{macro}" for macro in macros]
    code = nvrtc.nvrtcCompileProgram(program, len(options), texts([option.encode() for option in options]))
    log = take(nvrtc, program, "ProgramLog").rstrip(b"\0").decode()
    if code != 0:
        return f"{file} for {arch}: nvrtcCompileProgram gave {code}\n{log}"
    variant = ".recorded" if "SYMMEM_RECORDED" in macros else ""
    stem = out / f"{pathlib.Path(file).name}.{arch}{variant}"
    pathlib.Path(f"{stem}.log").write_text(log)
    pathlib.Path(f"{stem}.ptx").write_bytes(take(nvrtc, program, "PTX").rstrip(b"\0"))
    if arch.startswith("sm_"):
        pathlib.Path(f"{stem}.cubin").write_bytes(take(nvrtc, program, "CUBIN"))
    return None


def main():
    sources, out, *requests = sys.argv[1:]
    jobs = [(pathlib.Path(sources), pathlib.Path(out), request) for request in requests]
    # Processes, because the compiler holds a lock; new ones now and then, because it keeps what it allocated.
    with multiprocessing.Pool(min(len(jobs), os.cpu_count() or 1), maxtasksperchild=4) as pool:
        failures = [failure for failure in pool.imap_unordered(compile_one, jobs) if failure]
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
