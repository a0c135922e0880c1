"""Pictures of plans and placements, drawn with Matplotlib (the extra `plot`)."""
