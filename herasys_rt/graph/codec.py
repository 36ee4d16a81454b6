"""The canonical codec: one value, one byte string, on every machine and hash seed.

MessagePack with sorted keys (msgspec, C speed) over a closed set of value types: None,
bool, int, float, str, bytes, list/tuple, dict with string keys, ndarray, and the frozen
structs of this package. MessagePack tags types and prefixes lengths, so ``["ab", "c"]``
differs from ``["a", "bc"]`` and ``1`` from ``True``, ``1.0`` and ``"1"``.

`encode` is the fast path and writes whatever the library can; `canonical` and `frozen`
walk the value first and refuse everything outside the closed set (sets, dates, enums,
subclasses of the basic types ...) with a `CodecError` that names the field.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import msgspec
import numpy as np

from herasys_rt.errors import UsageError

T = TypeVar("T")

ARRAY_CODE = 1
"""The MessagePack extension code of an ndarray."""
_ARRAY_KINDS = "fiub"
_ITEM_BYTES = 8
_TEXT_PART = 1 << 16  # characters
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
_HINT = "Pass None, bool, int, float, str, bytes, list, dict or ndarray."
_FOREIGN_HINT = "Give whole what encode() wrote, by this version of the package."


class CodecError(UsageError):
    """A value outside the closed set, or bytes that are no value."""

    code = "not_codable"


def _enc_hook(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        if not _is_codable(array.dtype):
            raise CodecError(
                f"an ndarray of dtype {array.dtype} cannot be encoded",
                hint="Turn it into numbers or booleans, or into a list of plain values.",
            )
        dtype, head = array_head(array)
        data = bytearray(len(head) + array.nbytes)
        data[: len(head)] = head
        body = np.ndarray(array.shape, dtype, data, len(head))  # in C order
        body[...] = array
        return msgspec.msgpack.Ext(ARRAY_CODE, data)
    if isinstance(value, np.generic):
        return cast(Any, value.item())
    raise TypeError(f"a value of type {type(value).__name__}")


def array_head(array: np.ndarray[Any, Any]) -> tuple[str, bytes]:
    """The dtype that an array is written with, and what stands before its elements."""
    dtype = array.dtype.newbyteorder("<").str
    return dtype, msgspec.msgpack.encode([dtype, list(array.shape)])


def _is_codable(dtype: np.dtype[Any]) -> bool:
    """Whether every machine has the type: ``longdouble`` differs, and pads with noise."""
    return dtype.kind in _ARRAY_KINDS and dtype.itemsize <= _ITEM_BYTES


def _ext_hook(code: int, data: memoryview) -> Any:
    if code != ARRAY_CODE:
        raise CodecError(f"unknown extension {code} in encoded bytes", hint=_FOREIGN_HINT)
    # [dtype, shape] is a fixarray whose length the two parts tell; re-encode to find it.
    unpacker = msgspec.msgpack.Decoder(tuple[str, list[int]])
    head_len = _head_length(data)
    dtype, shape = unpacker.decode(data[:head_len])
    array = np.frombuffer(data[head_len:], dtype=np.dtype(dtype)).reshape(shape)
    array.flags.writeable = False
    return array


def _head_length(data: memoryview) -> int:
    """Bytes of ``[dtype, shape]``: fixarray(2), fixstr, fixarray of integers."""
    at = 1
    at += 1 + (data[at] & 0x1F)
    count = data[at] & 0x0F
    at += 1
    for _ in range(count):
        at += {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}.get(data[at], 1)
    return at


_encoder = msgspec.msgpack.Encoder(enc_hook=_enc_hook, order="deterministic")
_decoder = msgspec.msgpack.Decoder(ext_hook=_ext_hook)


def encode(value: Any) -> bytes:
    """Bytes of a value or struct. Errors: `CodecError`."""
    try:
        return _encoder.encode(value)
    except (TypeError, OverflowError, UnicodeEncodeError, msgspec.MsgspecError) as e:
        raise CodecError(
            fault_of(value) or f"cannot encode {type(value).__name__}: {e}",
            hint=_HINT,
        ) from e


def decode(data: bytes | memoryview) -> Any:
    """The value of `encode`d bytes; arrays come back read-only. Errors: `CodecError`."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, IndexError, TypeError) as e:
        raise CodecError(f"bytes are no encoded value: {e}", hint=_FOREIGN_HINT) from e


