// Node's BullMQ as a contender: `node bullmq_node.js add PLAN` or `… work`, like bench/drive.py.
import fs from 'node:fs';
import { Queue, Worker } from 'bullmq';

const RING = 65536;
const NAME = process.env.BENCH_QUEUE;
const CONCURRENCY = 100;
const KEEPING = { removeOnComplete: { count: 100 }, removeOnFail: { count: 50 } };
const address = new URL(process.env.BENCH_URL);
const connection = { host: address.hostname, port: Number(address.port) };
const PADDING = 'p'.repeat(92);

const monotonic = () => Number(process.hrtime.bigint()) / 1e9;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const range = (start, end) => Array.from({ length: end - start }, (_, i) => start + i);

function payload(id) {
  return { id, t: monotonic(), email: 'someone@example.com', kind: 'welcome', tags: ['a', 'b'], pad: PADDING };
}

// The hits are kept in memory and written down every 250 jobs, or 10 ms after the last one.
class Recorder {
  constructor() {
    this.file = fs.openSync(process.env.BENCH_HITS, 'r+');
    this.doubles = new Float64Array(1 + 2 * RING);
    this.bytes = Buffer.from(this.doubles.buffer);
    this.count = 0;
    this.written = 0;
    this.timer = null;
  }

  hit(addedAt) {
    const now = monotonic();
    const place = this.count % RING;
    this.doubles[1 + place] = now;
    this.doubles[1 + RING + place] = now - addedAt;
    this.count += 1;
    if (this.count - this.written >= 250) this.write();
    else this.timer ??= setTimeout(() => this.write(), 10);
  }

  write() {
    clearTimeout(this.timer);
    this.timer = null;
    const [from, to] = [this.written % RING, ((this.count - 1) % RING) + 1];
    const [start, end] = from < to ? [from, to] : [0, RING];
    for (const base of [1, 1 + RING]) {
      fs.writeSync(this.file, this.bytes, 8 * (base + start), 8 * (end - start), 8 * (base + start));
    }
    this.doubles[0] = this.count;
    fs.writeSync(this.file, this.bytes, 0, 8, 0);
    this.written = this.count;
  }
}

const ways = {
  async single(queue, jobs) {
    for (let i = 0; i < jobs; i += 1) await queue.add('noop', payload(i), KEEPING);
  },
  async concurrent(queue, jobs) {
    const numbers = range(0, jobs).values();
    const addOn = async () => {
      for (const i of numbers) await queue.add('noop', payload(i), KEEPING);
    };
    await Promise.all(range(0, 100).map(addOn));
  },
  async bulk(queue, jobs) {
    for (let start = 0; start < jobs; start += 1000) {
      const batch = range(start, Math.min(start + 1000, jobs));
      await queue.addBulk(batch.map((i) => ({ name: 'noop', data: payload(i), opts: KEEPING })));
    }
  },
  async paced(queue, jobs) {
    const start = monotonic();
    for (let i = 0; i < jobs; i += 1) {
      const wait = start + i * 0.005 - monotonic();
      if (wait > 0) await sleep(wait * 1000);
      await queue.add('noop', payload(i), KEEPING);
    }
  },
};
ways.warm = ways.single;

async function add(plan) {
  const queue = new Queue(NAME, { connection });
  await queue.waitUntilReady();
  const rates = {};
  for (const [way, jobs] of Object.entries(plan)) {
    const start = monotonic();
    await ways[way](queue, jobs);
    rates[way] = jobs / (monotonic() - start);
  }
  console.log(JSON.stringify(rates));
  await queue.close();
}

function work() {
  const recorder = new Recorder();
  const worker = new Worker(NAME, async (job) => recorder.hit(job.data.t), { connection, concurrency: CONCURRENCY });
  worker.on('error', (error) => console.error(error.message));
}

const [what, plan] = process.argv.slice(2);
if (what === 'work') work();
else await add(JSON.parse(plan));
