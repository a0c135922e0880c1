"""
Physis: pipelined execution of large generative models for robots.

A library of its own, usable without ROS: what a stage computes (`models`), how stages are
planned (`planning`) and run (`runtime`), how finished chunks become steady, deadline-aware
output (`delivery`), and what was measured (`observability`).

Importing this package imports nothing heavy; import the part you need.
"""

__version__ = '0.1.0'
