"""What strings and objects name which element type: numpy's words first, and no word that means two types."""

from __future__ import annotations

import string
from typing import Any

import numpy as np
import pytest

import symmem
from symmem._symmem import dtype_name

#: Every name of ours, and what it means: the Rust library's words.
OURS = {
    "u8": "uint8", "i8": "int8", "u16": "uint16", "i16": "int16", "u32": "uint32", "i32": "int32", "u64": "uint64",
    "i64": "int64", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f16": "float16", "bf16": "bfloat16", "f32": "float32",
    "f64": "float64", "bool": "bool",
}  # fmt: skip
#: Ours that mean another type to numpy, with what numpy means.
AMBIGUOUS = {"i8": "int64", "u8": "uint64", "f16": "float128"}
#: Torch's words for types that numpy and we have under another name.
TORCHS = {"half": "float16", "float": "float32", "double": "float64", "short": "int16", "int": "int32", "long": "int64"}
NAMES = sorted(OURS.values())


def numpys_words() -> list[str]:
    """Every name, every type code, and every code with a size that numpy has."""
    words = {word for word in np.sctypeDict if isinstance(word, str)} | set(np.typecodes["All"])
    for kind in string.ascii_letters + "?":
        words |= {f"{kind}{size}" for size in (1, 2, 4, 8, 16, 32)}
    return sorted(word for word in words if numpy_reads(word))


def numpy_reads(word: str) -> np.dtype[Any] | None:
    # numpy 2 has "a" for "S" still, and says so.
    if word.startswith("a"):
        return None
    try:
        return np.dtype(word)
    except TypeError:
        return None


def refusal(dtype: Any) -> str:
    with pytest.raises(TypeError) as caught:
        dtype_name(dtype)
    return str(caught.value)


def test_the_table_of_our_names_is_whole() -> None:
    text = refusal("no such type")
    assert sorted(text.split("it has ")[1].split(", ")) == NAMES


def test_every_word_of_numpy_is_numpys_or_refused() -> None:
    words = numpys_words()
    assert {"f4", "f8", "float", "int", "single", "long", "b1", "?", "intp", "longlong", "M8", "c16", "U4"} <= set(words)
    for word in words:
        means = np.dtype(word).name
        if word in AMBIGUOUS:
            assert means == AMBIGUOUS[word], word
        elif means in NAMES:
            assert dtype_name(word) == means, word
        else:
            assert word in refusal(word)


@pytest.mark.parametrize("word", sorted(OURS))
def test_every_name_of_ours_means_its_type_or_is_refused(word: str) -> None:
    assert dtype_name(OURS[word]) == OURS[word]
    if word not in AMBIGUOUS:
        assert dtype_name(word) == OURS[word]
        return
    text = refusal(word)
    assert f'"{word}" is {AMBIGUOUS[word]} to numpy and {OURS[word]} to symmem' in text
    assert f'"{OURS[word]}"' in text.split("Hint:")[1]


def test_every_word_of_torch() -> None:
    torch = pytest.importorskip("torch")
    words = [word for word in dir(torch) if isinstance(getattr(torch, word), torch.dtype)]
    assert set(TORCHS) < set(words)
    for word in words:
        means = str(getattr(torch, word)).removeprefix("torch.")
        if means not in NAMES:
            refusal(f"torch.{word}")
            refusal(getattr(torch, word))
            continue
        assert dtype_name(f"torch.{word}") == dtype_name(getattr(torch, word)) == means, word
        # Without the prefix two are numpy's, as in Python.
        numpys = {"float": "float64", "int": "int64"}
        assert dtype_name(word) == numpys.get(word, means), word


@pytest.mark.parametrize("word", ["half", "double", "short", "long", "torch.float", "torch.int"])
def test_torchs_words_need_no_torch(script: Any, word: str) -> None:
    done = script(
        "import sys\nsys.modules['torch'] = None\nfrom symmem._symmem import dtype_name\n" f"print(dtype_name({word!r}))\n"
    )
    assert done.stdout.strip() == TORCHS[word.removeprefix("torch.")], done.stderr


@pytest.mark.parametrize("word", [">f4", ">i8", ">u2", "S4,i4"])
def test_another_byte_order_and_records_are_refused(word: str) -> None:
    text = refusal(word)
    if word.startswith(">"):
        assert "byte order" in text and np.dtype(word).name in text
    assert refusal(np.dtype(word))


@pytest.mark.parametrize("word", ["<f4", "=f4", "|u1", ">u1", "<i8"])
def test_this_machines_byte_order_may_be_said(word: str) -> None:
    assert dtype_name(word) == dtype_name(np.dtype(word)) == np.dtype(word).name


@pytest.mark.parametrize("dtype", [float, int, bool, np.float32, np.longlong, np.intc, np.bool_])
def test_classes_are_what_numpy_takes_them_for(dtype: Any) -> None:
    assert dtype_name(dtype) == np.dtype(dtype).name


@pytest.mark.parametrize("dtype", [str, object, complex, np.complex64, list, None, 3, "torch.f32", "torch.", "", "Float32"])
def test_others_are_refused(dtype: Any) -> None:
    refusal(dtype)


def test_every_function_that_takes_a_dtype_reads_it_so(threads: Any) -> None:
    x = np.zeros(4)

    def main(group: symmem.Group) -> None:
        mem = symmem.rendezvous(symmem.empty(4, dtype="int64"), group)
        takes = [
            lambda dtype: symmem.empty(4, dtype=dtype),
            lambda dtype: symmem.empty_strided_p2p((4,), (1,), dtype, "cpu"),
            lambda dtype: symmem.zeros(4, dtype=dtype),
            lambda dtype: symmem.ones(4, dtype=dtype),
            lambda dtype: symmem.full(4, 1, dtype=dtype),
            lambda dtype: symmem.array(x, dtype=dtype),
            lambda dtype: symmem.empty_like(x, dtype=dtype),
            lambda dtype: symmem.zeros_like(x, dtype=dtype),
            lambda dtype: symmem.ones_like(x, dtype=dtype),
            lambda dtype: symmem.full_like(x, 1, dtype=dtype),
            lambda dtype: mem.get_buffer(0, (4,), dtype),
            lambda dtype: mem.get_remote_tensor(0, (4,), dtype),
            lambda dtype: mem.get_signal_pad(0, (4,), dtype),
        ]
        for take in takes:
            assert take("f4").dtype == np.float32
            with pytest.raises(TypeError, match="int64 to numpy and int8 to symmem"):
                take("i8")

    threads(main, 1)


@pytest.mark.parametrize("size", [(4, "float32"), ((4,), np.float32), (4, np.dtype("f4")), ([4], "f4")])
@pytest.mark.parametrize("make", [symmem.empty, symmem.zeros, symmem.ones])
def test_a_type_in_second_place_is_told_its_name(make: Any, size: Any) -> None:
    with pytest.raises(symmem.Invalid, match='Hint: name the element type, dtype="float32"'):
        make(*size)


def test_the_default_is_float32_and_says_so() -> None:
    for make in (symmem.empty, symmem.zeros, symmem.ones):
        assert make(3).dtype == np.float32
        assert "float32" in (make.__doc__ or "")
