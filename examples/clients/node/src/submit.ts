// Submits jobs and waits for their results: node dist/submit.js HANDLER PAYLOAD [COUNT]
import { randomUUID } from 'node:crypto';
import { api, Cluster, namespace } from './cluster.js';
import type { SubmitJobResponse__Output as Submitted } from './gen/shardwheel/v1/SubmitJobResponse.js';
import type { WaitJobResponse__Output as Waited } from './gen/shardwheel/v1/WaitJobResponse.js';
import type { Job__Output } from './gen/shardwheel/v1/Job.js';

const [handler = 'example.echo', payload = '"hello"', count = '1'] = process.argv.slice(2);
const cluster = new Cluster(api.JobService);

async function submit(): Promise<string> {
  // The key makes the call safe to repeat: if the answer is lost, the next one names the same job.
  const job = {
    handler, payload: Buffer.from(payload), contentType: 'application/json', dedupeKey: randomUUID(),
    retry: { maxAttempts: 3 }, labels: { client: 'node' },
  };
  const response = await cluster.call<Submitted>((client, ...rest) => client.submitJob({ namespace, job }, ...rest));
  return response.job!.id;
}

async function wait(id: string): Promise<Job__Output> {
  for (;;) {
    const request = { namespace, id, maxWait: { seconds: 20 } };
    const response = await cluster.call<Waited>((client, ...rest) => client.waitJob(request, ...rest), 30_000);
    if (response.done) return response.job!;
  }
}

const ids: string[] = [];
for (let number = 0; number < Number(count); number++) ids.push(await submit());
console.log(`submitted ${ids.length}`);
let failed = 0;
for (const id of ids) {
  const job = await wait(id);
  if (job.state !== 'COMPLETED') failed++;
  console.log(`${id} ${job.state} ${job.state === 'COMPLETED' ? job.result : job.error?.message}`);
}
cluster.close();
process.exitCode = failed ? 1 : 0;
