"""The views behind `app.jobs`, `app.dead`, `app.queues`, `app.workers` and `app.schedules`."""