def typed_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """A reusable decoder for a struct type or a union of tagged structs."""
    return msgspec.msgpack.Decoder(kind, ext_hook=_ext_hook)


def canonical(value: Any) -> bytes:
    """The one byte string of a value: what signatures are made of.

    Equal values give equal bytes: dict keys sorted, ``-0.0`` written as ``0.0``, one NaN,
    tuples as lists, NumPy scalars as Python's. Strings enter as their exact UTF-8 bytes,
    without normalisation. Errors: `CodecError` naming the field that is outside the
    closed set.
    """
    if type(value) is str and value.isascii():  # what most signatures are made of
        return _encoder.encode(value)
    refuse_faults(value)
    return _encoder.encode(_normalised(value))


def frozen(value: Any) -> Any:
    """A deep copy of a value in plain types; arrays in it are read-only.

    Later changes to the original are not seen. Errors: `CodecError` as `canonical`.
    """
    refuse_faults(value)
    return _decoder.decode(_encoder.encode(value))


def digest(data: bytes) -> bytes:
    """SHA-256 of bytes: the name of a spec or of code, whatever names values."""
    return hashlib.sha256(data).digest()


def utf8_parts(text: str) -> Iterator[bytes]:
    """The UTF-8 bytes of a text in parts that fit the cache, never all at once."""
    for start in range(0, len(text), _TEXT_PART):
        yield text[start : start + _TEXT_PART].encode()


def fault_of(value: Any, path: str = "value") -> str | None:
    """What first keeps a value out of the closed set, with its path; None when nothing.

    Types are compared exactly: an enum or a subclass of ``str`` may carry more than its
    text and is refused.
    """
    try:
        return _fault(value, path)
    except RecursionError:
        return f"{path} is nested too deeply or holds itself"


def refuse_faults(value: Any) -> None:
    """Errors: `CodecError` naming the field of a value that is outside the closed set."""
    fault = fault_of(value)
    if fault:
        raise CodecError(fault, hint=_HINT)


_ATOMS = frozenset({type(None), bool, float, bytes})


def _fault(value: Any, path: str) -> str | None:
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind in _ATOMS:
        return None
    if kind is str:
        return _text_fault(value, path)
    if kind is int:
        inside = _INT_MIN <= value <= _INT_MAX
        return None if inside else f"{path} is an integer beyond 64 bits"
    if kind is list or kind is tuple:
        items = cast("list[Any]", value)
        faults = (_fault(item, f"{path}[{i}]") for i, item in enumerate(items))
        return next((fault for fault in faults if fault), None)
    if kind is dict:
        return _dict_fault(cast("dict[Any, Any]", value), path)
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        inside = _is_codable(array.dtype)
        return None if inside else f"{path} is an ndarray of dtype {array.dtype}"
    if isinstance(value, np.generic):
        return _fault(cast(Any, value.item()), path)
    return f"{path} is of type {kind.__name__}"


def _text_fault(value: str, path: str) -> str | None:
    if value.isascii():
        return None
    try:
        for _ in utf8_parts(value):
            pass
    except UnicodeEncodeError:
        return f"{path} holds a lone surrogate, which is no Unicode text"
    return None


def _dict_fault(value: dict[Any, Any], path: str) -> str | None:
    for key, item in value.items():
        if type(key) is not str:
            return f"{path} has the key {key!r}; keys must be strings"
        fault = _text_fault(key, f"{path} key") or _fault(item, f"{path}.{key}")
        if fault:
            return fault
    return None


def _normalised(value: Any) -> Any:
    """A value without faults, with equal floats made equal bytes."""
    if type(value) is float:
        if value == 0.0:
            return 0.0
        return math.nan if math.isnan(value) else value
    if isinstance(value, dict):
        return {k: _normalised(v) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_normalised(v) for v in cast("list[Any]", value)]
    if isinstance(value, np.ndarray):
        return normalised_array(cast("np.ndarray[Any, Any]", value))
    if isinstance(value, np.generic):
        return _normalised(cast(Any, value.item()))
    return value


def normalised_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array with equal floats made equal bytes; itself when it holds no floats."""
    if array.dtype.kind != "f":
        return array
    with np.errstate(invalid="ignore"):  # a signalling NaN
        same = np.asarray(array + array.dtype.type(0))  # -0.0 + 0.0 is 0.0
    odd = np.isnan(same)
    if odd.any():
        same[odd] = np.nan
    return same
