"""Django on PostgreSQL."""

from urllib.parse import urlsplit

import pytest

from .tools import tell_django

pytest.importorskip("django")

STORY = """
with connection.cursor() as cursor:
    cursor.execute("create temp table mine (a integer)")

for line in (connection, connections["default"]):
    told.clear()
    joined = task.using(connection=line)
    before = app.jobs.sync.count()
    refused(InvalidCall, "transaction.atomic", lambda: joined.sync.enqueue(0))

    # an error undoes both
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("insert into mine values (1)")
            joined.sync.enqueue(1)
            raise KeyError
    except KeyError:
        pass
    time.sleep(0.1)
    assert (told, app.jobs.sync.count()) == ([], before)

    # nested: the inner one that fails takes only its own jobs along
    with transaction.atomic():
        with transaction.atomic():
            job = joined.sync.enqueue(2)
        try:
            with transaction.atomic():
                gone = joined.using(queue="gone", unique=Unique("k", scope="any")).sync.enqueue(3)
                raise KeyError
        except KeyError:
            pass
        assert told == []
        assert app.jobs.sync.get(job.id) is None
    expect(["default"])
    assert job.sync.refresh().payload == '{"a":2}'
    assert app.jobs.sync.get(gone.id) is None
    assert app.jobs.sync.count() == before + 1

    # keys
    for scope in ("waiting", "active", "any", "window"):
        unique = joined.using(unique=Unique(scope, scope=scope, window=60 if scope == "window" else None))
        with transaction.atomic():
            first, second = app.sync.enqueue([unique.call(1), unique.call(2)])
        assert second.id == first.id and second.duplicate

    # aborted: inside, and after an inner block that broke the outer one
    with transaction.atomic():
        try:
            with transaction.atomic():
                try:
                    with connection.cursor() as cursor:
                        cursor.execute("select 1 / 0")
                except DatabaseError:
                    pass
                refused(StoreError, "aborted", lambda: joined.sync.enqueue(4))
                raise KeyError
        except KeyError:
            pass
        joined.using(queue="after").sync.enqueue(5)
    with transaction.atomic():
        transaction.set_rollback(True)
        refused(StoreError, "aborted", lambda: joined.sync.enqueue(4))

# a transaction that is begun and ended by hand
other = connections["second"]
other.set_autocommit(False)
job = task.using(connection=other).sync.enqueue(6)
assert app.jobs.sync.get(job.id) is None
other.commit()
assert job.sync.refresh().payload == '{"a":6}'
other.rollback()
other.set_autocommit(True)

# a thread has a connection of its own
def elsewhere():
    with transaction.atomic():
        handles.append(task.using(connection=connection).sync.enqueue(7))
    connection.close()

handles = []
thread = threading.Thread(target=elsewhere)
thread.start()
thread.join()
assert handles[0].sync.refresh().payload == '{"a":7}'

async def main():
    try:
        await task.using(connection=connection).enqueue(8)
    except InvalidCall as error:
        assert "blocking form" in str(error), error
    else:
        raise AssertionError
    from asgiref.sync import sync_to_async

    @transaction.atomic
    def view():
        return task.using(connection=connection).sync.enqueue(9)

    job = await sync_to_async(view)()
    assert job.id

asyncio.run(main())
connections.close_all()
app.sync.close()
"""


@pytest.mark.parametrize("options", [{}, {"server_side_binding": True}, {"pool": {"min_size": 1, "max_size": 4}}])
def test_django(app, options):
    parts = urlsplit(app._runtime.loops.url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "postgres",
        "HOST": parts.hostname,
        "PORT": parts.port,
        "OPTIONS": options,
    }
    tell_django(STORY, app._runtime.loops.url, {"default": database, "second": database})
