// What a handler tells the benchmark, as probe.py does: that it was called, with which job, and when.

import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const DIGITS = 20;
const SETTLE_STEP = 2;

export const now = () => Number(process.hrtime.bigint()) / 1e9;

export class Probe {
  constructor(expected, { onRecord = expected, window = 0, patience = 240 } = {}) {
    this.expected = expected;
    this.onRecord = onRecord;
    this.patience = patience;
    this.calls = 0;
    this.firstCall = 0;
    this.allStored = 0;
    this.instants = [];
    this.window = window;
    this.seen = new Uint8Array(onRecord);
    this.finished = new Promise((resolve) => (this.finish = resolve));
  }

  begin() {
    this.firstCall ||= now();
  }

  call(text) {
    this.begin();
    this.note(text);
    this.calls += 1;
    if (this.window && this.calls % this.window === 0) this.instants.push(now());
    if (this.calls === this.expected) this.finish();
  }

  note(text) {
    this.seen[Number(text.slice(0, DIGITS))] = 1;
  }

  async wait() {
    await Promise.race([this.finished, sleep(this.patience * 1000, undefined, { ref: false })]);
  }

  // What is left tells how many are done, also where they are deleted then. Counting what is left of a deep backlog takes
  // a while, in which more are done: the instant is taken before the count, and scaled to the number that was expected.
  async settle(left) {
    await this.wait();
    const deadline = now() + this.patience;
    while (now() < deadline) {
      const instant = now();
      const done = this.onRecord - (await left());
      if (done >= this.expected) {
        this.allStored = this.firstCall + ((instant - this.firstCall) * this.expected) / done;
        return;
      }
      await sleep(SETTLE_STEP);
    }
    this.allStored = now();
  }

  account() {
    const distinct = this.seen.reduce((sum, mark) => sum + mark, 0);
    const windows = this.instants.map((instant, index) => instant - (this.instants[index - 1] ?? this.firstCall));
    return { calls: this.calls, distinct, seconds: this.allStored - this.firstCall, windows };
  }
}

export class DelayProbe extends Probe {
  delays = [];

  note(text) {
    this.delays.push(Number(process.hrtime.bigint() - BigInt(text.slice(0, DIGITS))) / 1e6);
  }
}

export class SharedProbe extends Probe {
  constructor(expected, { folder, own, processes }) {
    super(expected);
    Object.assign(this, { folder, own, processes });
  }

  async wait() {
    const deadline = now() + this.patience;
    while (this.published() < this.expected && now() < deadline) await sleep(SETTLE_STEP);
  }

  published() {
    const unfinished = join(this.folder, `.calls-${this.own}`);
    writeFileSync(unfinished, String(this.calls));
    renameSync(unfinished, join(this.folder, `calls-${this.own}`));
    const files = Array.from({ length: this.processes }, (_, number) => join(this.folder, `calls-${number}`));
    return files.filter(existsSync).reduce((sum, file) => sum + Number(readFileSync(file)), 0);
  }

  account() {
    writeFileSync(join(this.folder, `seen-${this.own}`), this.seen);
    return { ...super.account(), began: this.firstCall, ended: this.allStored };
  }
}
