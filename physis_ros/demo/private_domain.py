"""A ROS domain of one's own, so that two demos on one host do not hear each other."""

from __future__ import annotations

import os
import socket
from types import TracebackType

from physis_core.errors import InputError

_DOMAINS = range(10, 100)  # above the ones people choose by hand, below the ephemeral ports
_PORT_BASE, _PORT_GAIN = 7400, 250


class PrivateDomain:
    """Claims a domain that nobody uses, for as long as the process (or the `with`) lasts.

    The claim is an abstract socket, which leaves nothing behind however the process ends.
    """

    def __init__(self) -> None:
        self._claim: socket.socket | None = None
        self.domain_id = -1

    def __enter__(self) -> PrivateDomain:
        first = os.getpid() % len(_DOMAINS)
        for domain_id in (*_DOMAINS[first:], *_DOMAINS[:first]):
            if self._try(domain_id):
                self.domain_id = domain_id
                return self
        raise InputError(
            f'all ROS domains from {_DOMAINS[0]} to {_DOMAINS[-1]} are in use on this host; '
            'choose one with --domain-id')

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._claim is not None:
            self._claim.close()

    def _try(self, domain_id: int) -> bool:
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(f'\0physis-domain-{domain_id}')
        except OSError:
            claim.close()
            return False
        if _in_use(domain_id):
            claim.close()
            return False
        self._claim = claim
        return True


def _in_use(domain_id: int) -> bool:
    """Whether somebody listens on the discovery port of the domain."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(('', _PORT_BASE + _PORT_GAIN * domain_id))
        except OSError:
            return True
    return False
