// Runs jobs until SIGTERM: node dist/worker.js. SHARDWHEEL_GRACE is the time in seconds that running jobs then have.
import { setTimeout as sleep } from 'node:timers/promises';
import { Worker } from './runner.js';

const worker = new Worker({
  'example.echo': { maxConcurrency: 4, run: async (payload) => payload.toString() },
  'example.sleep': {
    maxConcurrency: 4,
    async run(payload, signal) {
      await sleep(Number(payload) * 1000, undefined, { signal });
      return '"slept"';
    },
  },
  'example.fail': { maxConcurrency: 4, run: async () => { throw new Error('as asked'); } },
});

async function stop(): Promise<void> {
  process.once('SIGTERM', () => process.exit(143)).once('SIGINT', () => process.exit(130));
  await worker.drain(Number(process.env.SHARDWHEEL_GRACE || 30) * 1000);
  process.exit(0);
}
process.once('SIGTERM', stop).once('SIGINT', stop);
