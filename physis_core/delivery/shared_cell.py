"""A record in shared memory that is never read half-written."""

from __future__ import annotations

import struct
import zlib

_CHECK = struct.Struct('<II')
_READ_ATTEMPTS = 4


class SharedCell:
    """One record, written by one process and read by others.

    There is no lock that a killed process could take to its grave: a checksum tells a reader
    whether it caught the writer in the middle, whatever order the processor writes in.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    @staticmethod
    def size(payload_bytes: int) -> int:
        """Bytes a cell takes, aligned to 64 so that two writers never share a cache line."""
        return -(-(_CHECK.size + payload_bytes) // 64) * 64

    def write(self, payload: bytes) -> None:
        """Replace the record."""
        end = _CHECK.size + len(payload)
        self._memory[_CHECK.size:end] = payload
        _CHECK.pack_into(self._memory, 0, len(payload), zlib.crc32(payload))

    def read(self) -> bytes | None:
        """The record, or None where none was ever written or it is being written."""
        for _ in range(_READ_ATTEMPTS):
            length, check = _CHECK.unpack_from(self._memory)
            if not 0 < length <= len(self._memory) - _CHECK.size:
                return None
            payload = bytes(self._memory[_CHECK.size:_CHECK.size + length])
            if zlib.crc32(payload) == check:
                return payload
        return None
