"""From sensor messages to observations: decoding, freshness, assembly."""
