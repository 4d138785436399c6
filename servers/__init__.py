"""Real servers for tests and benchmarks, from wheels: no Docker, no root, nothing installed on the system.

    with servers.start("postgres") as server:
        url = server.fresh()        # a schema that nobody used before
        server.kill()               # as kill -9 would, with all its processes
        server.restart()            # on the same data and port

`start` gives a server of one's own; `shared` one for all processes that name the same folder, stopped when the last of them
is gone. A server that the user already has is used instead where the environment names it: PERDURE_TEST_POSTGRESQL,
PERDURE_TEST_REDIS, PERDURE_TEST_MONGODB. A platform that has no such server raises NotAvailable, which says why.
"""

from .kinds import KINDS, Server, older_postgres, scheme, shared, start
from .process import NotAvailable

__all__ = ["KINDS", "NotAvailable", "Server", "older_postgres", "scheme", "shared", "start"]
