// One measurement in a process of its own, as child.py does it: node child.mjs QUEUE SPEC, where QUEUE is the file of a
// contender's Queue and SPEC is JSON.

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

import { DelayProbe, Probe, SharedProbe, now } from "./probe.mjs";

const SIZE = 100;
const DIGITS = 20;
const WARM_UP = 10;
const SETTLED_AFTER = 1000;

const payload = (number) => String(number).padStart(DIGITS, "0").padEnd(SIZE, "x");
const payloads = (count) => Array.from({ length: count }, (_, number) => payload(number));
const nothing = () => {};

const verbs = {
  async prepare() {
    return {};
  },

  async enqueue(queue, { way, jobs }) {
    const texts = payloads(jobs);
    await queue.put(payload(0));
    const started = now();
    if (way === "single") await queue.putEach(texts);
    else if (way === "bulk") await queue.putAll(texts);
    else await queue.putAtOnce(texts);
    return { seconds: now() - started, stored: (await queue.left()) - 1 };
  },

  async fill(queue, { jobs }) {
    await queue.putAll(payloads(jobs));
    return { stored: await queue.left() };
  },

  async drain(queue, { jobs, mode }) {
    const probe = new Probe(jobs);
    await queue.work(probe, mode, nothing, () => probe.settle(() => queue.left()));
    return { ...probe.account(), memory: peakMemory(), completed: (await queue.completed?.()) ?? null, waiting: await queue.left() };
  },

  async drain_long(queue, { jobs, on_record, window, patience }) {
    const probe = new Probe(jobs, { onRecord: on_record, window, patience });
    await queue.work(probe, "loop", nothing, () => probe.settle(() => queue.left()));
    return probe.account();
  },

  async drain_shared(queue, spec) {
    const probe = new SharedProbe(spec.jobs, spec);
    writeFileSync(join(spec.folder, `ready-${spec.own}`), "");
    while (!existsSync(join(spec.folder, "gate"))) await sleep(1);
    await queue.work(probe, "loop", nothing, () => probe.settle(() => queue.left()));
    return probe.account();
  },

  async receive(queue, { samples, ready }) {
    const probe = new DelayProbe(samples + WARM_UP);
    await queue.work(probe, "loop", () => writeFileSync(ready, ""), () => probe.wait());
    return { delays: probe.delays.slice(WARM_UP) };
  },

  async send(queue, { samples }) {
    await sleep(SETTLED_AFTER);
    for (let sent = 0; sent < samples + WARM_UP; sent += 1) {
      await sleep(5 + Math.random() * 35);
      await queue.put(payload(process.hrtime.bigint()));
    }
    return {};
  },

  async idle(queue, { seconds }) {
    const probe = new Probe(1);
    let cpu = 0;
    await queue.work(probe, "loop", nothing, async () => {
      await probe.wait();
      await sleep(SETTLED_AFTER);
      const [before, started] = [process.cpuUsage(), now()];
      await sleep(seconds * 1000);
      const used = process.cpuUsage(before);
      cpu = (used.user + used.system) / 1e6 / (now() - started);
    });
    return { cpu, memory: peakMemory() };
  },
};

const peakMemory = () => process.resourceUsage().maxRSS / 1024;

const { Queue } = await import(pathToFileURL(process.argv[2]));
const spec = JSON.parse(process.argv[3]);
const queue = await new Queue(readFileSync(join(spec.place, "address"), "utf8")).open();
const result = await verbs[spec.verb](queue, spec);
await queue.close();
writeFileSync(spec.result, JSON.stringify(result));
process.exit(0);
