"""The name under which `wam_node` and `servo_node` find each other's shared memory."""

from __future__ import annotations

import os


def ring_name(configured: str, namespace: str) -> str:
    """The configured name, or one that is the same for nodes of one user, domain and namespace."""
    if configured:
        return configured
    domain = os.environ.get('ROS_DOMAIN_ID', '0') or '0'
    place = namespace.strip('/').replace('/', '.')
    return '-'.join(filter(None, (f'u{os.getuid()}', f'domain{domain}', place, 'ring')))
