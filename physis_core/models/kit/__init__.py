"""The parts that all families share: attention, rotary positions, modulation, norms."""
