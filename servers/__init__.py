"""Real servers for tests and benchmarks, from wheels: no Docker, no root, nothing installed on the system.

    with servers.start("postgres") as server:
        url = server.fresh()        # a new schema
        server.kill()               # kill -9 of all its processes
        server.restart()            # on the same data and port

`start` starts a private server. `shared` starts one for all processes that name the same folder; it stops with the last of
them. If PERDURE_TEST_POSTGRESQL, PERDURE_TEST_REDIS or PERDURE_TEST_MONGODB names a server, that one is used instead. On a
platform without such a server, both raise NotAvailable with the reason.
"""

from .kinds import KINDS, Server, older_postgres, scheme, shared, start
from .process import NotAvailable

__all__ = ["KINDS", "NotAvailable", "Server", "older_postgres", "scheme", "shared", "start"]
