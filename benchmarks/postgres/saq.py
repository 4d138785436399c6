"""SAQ on PostgreSQL."""

from benchmarks.contender import SLOTS
from benchmarks.saq import SaqContender

from .peer import Peer
from .place import address

POOL = 20


class Saq(SaqContender, Peer):
    module = "saq.queue.postgres"
    # Several statements for each job, no bulk form.
    share = 0.05
    store = {"max_size": POOL}
    settings = f"concurrency {SLOTS}, pool of {POOL} connections, jobs kept for an hour"
    waiting_query = "select count(*) from saq_jobs where status = 'queued'"
    completed_query = "select count(*) from saq_jobs where status = 'complete'"
    durability = SaqContender.bought_with("fsync at every commit", "every accepted job survives")

    def url(self) -> str:
        return address(self.place)
