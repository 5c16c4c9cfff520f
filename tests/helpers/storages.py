"""Closes the storages of studies."""


def close(storage):
    """Close the connections of a storage."""
    storage.remove_session()
    storage._backend.engine.dispose()
