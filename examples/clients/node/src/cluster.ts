// How a program reaches the cluster: addresses, certificate and token come from the environment.
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import * as grpc from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import type { ProtoGrpcType as JobApi } from './gen/job_service.js';
import type { ProtoGrpcType as ScheduleApi } from './gen/schedule_service.js';
import type { ProtoGrpcType as WorkerApi } from './gen/worker_service.js';

const env = process.env;
export const addresses = (env.SHARDWHEEL_ADDRESS || 'localhost:7400').split(',').map((one) => one.trim());
export const namespace = env.SHARDWHEEL_NAMESPACE || 'default';
export const credentials = env.SHARDWHEEL_CA
  ? grpc.credentials.createSsl(readFileSync(env.SHARDWHEEL_CA))
  : grpc.credentials.createInsecure();

export function metadata(): grpc.Metadata {
  const headers = new grpc.Metadata();
  if (env.SHARDWHEEL_TOKEN) headers.set('authorization', `Bearer ${env.SHARDWHEEL_TOKEN}`);
  return headers;
}

// 64 bit integers are strings and enums are names, as the generated types say.
const definition = loadSync(
  ['job', 'schedule', 'worker'].map((one) => `shardwheel/v1/${one}_service.proto`),
  {
    includeDirs: [fileURLToPath(new URL('../../../../proto', import.meta.url))],
    longs: String, enums: String, defaults: true, oneofs: true,
  },
);
type Api = JobApi & ScheduleApi & WorkerApi;
export const api = (grpc.loadPackageDefinition(definition) as unknown as Api).shardwheel.v1;

type Rest<Response> = [grpc.Metadata, grpc.CallOptions, grpc.requestCallback<Response>];

// Calls a node after another until one answers; for calls that may be repeated.
export class Cluster<Client extends grpc.Client> {
  private readonly clients: Client[];
  private current = 0;

  constructor(kind: new (address: string, credentials: grpc.ChannelCredentials) => Client) {
    this.clients = addresses.map((address) => new kind(address, credentials));
  }

  async call<Response>(send: (client: Client, ...rest: Rest<Response>) => void, timeoutMs = 10_000): Promise<Response> {
    for (let failures = 1; ; failures++) {
      const client = this.clients[this.current % this.clients.length]!;
      const options = { deadline: Date.now() + timeoutMs };
      try {
        return await new Promise((resolve, reject) =>
          send(client, metadata(), options, (error, response) => (response ? resolve(response) : reject(error))));
      } catch (error) {
        const { code } = error as grpc.ServiceError;
        if (failures >= 60 || (code !== grpc.status.UNAVAILABLE && code !== grpc.status.DEADLINE_EXCEEDED)) throw error;
        this.current++;
        await sleep(200 + Math.random() * 300);
      }
    }
  }

  close(): void {
    for (const client of this.clients) client.close();
  }
}
