// Node's side of the interop tests: one request as a line of JSON in, one answer as a line of JSON out.
// Started with the URL of Redis and, optionally, BullMQ's key prefix.
import { createInterface } from 'node:readline';
import { FlowProducer, Queue, QueueEvents, Worker } from 'bullmq';

const [url, prefix = 'bull'] = process.argv.slice(2);
const { hostname, port, pathname } = new URL(url);
const connection = { host: hostname, port: Number(port), db: Number(pathname.slice(1) || 0), maxRetriesPerRequest: null };
const queues = new Map();
const workers = [];
const listeners = [];
const seen = new Map();
const heard = new Map();

const queue = (name) => {
  if (!queues.has(name)) queues.set(name, new Queue(name, { connection, prefix }));
  return queues.get(name);
};

// What a job tells the handler to do stands in its data: {progress, log, hang, fails, result}.
const handle = async (job) => {
  const { progress, log, hang, fails = 0, result = null } = job.data ?? {};
  seen.get(job.queueName).push({ id: job.id, data: job.data, attemptsMade: job.attemptsMade, at: Date.now() });
  if (log) await job.log(log);
  if (progress !== undefined) await job.updateProgress(progress);
  if (hang) await new Promise(() => {});
  if (job.attemptsMade < fails) throw new Error(`failure ${job.attemptsMade + 1}`);
  return result;
};

// The state first: what is read after it is at least as new.
const describe = async (name, id) => {
  const state = await queue(name).getJobState(id);
  const job = await queue(name).getJob(id);
  return job ? { ...job.toJSON(), state, logs: (await queue(name).getJobLogs(id)).logs } : null;
};

const commands = {
  add: async ({ queue: name, name: job, data, opts }) => (await queue(name).add(job, data, opts)).id,
  flow: async ({ flow }) => (await new FlowProducer({ connection, prefix }).add(flow)).job.id,
  job: ({ queue: name, id }) => describe(name, id),
  counts: ({ queue: name }) => queue(name).getJobCounts(),
  workers: async ({ queue: name }) => (await queue(name).getWorkers()).map((worker) => worker.rawname),
  metrics: ({ queue: name, type }) => queue(name).getMetrics(type),
  limit: ({ queue: name, concurrency }) => queue(name).setGlobalConcurrency(concurrency),
  pause: ({ queue: name }) => queue(name).pause(),
  resume: ({ queue: name }) => queue(name).resume(),
  paused: ({ queue: name }) => queue(name).isPaused(),
  schedule: async ({ queue: name, id, repeat, template }) => (await queue(name).upsertJobScheduler(id, repeat, template)).id,
  schedulers: ({ queue: name }) => queue(name).getJobSchedulers(),
  work: async ({ queue: name, options }) => {
    seen.set(name, []);
    const worker = new Worker(name, handle, { connection, prefix, ...options });
    workers.push(worker);
    await worker.waitUntilReady();
  },
  seen: async ({ queue: name }) => seen.get(name),
  listen: async ({ queue: name }) => {
    const events = new QueueEvents(name, { connection, prefix });
    const log = [];
    heard.set(name, log);
    for (const type of ['added', 'active', 'completed', 'failed', 'progress', 'stalled', 'delayed', 'cancelled']) {
      events.on(type, (event) => log.push({ type, ...event }));
    }
    listeners.push(events);
    await events.waitUntilReady();
  },
  heard: async ({ queue: name }) => heard.get(name),
  close: async () => {
    await Promise.all([...workers, ...listeners, ...queues.values()].map((one) => one.close()));
  },
};

process.on('unhandledRejection', (error) => console.error(error));
for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...args } = JSON.parse(line);
  try {
    console.log(JSON.stringify({ answer: (await commands[command](args)) ?? null }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error.stack ?? error) }));
  }
  if (command === 'close') process.exit(0);
}
