"""Decodes JSON and MessagePack into types, in any thread, with errors of one family.

msgspec prepares a type when it is first decoded: it runs Python code for the annotations, and has published the type by
then. Another thread that decodes the same type, or one that contains it, meets half a type, and the process crashes
(msgspec 0.22, with a segmentation fault). So types are prepared here, one at a time; the linter bans msgspec's own
functions elsewhere.

Whatever the bytes, errors are a `msgspec.DecodeError`. msgspec itself also raises RecursionError for deeply nested
values and UnicodeDecodeError for strings that are not UTF-8.
"""

from __future__ import annotations

import re
import threading
from typing import Any, Generic, TypeVar, overload

import msgspec

T = TypeVar("T")

DEEPEST = 100
"""Levels of a JSON text that `decode_json` takes. What is deeper may be readable here, and yet not be written again."""
_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))
_TEXT = re.compile(rb'"[^"]*"')
_FAULTS = (RecursionError, UnicodeError, OverflowError)
_PREPARING = threading.RLock()


class MsgpackDecoder(msgspec.Struct, Generic[T], frozen=True):
    """Decoder of MessagePack."""

    decoder: msgspec.msgpack.Decoder[T]

    def decode(self, data: bytes) -> T:
        """Return the value; raises msgspec.DecodeError, or ValidationError if it is not of that type."""
        try:
            return self.decoder.decode(data)
        except _FAULTS as error:
            raise _fault(error) from None


class JsonDecoder(msgspec.Struct, Generic[T], frozen=True):
    decoder: msgspec.json.Decoder[T]

    def decode(self, data: bytes | str) -> T:
        """Return the value; raises msgspec.DecodeError, or ValidationError if it is not of that type."""
        try:
            return self.decoder.decode(data)
        except _FAULTS as error:
            raise _fault(error) from None

    def decode_lines(self, data: bytes) -> list[T]:
        """Return the values of lines; raises as `decode`."""
        try:
            return self.decoder.decode_lines(data)
        except _FAULTS as error:
            raise _fault(error) from None


def _fault(error: Exception) -> msgspec.DecodeError:
    return msgspec.DecodeError("it is nested too deeply" if isinstance(error, RecursionError) else str(error))


_JSON: dict[Any, JsonDecoder[Any]] = {}
_MSGPACK: dict[Any, MsgpackDecoder[Any]] = {}


@overload
def json_decoder(kind: type[T]) -> JsonDecoder[T]: ...
@overload
def json_decoder(kind: Any) -> JsonDecoder[Any]: ...
def json_decoder(kind: Any) -> JsonDecoder[Any]:
    found = _JSON.get(kind)
    if found is None:
        with _PREPARING:
            found = _JSON[kind] = JsonDecoder(msgspec.json.Decoder(kind))
    return found


@overload
def msgpack_decoder(kind: type[T]) -> MsgpackDecoder[T]: ...
@overload
def msgpack_decoder(kind: Any) -> MsgpackDecoder[Any]: ...
def msgpack_decoder(kind: Any) -> MsgpackDecoder[Any]:
    found = _MSGPACK.get(kind)
    if found is None:
        with _PREPARING:
            found = _MSGPACK[kind] = MsgpackDecoder(msgspec.msgpack.Decoder(kind))
    return found


@overload
def decode_json(data: bytes | str, kind: type[T]) -> T: ...
@overload
def decode_json(data: bytes | str, kind: Any = Any) -> Any: ...
def decode_json(data: bytes | str, kind: Any = Any) -> Any:
    """Return the value of a JSON text. Raises msgspec.DecodeError, or ValidationError if it is not of that type."""
    try:
        value = json_decoder(kind).decoder.decode(data)
    except _FAULTS as error:
        raise _fault(error) from None
    raw = data.encode(errors="surrogatepass") if isinstance(data, str) else bytes(data)  # or a msgspec.Raw
    if raw.count(b"[") + raw.count(b"{") > DEEPEST:  # what follows takes a seventh of the time of decoding
        if b"\\" in raw:
            raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
        brackets = _TEXT.sub(b"", raw.translate(None, _OTHERS).replace(b'""', b""))
        for _ in range(DEEPEST):
            brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if brackets:
            raise msgspec.DecodeError("it is nested too deeply")
    return value


def decode_msgpack(data: bytes, kind: type[T]) -> T:
    """Return the value of MessagePack data. Raises as `decode_json` does."""
    return msgpack_decoder(kind).decode(data)


@overload
def convert(value: Any, kind: type[T], *, from_attributes: bool = False) -> T: ...
@overload
def convert(value: Any, kind: Any, *, from_attributes: bool = False) -> Any: ...
def convert(value: Any, kind: Any, *, from_attributes: bool = False) -> Any:
    """Return a value of plain types, or another object's attributes, as that type. Raises ValidationError."""
    json_decoder(kind)  # which prepares the type
    try:
        return msgspec.convert(value, kind, from_attributes=from_attributes)
    except _FAULTS as error:
        raise msgspec.ValidationError(str(_fault(error))) from None
