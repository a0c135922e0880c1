"""Recording what a policy saw and did, and playing recordings to a policy."""
