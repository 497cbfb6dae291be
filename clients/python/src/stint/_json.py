"""Objects of the decision API as JSON, by their dataclasses."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import json
import typing
from typing import Any, Callable, Dict, List, Tuple, Type, TypeVar

T = TypeVar("T")


def encode(value: Any) -> Dict[str, Any]:
    """Returns a call as a JSON object, without what is not set."""
    out = {}
    for f in dataclasses.fields(value):
        got = getattr(value, f.name)
        if got is None:
            continue
        try:
            json.dumps(got, allow_nan=False)
        except (TypeError, ValueError) as e:
            raise TypeError(f"{f.metadata.get('json', f.name)}: {e}") from None
        out[f.metadata.get("json", f.name)] = got
    return out


def decode(cls: Type[T], data: Any, **more: Any) -> T:
    """Reads an object of an answer. Fields that it does not know are skipped: a later server may send more."""
    if not isinstance(data, dict):
        raise ValueError(f"want {cls.__name__}, found {type(data).__name__}")
    for name, key, read, required in _plan(cls):
        if key in data:
            try:
                more[name] = read(data[key])
            except ValueError as e:
                raise ValueError(f"{key}: {e}") from None
        elif required:
            raise ValueError(f"{key}: it is missing")
    return cls(**more)


@functools.lru_cache(maxsize=None)  # as many as there are classes
def _plan(cls: type) -> List[Tuple[str, str, Callable[[Any], Any], bool]]:
    hints = typing.get_type_hints(cls)
    return [
        (f.name, f.metadata.get("json", f.name), _reader(hints[f.name]), f.default is dataclasses.MISSING)
        for f in dataclasses.fields(cls)
        if not f.metadata.get("client")
    ]


def _reader(hint: Any) -> Callable[[Any], Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return lambda v: decode(typing.cast(type, hint), v)
    if origin is collections.abc.Sequence:
        return functools.partial(_list, _reader(args[0]))
    if origin is typing.Union and len(args) == 2 and args[1] is type(None):
        inner = _reader(args[0])
        return lambda v: None if v is None else inner(v)
    if origin is typing.Literal:
        return _reader(str)  # a later server may have another value
    kinds = {float: (int, float), int: (int,), str: (str,), bool: (bool,)}[hint]
    return functools.partial(_basic, kinds)


def _list(read: Callable[[Any], Any], v: Any) -> List[Any]:
    if not isinstance(v, list):
        raise ValueError(f"want a list, found {type(v).__name__}")
    return [read(item) for item in v]


def _basic(kinds: Tuple[type, ...], v: Any) -> Any:
    if type(v) not in kinds:
        raise ValueError(f"want {kinds[-1].__name__}, found {type(v).__name__}")
    return v
