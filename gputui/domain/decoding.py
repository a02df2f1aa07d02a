"""Decodes JSON and MessagePack into types, in any thread.

msgspec prepares a type when it is first decoded: it runs Python code for the annotations, and has published the type by
then. Another thread that decodes the same type, or one that contains it, meets half a type, and the process crashes
(msgspec 0.22, with a segmentation fault). So types are prepared here, one at a time; the linter bans msgspec's own
functions elsewhere.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")
JsonDecoder = msgspec.json.Decoder

_PREPARING = threading.RLock()
_JSON: dict[Any, JsonDecoder[Any]] = {}
_MSGPACK: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


@overload
def json_decoder(kind: type[T]) -> JsonDecoder[T]: ...
@overload
def json_decoder(kind: Any) -> JsonDecoder[Any]: ...
def json_decoder(kind: Any) -> JsonDecoder[Any]:
    """Return the decoder of JSON for a type."""
    found = _JSON.get(kind)
    if found is None:
        with _PREPARING:
            found = _JSON[kind] = msgspec.json.Decoder(kind)
    return found


@overload
def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]: ...
@overload
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return the decoder of MessagePack for a type."""
    found = _MSGPACK.get(kind)
    if found is None:
        with _PREPARING:
            found = _MSGPACK[kind] = msgspec.msgpack.Decoder(kind)
    return found


@overload
def decode_json(data: bytes | str, kind: type[T]) -> T: ...
@overload
def decode_json(data: bytes | str, kind: Any = Any) -> Any: ...
def decode_json(data: bytes | str, kind: Any = Any) -> Any:
    """Return the value of a JSON text. Raises msgspec.DecodeError, or ValidationError if it is not of that type."""
    return json_decoder(kind).decode(data)


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
    return msgspec.convert(value, kind, from_attributes=from_attributes)
