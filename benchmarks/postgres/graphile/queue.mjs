// Graphile Worker in its batched mode: a local queue of 500, completions gathered for as long as a turn of the loop.

import { createRequire } from "node:module";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(join(process.env.HOLDFAST_BENCH_NODE, "package.json"));
const { makeWorkerUtils, run, Logger } = require("graphile-worker");
const { Pool } = require("pg");

const NAME = "noop";
const BULK = 500;
const WIDTH = 64;
const SLOTS = 50;
const POOL = 20;
const IO_MILLISECONDS = 10;
const silent = new Logger(() => () => {});

export class Queue {
  constructor(address) {
    this.pool = new Pool({ connectionString: address, max: POOL });
    this.pool.on("error", () => {});
  }

  async open() {
    this.utils = await makeWorkerUtils({ pgPool: this.pool, logger: silent });
    await this.utils.migrate();
    return this;
  }

  async close() {
    await this.utils.release();
    await this.pool.end();
  }

  put(text) {
    return this.utils.addJob(NAME, { text });
  }

  async putAll(texts) {
    for (let start = 0; start < texts.length; start += BULK) {
      const chunk = texts.slice(start, start + BULK);
      await this.utils.addJobs(chunk.map((text) => ({ identifier: NAME, payload: { text } })));
    }
  }

  async putEach(texts) {
    for (const text of texts) await this.put(text);
  }

  async putAtOnce(texts) {
    const slices = Array.from({ length: WIDTH }, (_, own) => texts.filter((_, index) => index % WIDTH === own));
    await Promise.all(slices.map((slice) => this.putEach(slice)));
  }

  async left() {
    const { rows } = await this.pool.query("select count(*)::int as left from graphile_worker._private_jobs");
    return rows[0].left;
  }

  // Runs until `done` is over.
  async work(probe, mode, ready, done) {
    const noop = async ({ text }) => {
      if (mode === "io") {
        probe.begin();
        await sleep(IO_MILLISECONDS);
      }
      probe.call(text);
    };
    const runner = await run({
      pgPool: this.pool,
      taskList: { [NAME]: noop },
      noHandleSignals: true,
      logger: silent,
      preset: {
        worker: {
          concurrentJobs: SLOTS,
          localQueue: { size: BULK },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
          maxPoolSize: POOL,
        },
      },
    });
    ready();
    await done();
    await runner.stop();
  }
}
