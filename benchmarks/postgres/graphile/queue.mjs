// Graphile Worker in its batched mode: a local queue of 500, completions gathered for as long as a turn of the loop.

import { createRequire } from "node:module";
import { join } from "node:path";

import { BaseQueue, SLOTS, handler } from "../../node/base.mjs";

const require = createRequire(join(process.env.PERDURE_BENCH_MODULES, "package.json"));
const { makeWorkerUtils, run, Logger } = require("graphile-worker");
const { Pool } = require("pg");

const NAME = "noop";
const POOL = 20;
const silent = new Logger(() => () => {});

export class Queue extends BaseQueue {
  constructor(address) {
    super();
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

  putMany(texts) {
    return this.utils.addJobs(texts.map((text) => ({ identifier: NAME, payload: { text } })));
  }

  async left() {
    const { rows } = await this.pool.query("select count(*)::int as left from graphile_worker._private_jobs");
    return rows[0].left;
  }

  // Runs until `done` is over.
  async work(probe, mode, ready, done) {
    const handle = handler(probe, mode);
    const runner = await run({
      pgPool: this.pool,
      taskList: { [NAME]: ({ text }) => handle(text) },
      noHandleSignals: true,
      logger: silent,
      preset: {
        worker: {
          concurrentJobs: SLOTS,
          localQueue: { size: 500 },
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
