// BullMQ as its guide shows it: a queue, a worker, ioredis.

import { createRequire } from "node:module";
import { join } from "node:path";

import { BaseQueue, SLOTS, handler } from "../../node/base.mjs";

const require = createRequire(join(process.env.PERDURE_BENCH_MODULES, "package.json"));
const bullmq = require("bullmq");
const { Redis } = require("ioredis");

const QUEUE = "bench";
const NAME = "noop";

export class Queue extends BaseQueue {
  constructor(address) {
    super();
    this.connection = new Redis(address, { maxRetriesPerRequest: null });
  }

  async open() {
    this.queue = new bullmq.Queue(QUEUE, { connection: this.connection });
    await this.queue.waitUntilReady();
    return this;
  }

  async close() {
    await this.queue.close();
    await this.connection.quit();
  }

  put(text) {
    return this.queue.add(NAME, { text });
  }

  putMany(texts) {
    return this.queue.addBulk(texts.map((text) => ({ name: NAME, data: { text } })));
  }

  left() {
    return this.queue.getJobCountByTypes("waiting", "active");
  }

  completed() {
    return this.queue.getCompletedCount();
  }

  // Runs until `done` is over.
  async work(probe, mode, ready, done) {
    const handle = handler(probe, mode);
    const worker = new bullmq.Worker(QUEUE, (job) => handle(job.data.text), {
      connection: this.connection.duplicate(),
      concurrency: SLOTS,
    });
    worker.on("error", () => {});
    await worker.waitUntilReady();
    ready();
    await done();
    await worker.close();
  }
}
