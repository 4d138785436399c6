-- Which queues are paused: asked by every claim, however many queues have settings.
CREATE INDEX perdure_queues_paused ON perdure_queues (name) WHERE paused = 1;
