"""`python -m servers KIND`: run a server in the foreground, print its address, and stop it on Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys

from . import KINDS, NotAvailable, start


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="servers", description="Run a real server until Ctrl-C, then delete its data."
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--durable", action="store_true", help="wait for the disk, as the server does by default")
    chosen = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        with start(chosen.kind, durable=chosen.durable) as server:
            print(server.url, flush=True)
            while True:
                signal.pause()
    except NotAvailable as missing:
        print(f"{chosen.kind} is not available: {missing}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
