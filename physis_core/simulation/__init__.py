"""The twin of the engine: same plan, same dispatch code, a virtual clock."""
