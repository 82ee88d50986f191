// Stores a schedule and shows its next firings: node dist/schedule.js NAME HANDLER PAYLOAD CRON [TIME_ZONE]
import { api, Cluster, namespace } from './cluster.js';
import type { EnsureSchedulesResponse__Output as Ensured } from './gen/shardwheel/v1/EnsureSchedulesResponse.js';
import type { PreviewScheduleResponse__Output as Preview } from './gen/shardwheel/v1/PreviewScheduleResponse.js';

const [name = 'example', handler = 'example.echo', payload = '"tick"', expression = '*/5 * * * *', timeZone = 'UTC'] =
  process.argv.slice(2);
const cluster = new Cluster(api.ScheduleService);
const spec = {
  cron: { expression, timeZone },
  job: { handler, payload: Buffer.from(payload), contentType: 'application/json' },
};

// Creates the schedule, or changes the one of that name; an unchanged one keeps its next firing.
const schedules = [{ name, spec }];
const request = { namespace, schedules };
const ensured = await cluster.call<Ensured>((client, ...rest) => client.ensureSchedules(request, ...rest));
console.log(`${name} ${ensured.results[0]!.change}`);
const preview = await cluster.call<Preview>((client, ...rest) => client.previewSchedule({ spec, count: 3 }, ...rest));
console.log(preview.description);
for (const { seconds } of preview.firings) console.log(new Date(Number(seconds) * 1000).toISOString());
cluster.close();
