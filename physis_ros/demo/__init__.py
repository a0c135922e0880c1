"""The simulated robot: an SO-101 arm in MuJoCo, its demonstrations, and the model's training."""

import contextlib
import importlib
import os

# Offscreen rendering on one CPU thread; mujoco reads these when it is first imported.
os.environ.setdefault('MUJOCO_GL', 'osmesa')
os.environ.setdefault('LP_NUM_THREADS', '1')

# OSMesa and triton, which CUDA builds of torch bring, each have an LLVM: triton's, loaded after
# OSMesa's, crashes the process, and torch loads it late (torch.optim). So it goes first, here,
# before anything imports mujoco. Whatever keeps it from loading is not the simulator's business.
with contextlib.suppress(Exception):
    importlib.import_module('triton')
