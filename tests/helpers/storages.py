"""Closes the storages of studies."""


def close(storage):
    """Close the connections of a storage; a journal has none."""
    storage.remove_session()
    if hasattr(storage._backend, "engine"):
        storage._backend.engine.dispose()
