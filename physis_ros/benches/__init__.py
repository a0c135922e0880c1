"""Benches of the robot's side: `physis bench servo | handover | ingest`."""
