"""The tasks of `perdure demo`: an app as you would write your own.

Its store is $PERDURE_URL. Each worker of the demo is `perdure worker perdure.cli.commands.demo.tasks:app`.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from perdure import Backoff, Context, Perdure

# A short lease: the jobs of a killed worker come back within seconds.
app = Perdure(
    imports=["perdure.cli.commands.demo.end_with_parent"], lease=2.0, backoff=Backoff.fixed(0.3), max_attempts=3
)
folder = Path(os.environ.get("PERDURE_DEMO", "."))


@app.task(queue="shop")
async def thumbnail(ctx: Context, picture: int, seconds: float) -> None:
    """An effect outside the store: a line in a file. If the worker dies after the line, the next attempt repeats it."""
    await asyncio.sleep(seconds / 2)
    write_line("thumbnails", picture)
    await asyncio.sleep(seconds / 2)


@app.task(queue="shop")
async def charge(ctx: Context, order: int, seconds: float) -> None:
    """An effect inside the store: one commit for the row and the completion. However often the handler runs, there is
    one receipt."""
    write_line("charges", order)
    await asyncio.sleep(seconds)
    tx = await ctx.transaction()
    await tx.execute("insert into receipts (order_number) values (?)", (order,))


@app.task(queue="shop")
async def fetch(ctx: Context, page: int) -> None:
    """Fail in the first attempt, as networks do."""
    if ctx.job.attempt == 1:
        raise ConnectionError(f"page {page}: connection reset")
    write_line("fetches", page)


@app.task(queue="shop")
def invoice(order: int) -> str:
    """Fail until the price list exists. After three attempts the job is a dead letter."""
    prices = (folder / "prices.txt").read_text()
    return f"order {order}: {prices.strip()}"


@app.task
async def remind(text: str) -> str:
    return text


@app.task
async def report(ctx: Context, pages: int) -> int:
    for page in range(1, pages + 1):
        await asyncio.sleep(0.15)
        await ctx.progress({"page": page, "of": pages})
    await ctx.log(f"wrote {pages} pages")
    return pages


@app.task
async def endless(ctx: Context) -> None:
    write_line("endless", "started")
    try:
        await asyncio.sleep(3600)
    finally:
        write_line("endless", f"stopped: {ctx.lost.reason}")


@app.task(queue="race")
async def tiny(number: int) -> int:
    return number


@app.task
async def open_shop(ctx: Context) -> None:
    """Create a table of your own in the same database."""
    tx = await ctx.transaction()
    await tx.execute("create table receipts (order_number integer not null)")


@app.task
async def receipts(ctx: Context) -> list[int]:
    tx = await ctx.transaction()
    return [number for (number,) in await tx.execute("select order_number from receipts")]


def write_line(name: str, value: object) -> None:
    """Append one line in a single write, outside the store: evidence that the handler ran."""
    handle = os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, f"{value}\n".encode())
    finally:
        os.close(handle)


def lines(name: str) -> list[str]:
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []
