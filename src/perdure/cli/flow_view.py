"""Read the jobs of one flow, and draw them as a tree or a Mermaid chart."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from .output import printable

if TYPE_CHECKING:
    from perdure import Job, Perdure

MOST = 2_000  # jobs to draw
PAGE = 500
MARKS = {
    "blocked": "…",
    "scheduled": "◷",
    "ready": "○",
    "running": "▶",
    "succeeded": "✓",
    "skipped": "–",
    "dead": "✗",
    "cancelled": "⊘",
}


async def flow_of(app: Perdure, id: str) -> list[Job]:
    """The jobs of the chain that a job belongs to, oldest first, at most about `MOST`."""
    from perdure import NotFound

    job = await app.jobs.get(id)
    if job is None:
        raise NotFound(f"there is no job {id}")
    jobs: list[Job] = []
    cursor = None
    while len(jobs) < MOST:
        page = await app.jobs.find(chain_id=job.chain_id, limit=PAGE, cursor=cursor)
        jobs += page.items
        cursor = page.cursor
        if cursor is None:
            break
    return sorted(jobs, key=lambda each: (each.created_at, each.id))


async def with_parents(app: Perdure, jobs: list[Job]) -> list[Job]:
    """The jobs, and the stored jobs of other chains that they wait or waited for."""
    found = {job.id: job for job in jobs}
    asked = set(found)
    waiting = [parent for job in jobs for parent in job.after]
    while waiting and len(found) < MOST:
        id = waiting.pop()
        if id in asked:
            continue
        asked.add(id)
        if (parent := await app.jobs.get(id)) is not None:
            found[id] = parent
            waiting += parent.after
    return sorted(found.values(), key=lambda each: (each.created_at, each.id))


def edges_of(jobs: list[Job]) -> list[tuple[UUID, UUID]]:
    """Pairs of (earlier, later): parents and followers, and jobs and their continuations."""
    there = {job.id for job in jobs}
    found = [(parent, job.id) for job in jobs for parent in job.after if parent in there]
    return found + [(job.id, job.next_id) for job in jobs if job.next_id in there and job.next_id is not None]


def draw_tree(jobs: list[Job]) -> list[str]:
    """Lines of a tree, roots first. A job with several parents is drawn below the first and named below the others."""
    children: dict[UUID, list[UUID]] = {}
    below: set[UUID] = set()
    for parent, child in edges_of(jobs):
        children.setdefault(parent, []).append(child)
        below.add(child)
    by_id = {job.id: job for job in jobs}
    lines: list[str] = []
    drawn: set[UUID] = set()
    stack = [(job.id, "", "") for job in reversed(jobs) if job.id not in below]
    while stack:
        id, lead, rest = stack.pop()
        again = id in drawn
        lines.append(f"{lead}{label(by_id[id])}{' (above)' if again and children.get(id) else ''}")
        if again:
            continue
        drawn.add(id)
        own = children.get(id, [])
        for number, child in reversed(list(enumerate(own))):
            last = number == len(own) - 1
            stack.append((child, f"{rest}{'└─ ' if last else '├─ '}", f"{rest}{'   ' if last else '│  '}"))
    return lines


def label(job: Job) -> str:
    return f"{MARKS[job.state.value]} {printable(job.task)} {job.state.value} {job.id}"


def draw_mermaid(jobs: list[Job]) -> list[str]:
    """Lines of a Mermaid flowchart."""
    names = {job.id: f"j{number}" for number, job in enumerate(jobs)}
    lines = ["flowchart TD"]
    lines += [f'    {names[job.id]}["{_escape(job.task)}<br/>{job.state.value}"]' for job in jobs]
    lines += [f"    {names[parent]} --> {names[child]}" for parent, child in edges_of(jobs)]
    return lines


def _escape(text: str) -> str:
    return printable(text).replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
