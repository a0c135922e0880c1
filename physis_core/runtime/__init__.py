"""Running plans: engine, workers, dispatch, KV pools, links."""
