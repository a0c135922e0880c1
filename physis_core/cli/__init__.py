"""The `physis` command."""
