// What the queues in Node share: sizes, ways to enqueue, and what a job does.

import { setTimeout as sleep } from "node:timers/promises";

export const BULK = 5000; // jobs in a list
export const SLOTS = 50;
const WIDTH = 64;
const IO_MILLISECONDS = 10;

// A queue has `put` for one text and `putMany` for as many as a bulk call carries.
export class BaseQueue {
  async putAll(texts) {
    for (let start = 0; start < texts.length; start += BULK) await this.putMany(texts.slice(start, start + BULK));
  }

  async putEach(texts) {
    for (const text of texts) await this.put(text);
  }

  async putAtOnce(texts) {
    const slices = Array.from({ length: WIDTH }, (_, own) => texts.filter((_, index) => index % WIDTH === own));
    await Promise.all(slices.map((slice) => this.putEach(slice)));
  }
}

// What a job does: nothing, or ten milliseconds of waiting.
export const handler = (probe, mode) => async (text) => {
  if (mode === "io") {
    probe.begin();
    await sleep(IO_MILLISECONDS);
  }
  probe.call(text);
};
