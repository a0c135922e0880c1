"""Memory shared between processes of one host, without a name in the file system.

A block belongs to the process that made it.  Others reach it through that process's descriptor
table, which only the same user may open; when the last process that mapped it ends, however it
ends, the memory is gone.  So nothing can be left behind.
"""

from __future__ import annotations

import mmap
import os

from physis_core.errors import InputError


class SharedBlock:
    """Zero-filled memory; ``address`` tells another process of the same user where it is."""

    def __init__(self, address: str, memory: mmap.mmap, descriptor: int | None) -> None:
        """Use :meth:`create` or :meth:`attach`."""
        self.address = address
        self.memory = memory
        self._descriptor = descriptor

    @classmethod
    def create(cls, size_bytes: int) -> SharedBlock:
        """A new block that this process owns."""
        if size_bytes < 1:
            raise InputError(f'shared block of {size_bytes} bytes; the least is 1')
        descriptor = os.memfd_create('physis', os.MFD_CLOEXEC)
        os.ftruncate(descriptor, size_bytes)
        return cls(f'/proc/{os.getpid()}/fd/{descriptor}', mmap.mmap(descriptor, size_bytes),
                   descriptor)

    @classmethod
    def attach(cls, address: str) -> SharedBlock:
        """A block that another process owns.

        Raises:
            OSError: its owner has ended, or belongs to another user.
        """
        descriptor = os.open(address, os.O_RDWR | os.O_CLOEXEC)
        try:
            memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
        return cls(address, memory, None)

    def close(self) -> None:
        """Stop others from attaching; the memory goes when its last view goes."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
