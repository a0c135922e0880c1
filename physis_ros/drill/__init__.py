"""The fault drill: every fault on purpose, and how the robot's side behaves."""
