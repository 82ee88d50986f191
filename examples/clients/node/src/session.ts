// The streams of a worker: one to every node, opened again when it breaks (docs/worker-protocol.md, "Streams").
import { status, type ClientDuplexStream, type ServiceError } from '@grpc/grpc-js';
import { addresses, api, credentials, metadata } from './cluster.js';
import type { Duration__Output as Duration } from './gen/google/protobuf/Duration.js';
import type { AttemptRef__Output as AttemptRef } from './gen/shardwheel/v1/AttemptRef.js';
import type { Hello } from './gen/shardwheel/v1/Hello.js';
import type { SessionRequest } from './gen/shardwheel/v1/SessionRequest.js';
import type { SessionResponse__Output as SessionResponse } from './gen/shardwheel/v1/SessionResponse.js';

export type Slots = Record<string, number>;

export interface Listener {
  hello(): Hello; // with everything that the worker holds at this moment
  welcomed(session: Session, superseded: AttemptRef[]): void;
  received(session: Session, response: SessionResponse): void;
  changed(): void; // a session has ended, or nodes came or went
  refused(reason: string): void; // it makes no sense to try again
}

const ANSWER_MS = 5_000;
const msOf = (span: Duration | null | undefined) => Number(span?.seconds ?? 0) * 1000 + (span?.nanos ?? 0) / 1e6;

export class Session {
  node = '';
  open = true;
  draining = false; // the node said that it is about to stop
  left = false; // the other nodes know it no more
  told = new Map<string, string>(); // the members, as the node knows them
  demand: Slots = {};
  credit: Slots = {}; // as sent last
  sequence = 0;
  ackedSequence = 0;
  private ended = false;
  private heard = Date.now();
  private beats = 0;

  constructor(private readonly call: ClientDuplexStream<SessionRequest, SessionResponse>) {}

  get retiring(): boolean { return this.draining || this.left; }
  send(request: SessionRequest): void { if (this.open && !this.ended) this.call.write(request); }
  end(): void { // after everything that was sent
    if (!this.ended) this.call.end();
    this.ended = true;
  }
  hear(): void { this.heard = Date.now(); }
  grant(credit: Slots): void {
    this.credit = credit;
    const credits = Object.entries(credit).map(([handler, slots]) => ({ handler, slots }));
    this.send({ credit: { sequence: ++this.sequence, credits } });
  }
  beat(silenceMs: number): void {
    // The connection may hang without an error: then only the missing answers tell.
    if (Date.now() - this.heard > silenceMs) this.call.cancel();
    else this.send({ heartbeat: { sequence: ++this.beats } });
  }
}

export class Sessions {
  readonly live = new Map<string, Session>(); // by node
  private members = new Map<string, string>(); // address by node
  private readonly dialling = new Set<string>(); // nodes, and '' for whatever node is behind a seed
  private seed = 0;
  private hellos: Promise<void> = Promise.resolve();
  private closed = false;
  private everWelcomed = false;

  constructor(private readonly listener: Listener) {
    setInterval(() => this.dial(), 200);
    this.dial();
  }

  // Takes in what a node says of who is there. It may have lost touch with the others, so what they say of it counts.
  setMembers(session: Session, told: Map<string, string>): void {
    session.told = told;
    const all = [...this.live.values()];
    const others = all.map((one) => [...one.told].filter(([node]) => node !== one.node));
    const alone = others.filter((one) => one.length > 0).length < 2;
    this.members = new Map([...others.flat(), ...(alone ? all.flatMap((one) => [...one.told]) : [])]);
    for (const one of all) one.left = this.members.size > 0 && !this.members.has(one.node);
    this.listener.changed();
  }

  close(): void { this.closed = true; }

  private dial(): void {
    if (this.closed) return;
    for (const [node, address] of this.members) if (!this.live.has(node)) void this.keep(node, address);
    // The cluster is found again through its first addresses after all the others have changed.
    if (this.live.size === 0) void this.keep('', addresses[this.seed++ % addresses.length]!);
  }

  private async keep(node: string, address: string): Promise<void> {
    if (this.dialling.has(node)) return;
    this.dialling.add(node);
    let client: InstanceType<typeof api.WorkerService> | undefined;
    try {
      const channel = (client = new api.WorkerService(address, credentials));
      await new Promise<void>((resolve, reject) =>
        channel.waitForReady(Date.now() + ANSWER_MS, (error) => (error ? reject(error) : resolve())));
      // One hello at a time: of two to one node, the second would not know what is unread on the first one's stream.
      const opened = this.hellos.then(() => this.open(channel, node));
      this.hellos = opened.then(() => {}, () => {});
      await (await opened).ended;
    } catch (error) {
      const { code, details } = error as ServiceError;
      console.log(`no session with ${address}: ${details ?? error}`);
      if (code === status.INVALID_ARGUMENT && !this.everWelcomed) this.listener.refused(details);
    } finally {
      client?.close();
      setTimeout(() => this.dialling.delete(node), 100 + Math.random() * 400);
    }
  }

  // Resolves with the welcome; `ended` of what it returns, with the end of the stream.
  private open(client: InstanceType<typeof api.WorkerService>, node: string): Promise<{ ended: Promise<void> }> {
    return new Promise((opened, failed) => {
      if (this.live.has(node) || (node === '' && this.live.size > 0)) return opened({ ended: Promise.resolve() });
      const call = client.session(metadata());
      const session = new Session(call);
      const unanswered = setTimeout(() => call.cancel(), ANSWER_MS);
      let beats: NodeJS.Timeout | undefined;
      let onEnd = () => {};
      const ended = new Promise<void>((resolve) => { onEnd = resolve; });
      call.on('data', (response: SessionResponse) => {
        if (!session.open) return;
        session.hear();
        if (response.message !== 'welcome') return this.listener.received(session, response);
        clearTimeout(unanswered);
        const { node: name, heartbeatInterval, leaseDuration, superseded } = response.welcome!;
        session.node = name;
        this.live.set(name, session);
        this.everWelcomed = true;
        console.log(`connected to ${name}`);
        beats = setInterval(() => session.beat((msOf(leaseDuration) * 2) / 3), msOf(heartbeatInterval));
        this.listener.welcomed(session, superseded);
        opened({ ended });
      });
      const end = (error?: ServiceError) => {
        if (!session.open) return;
        session.open = false;
        clearTimeout(unanswered);
        clearInterval(beats);
        if (this.live.get(session.node) === session) this.live.delete(session.node);
        failed(error ?? new Error('the stream ended before the welcome'));
        onEnd();
        this.listener.changed();
      };
      call.on('error', end);
      call.on('end', () => end());
      session.send({ hello: this.listener.hello() });
    });
  }
}
