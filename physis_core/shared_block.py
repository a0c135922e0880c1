"""Memory shared between processes of one host, without a name in the file system.

A block belongs to the process that made it.  Others reach it through that process's descriptor
table, which only the same user may open; when the last process that mapped it ends, however it
ends, the memory is gone.  So nothing can be left behind.  An address names the file besides its
place in that table: a place is used again as soon as its file is closed.
"""

from __future__ import annotations

import errno
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
        return cls(address_of(descriptor), mmap.mmap(descriptor, size_bytes), descriptor)

    @classmethod
    def attach(cls, address: str) -> SharedBlock:
        """A block that another process owns.

        Raises:
            OSError: its owner has ended or closed it, or belongs to another user.
        """
        descriptor = open_address(address)
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


def address_of(descriptor: int) -> str:
    """Where other processes of this user find a file without a name, as long as it is open here."""
    return f'/proc/{os.getpid()}/fd/{descriptor}:{os.fstat(descriptor).st_ino}'


def open_address(address: str) -> int:
    """A descriptor of the file at an address.

    Raises:
        OSError: its owner has ended or closed it, or belongs to another user.
    """
    path, _, inode = address.rpartition(':')
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    if os.fstat(descriptor).st_ino != int(inode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, 'its owner has closed it', address)
    return descriptor


def is_open(address: str) -> bool:
    """Whether the file at an address is still open to others."""
    try:
        os.close(open_address(address))
    except (OSError, ValueError):
        return False
    return True
