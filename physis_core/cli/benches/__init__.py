"""What `physis bench NAME` measures: one module a bench, named like it.

Each offers ``add_arguments(parser)`` and ``run(args) -> int``, as a command does, and is found by
its file name; there is no list to keep.
"""
