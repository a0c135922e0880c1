"""What every installed executable has to keep to."""

from __future__ import annotations

import runpy
from pathlib import Path
from unittest.mock import Mock, patch


def assert_starts_no_node(script: Path) -> None:
    """Import a script as multiprocessing does in a worker: its node must not start."""
    module = next(line.split()[1] for line in script.read_text().splitlines()
                  if line.startswith('from '))
    main = Mock(return_value=0)
    with patch(f'{module}.main', main):
        runpy.run_path(str(script), run_name='__mp_main__')
    main.assert_not_called()
