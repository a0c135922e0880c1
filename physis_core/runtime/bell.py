"""Waking another process: a futex word in shared memory.

Whoever has news writes a value that never stood there before and wakes the waiter.  The waiter
reads the word, looks for news, and sleeps only if the word is still the same, so that no news can
fall between looking and sleeping.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import platform

import numpy as np

from physis_core.units import NS_PER_S

_LIBC = ctypes.CDLL(None, use_errno=True)
_syscall = _LIBC.syscall
_brief_syscall = ctypes.PyDLL(None).syscall  # keeps the interpreter's lock: nothing to wait for
for _call in (_syscall, _brief_syscall):
    _call.argtypes = (ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32,
                      ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
_SYS_FUTEX = {'x86_64': 202, 'aarch64': 98}.get(platform.machine(), 202)
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_RINGERS, _RINGS_PER_RINGER = 1 << 12, 1 << 20


class _TimeSpec(ctypes.Structure):
    _fields_ = (('tv_sec', ctypes.c_int64), ('tv_nsec', ctypes.c_int64))


class Bell:
    """One futex word: rung by many, waited for by one.

    ``ringer`` is a small number (below 4096) that is different in every process that rings.
    """

    def __init__(self, words: np.ndarray, index: int, ringer: int, spin: int = 0) -> None:
        """Use the ``index``-th of the uint32 ``words``; ``spin``: looks before sleeping."""
        self._owner = words[index:index + 1]
        self._word = self._owner.data
        self._address = self._owner.ctypes.data
        self._span = _TimeSpec()
        self._span_address = ctypes.addressof(self._span)
        self._base = ringer % _RINGERS * _RINGS_PER_RINGER
        self._count = itertools.count(1)  # its next() is atomic: several threads may ring
        self._spin = spin

    def ring(self) -> None:
        """Wake the waiter."""
        self._word[0] = self._base + next(self._count) % _RINGS_PER_RINGER
        _brief_syscall(_SYS_FUTEX, self._address, _FUTEX_WAKE, 1, None, None, 0)

    def read(self) -> int:
        """The value to hand to :meth:`wait`; take it before looking for news."""
        return self._word[0]

    def wait(self, seen: int, timeout_ns: int) -> None:
        """Sleep until the word differs from ``seen``, at most ``timeout_ns``."""
        word = self._word
        for _ in range(self._spin):
            if word[0] != seen:
                return
            os.sched_yield()
        if timeout_ns <= 0:
            return
        self._span.tv_sec, self._span.tv_nsec = divmod(timeout_ns, NS_PER_S)
        _syscall(_SYS_FUTEX, self._address, _FUTEX_WAIT, seen, self._span_address, None, 0)


def precise_sleeps() -> None:
    """Ask the kernel to wake this thread within a microsecond instead of fifty."""
    pr_set_timerslack = 29
    _LIBC.prctl(pr_set_timerslack, 1000, 0, 0, 0)
