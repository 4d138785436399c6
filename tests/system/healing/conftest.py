from tests.support.every_store import app, store

__all__ = ["app", "store"]
