"""The demo model: a world action model for a simulated SO-101 arm, trained from scratch."""
