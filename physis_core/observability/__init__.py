"""What is measured while it runs: frequencies, percentiles, deadlines; all of it bounded."""
