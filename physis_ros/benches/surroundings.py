"""What runs beside a bench: a private ROS domain and described processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from physis_ros.demo.private_domain import PrivateDomain
from physis_ros.demo.processes import ProcessGroup
from physis_ros.demo.shared_memory import sweep_fast_dds
from physis_ros.deployment import NodeProcess, dds_environment


@contextmanager
def surroundings(processes: Sequence[NodeProcess]) -> Iterator[ProcessGroup]:
    """Run processes in a domain of their own; this process and its children join that domain."""
    with PrivateDomain() as domain, tempfile.TemporaryDirectory(prefix='physis-bench-') as logs:
        environment = {
            **dds_environment(), 'ROS_DOMAIN_ID': str(domain.domain_id),
            'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST', 'ROS_LOG_DIR': logs}
        before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        try:
            with ProcessGroup(processes, environment, Path(logs)) as group:
                yield group
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            sweep_fast_dds()
