"""Where a chunk's time went, as a trace that Perfetto (ui.perfetto.dev) opens."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from physis_core.cli.report import write_text
from physis_core.cli.watch import EngineWatch, add_engine_argument
from physis_core.errors import InputError
from physis_core.observability.trace import ChunkId, chunk_trace, parse_chunk_id


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('--chunk', default='latest', metavar='ID',
                        help='STREAM:EPOCH:CHUNK, or `latest` (the default)')
    parser.add_argument('--out', type=Path, default=None, metavar='FILE',
                        help='file to write (chunk-STREAM-EPOCH-CHUNK.json)')
    add_engine_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Write the trace of one chunk of a running engine."""
    watch = EngineWatch(args.pid)
    chunks, tasks = watch.chunks, watch.tasks
    record = find_chunk(chunks, None if args.chunk == 'latest' else parse_chunk_id(args.chunk))
    chunk_id = (int(record['stream']), int(record['epoch']), int(record['chunk']))
    names = record.dtype.names or ()
    text = chunk_trace(chunk_id, {name: int(record[name]) for name in names}, tasks)
    out = args.out or Path(f'chunk-{"-".join(map(str, chunk_id))}.json')
    write_text(out, text)
    print(f'{out}: chunk {":".join(map(str, chunk_id))} of the {watch.name}\n'
          'open it at https://ui.perfetto.dev')
    return 0


def find_chunk(chunks: np.ndarray, wanted: ChunkId | None) -> np.void:
    """The record of a chunk; None: of the latest.

    Raises:
        InputError: it is not there.
    """
    if wanted is None:
        if not len(chunks):
            raise InputError('this engine has finished no chunk yet; wait for one')
        return chunks[-1]
    stream, epoch, chunk = wanted
    found = chunks[(chunks['stream'] == stream) & (chunks['epoch'] == epoch)
                   & (chunks['chunk'] == chunk)]
    if not len(found):
        raise InputError(f'chunk {stream}:{epoch}:{chunk} is not among the latest {len(chunks)} '
                         'that this engine has finished; `physis top` shows the newest')
    return found[-1]
