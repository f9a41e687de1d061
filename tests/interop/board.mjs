// Bull Board as its users run it. Started with the URL of Redis and the queues to show; prints its port when it listens.
import { createBullBoard } from '@bull-board/api';
import { BullMQAdapter } from '@bull-board/api/bullMQAdapter';
import { ExpressAdapter } from '@bull-board/express';
import { Queue } from 'bullmq';
import express from 'express';

const [url, ...names] = process.argv.slice(2);
const { hostname, port, pathname } = new URL(url);
const connection = { host: hostname, port: Number(port), db: Number(pathname.slice(1) || 0) };
const serverAdapter = new ExpressAdapter();
const queues = names.map((name) => new BullMQAdapter(new Queue(name, { connection })));
createBullBoard({ queues, serverAdapter });
const server = express().use(serverAdapter.getRouter()).listen(0, '127.0.0.1', () => console.log(server.address().port));
