"""Recorded episodes in the format of RLDS: TFRecord files of `tf.train.Example`, read without
TensorFlow.

Open X-Embodiment publishes its data sets so.  An example is one episode, a map of lists: camera
images (JPEG or PNG) and states, each with an entry per step.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from physis_core.errors import InputError

_IMAGES = 'steps/observation/'
# A record of TFRecord: length, its checksum, data, their checksum.
_LENGTH = struct.Struct('<Q')
_CHECKSUM_BYTES = 4
_FORMATS = {b'\xff\xd8': 'jpeg', b'\x89P': 'png'}
# Wire types of protobuf: how long a value is.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
# Fields of tf.train.Feature: which list a feature is.
_BYTES_LIST, _FLOAT_LIST = 1, 2


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode.

    Attributes:
        images: encoded images of each camera, one for each step.
        states: ``[steps, values]``.
    """

    images: Mapping[str, tuple[bytes, ...]]
    states: NDArray[np.float32]


def image_format(image: bytes) -> str | None:
    """`jpeg` or `png`; None: neither."""
    return _FORMATS.get(image[:2])


def episodes(path: Path, state: str) -> Iterator[Episode]:
    """The episodes of a file, in order.

    Args:
        path: a TFRecord file.
        state: the feature that has the states, such as ``steps/observation/state``.

    Raises:
        InputError: the file cannot be read or is of another format, it has no such feature, or an
            episode has no images.
    """
    try:
        data = memoryview(path.read_bytes())
    except OSError as error:
        raise InputError(f'{path} cannot be read ({error.strerror})') from error
    for number, record in enumerate(_records(path, data)):
        try:
            lists, floats = _example(record)
        except (IndexError, ValueError, struct.error, UnicodeDecodeError) as error:
            raise InputError(f'{path}: record {number} is no tf.train.Example') from error
        yield _episode(f'{path}: episode {number}', lists, floats, state)


def _episode(where: str, lists: Mapping[str, list[bytes]],
             floats: Mapping[str, NDArray[np.float32]], state: str) -> Episode:
    images = {name.removeprefix(_IMAGES): tuple(values) for name, values in lists.items()
              if name.startswith(_IMAGES) and values and image_format(values[0])}
    if not images:
        raise InputError(f'{where} has no JPEG or PNG images; it has {", ".join(sorted(lists))}')
    if state not in floats:
        raise InputError(f'{where} has no feature {state}; it has {", ".join(sorted(floats))}')
    steps = min(map(len, images.values()))
    values = floats[state]
    if max(map(len, images.values())) != steps or not len(values) or len(values) % steps:
        raise InputError(f'{where}: {", ".join(images)} and {state} are not of the same number of '
                         'steps')
    return Episode(images, values.reshape(steps, -1))


def _records(path: Path, data: memoryview) -> Iterator[memoryview]:
    at = 0
    while at < len(data):
        begin = at + _LENGTH.size + _CHECKSUM_BYTES
        end = begin + _LENGTH.unpack_from(data, at)[0] if begin <= len(data) else begin
        at = end + _CHECKSUM_BYTES
        if at > len(data):
            raise InputError(f'{path} is no TFRecord file, or its end is missing')
        yield data[begin:end]


def _example(record: memoryview) -> tuple[dict[str, list[bytes]], dict[str, NDArray[np.float32]]]:
    """The lists of bytes and the lists of floats, by feature."""
    lists: dict[str, list[bytes]] = {}
    floats: dict[str, NDArray[np.float32]] = {}
    for _, features in _fields(record):
        for _, entry in _fields(features):
            pair = dict(_fields(entry))
            name = bytes(pair[1]).decode()
            for kind, content in _fields(pair.get(2, memoryview(b''))):
                if kind == _BYTES_LIST:
                    lists[name] = [bytes(value) for _, value in _fields(content)]
                elif kind == _FLOAT_LIST:
                    floats[name] = np.frombuffer(
                        b''.join(bytes(value) for _, value in _fields(content)), '<f4')
    return lists, floats


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Field numbers and contents of a protobuf message; the contents of a varint are empty."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        wire = tag & 7
        if wire == _VARINT:
            _, at = _varint(message, at)
            yield tag >> 3, message[at:at]
            continue
        if wire == _BYTES:
            length, at = _varint(message, at)
        elif wire in _FIXED_BYTES:
            length = _FIXED_BYTES[wire]
        else:
            raise ValueError(f'wire type {wire}')
        if at + length > len(message):
            raise ValueError('a field is longer than its message')
        yield tag >> 3, message[at:at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
