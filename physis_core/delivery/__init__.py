"""From finished chunks to motion: deadlines, age, timeline, handover, the ring to the servo."""
