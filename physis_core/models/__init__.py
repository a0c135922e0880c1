"""What a stage computes.  Models know nothing of devices; devices know nothing of attention."""
