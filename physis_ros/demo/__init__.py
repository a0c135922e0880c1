"""The simulated robot: an SO-101 arm in MuJoCo, its demonstrations, and the model's training."""

import os

# Offscreen rendering on one CPU thread; mujoco reads these when it is first imported.
os.environ.setdefault('MUJOCO_GL', 'osmesa')
os.environ.setdefault('LP_NUM_THREADS', '1')
