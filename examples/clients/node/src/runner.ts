// What a worker does with each message, by the rules of docs/worker-protocol.md.
import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { namespace } from './cluster.js';
import type { Assignment__Output as Assignment } from './gen/shardwheel/v1/Assignment.js';
import type { AttemptRef } from './gen/shardwheel/v1/AttemptRef.js';
import type { Hello } from './gen/shardwheel/v1/Hello.js';
import type { Report } from './gen/shardwheel/v1/Report.js';
import type { SessionResponse__Output as SessionResponse } from './gen/shardwheel/v1/SessionResponse.js';
import { Attempt, keyOf, shardOf, type Outcome } from './attempt.js';
import { moveSlots } from './credit.js';
import { Sessions, type Session } from './session.js';

export type Handler = { maxConcurrency: number; run(payload: Buffer, stop: AbortSignal): Promise<string> };

export class Worker {
  private readonly name = process.env.SHARDWHEEL_WORKER || `${hostname()}-${process.pid}`;
  private readonly incarnation = String((randomBytes(8).readBigUInt64BE() >> 2n) + 1n); // new for each start
  private readonly attempts = new Map<string, Attempt>();
  private readonly epochs = new Map<number, bigint>(); // by shard: the highest seen on any stream
  private readonly disclaimed = new Set<string>(); // attempts that a node was told are not here
  private readonly sessions: Sessions;
  private stopping = false;
  readonly refused = (reason: string): void => { console.error(`refused: ${reason}`); process.exit(2); };

  constructor(private readonly handlers: Record<string, Handler>) {
    this.sessions = new Sessions(this);
    setInterval(() => this.changed(), 1000);
  }

  hello(): Hello {
    const named = Object.entries(this.handlers);
    const handlers = named.map(([handler, { maxConcurrency }]) => ({ handler, maxConcurrency }));
    const report = this.report(0, () => true);
    return { worker: this.name, incarnation: this.incarnation, namespace, handlers, report, sdk: 'node-example/1' };
  }

  welcomed(_: Session, superseded: AttemptRef[]): void {
    superseded.forEach((ref) => this.supersede(ref));
    this.changed();
  }

  received(session: Session, response: SessionResponse): void {
    switch (response.message) {
      case 'jobs': response.jobs!.jobs.forEach((job) => this.take(session, job)); return;
      case 'resultAcks': response.resultAcks!.acks.forEach((ack) => this.attempts.delete(keyOf(ack.attempt))); return;
      case 'cancels':
        for (const { attempt: ref, reason } of response.cancels!.cancels) {
          const attempt = this.attempts.get(keyOf(ref));
          if (reason === 'CANCEL_SUPERSEDED') this.supersede(ref!);
          else if (attempt && !attempt.outcome) this.stop(attempt, reason);
        }
        return;
      case 'ownerHello': {
        const { requestId, shards } = response.ownerHello!;
        for (const { shard, epoch } of shards) this.accepts(shard, BigInt(epoch));
        const owned = shards.map(({ shard }) => shard);
        session.send({ report: this.report(requestId, ({ jobId }) => owned.includes(shardOf(jobId)), owned) });
        return;
      }
      case 'audit': {
        const { requestId, attempts } = response.audit!;
        const asked = new Set(attempts.map(keyOf));
        for (const key of asked) if (!this.attempts.get(key)?.ours) this.disclaimed.add(key);
        session.send({ report: this.report(requestId, (ref) => asked.has(keyOf(ref))) });
        return;
      }
      case 'demand':
        session.demand = Object.fromEntries(response.demand!.demands.map(({ handler, waiting }) => [handler, waiting]));
        return this.grant();
      case 'creditAck': session.ackedSequence = Number(response.creditAck!.sequence); return this.grant();
      case 'members':
        this.sessions.setMembers(session, new Map(response.members!.members.map((one) => [one.node, one.address])));
        return;
      case 'drain': session.draining = true; return this.grant();
    }
  }

  changed(): void {
    this.sendResults();
    this.grant();
    const unacknowledged = (session: Session) => [...this.attempts.values()].some((one) => one.sentOn === session);
    for (const one of this.sessions.live.values()) if (one.left && !unacknowledged(one)) one.end();
  }

  // Lets running attempts end for a while, then stops them and gives them back; says goodbye last.
  async drain(graceMs: number): Promise<void> {
    this.stopping = true;
    this.grant();
    for (const one of this.busy()) if (!one.started) this.stop(one, 'SHUTDOWN');
    await this.until(() => this.busy().length === 0, graceMs);
    this.busy().forEach((one) => this.stop(one, 'SHUTDOWN'));
    await this.until(() => this.busy().length === 0, 5000);
    this.busy().forEach((one) => this.finish(one, { interrupted: {} })); // its handler does not stop
    await this.until(() => this.attempts.size === 0, 5000);
    this.sessions.close();
    for (const session of this.sessions.live.values()) {
      session.send({ goodbye: { reason: 'worker stops' } });
      session.end();
    }
    await this.until(() => this.sessions.live.size === 0, 1000);
  }

  private take(session: Session, job: Assignment): void {
    const attempt = new Attempt(job, session);
    if (this.attempts.has(keyOf(job))) return; // sent twice
    const older = this.busy().find((one) => one.ours && one.job.jobId === job.jobId);
    const late = older && BigInt(older.job.claim) > BigInt(job.claim);
    this.attempts.set(keyOf(job), attempt);
    const current = this.accepts(shardOf(job.jobId), BigInt(job.epoch));
    if (!current || late || this.stopping || this.disclaimed.has(keyOf(job)) || !this.handlers[job.handler]) {
      return this.finish(attempt, { interrupted: {} }); // given back: no try is burned
    }
    if (older) this.supersede(older.ref);
    this.startWaiting();
  }

  private accepts(shard: number, epoch: bigint): boolean {
    if (epoch < (this.epochs.get(shard) ?? 0n)) return false;
    this.epochs.set(shard, epoch);
    return true;
  }

  private startWaiting(): void {
    for (const [name, handler] of Object.entries(this.handlers)) {
      const busy = this.busy().filter((one) => one.job.handler === name);
      const places = handler.maxConcurrency - busy.filter((one) => one.started).length;
      for (const one of busy.filter((one) => !one.started).slice(0, Math.max(0, places))) void this.run(one, handler);
    }
  }

  private async run(attempt: Attempt, handler: Handler): Promise<void> {
    attempt.started = true;
    try {
      const result = Buffer.from(await handler.run(attempt.job.payload, attempt.abort.signal));
      this.finish(attempt, { completed: { result, contentType: 'application/json' } });
    } catch (error) {
      const { name: type, message } = error instanceof Error ? error : new Error(String(error));
      this.finish(attempt, attempt.reason ? this.stopped(attempt) : { failed: { error: { type, message } } });
    }
  }

  private stopped({ reason }: Attempt): Outcome {
    return reason === 'SHUTDOWN' ? { interrupted: {} } : { stopped: { reason: reason as 'CANCEL_REQUESTED' } };
  }

  private stop(attempt: Attempt, reason: string): void {
    attempt.reason ||= reason;
    if (attempt.started) attempt.abort.abort();
    else this.finish(attempt, this.stopped(attempt));
  }

  private supersede(ref: AttemptRef): void {
    const attempt = this.attempts.get(keyOf(ref));
    if (!attempt) return;
    attempt.ours = false;
    if (attempt.outcome) this.attempts.delete(keyOf(ref));
    else this.stop(attempt, 'CANCEL_SUPERSEDED');
  }

  private finish(attempt: Attempt, outcome: Outcome): void {
    if (attempt.outcome) return;
    attempt.outcome = outcome;
    if (!attempt.ours) this.attempts.delete(keyOf(attempt.ref)); // superseded: its result is dropped
    if (!this.stopping) this.startWaiting();
    this.changed();
  }

  private busy(): Attempt[] {
    return [...this.attempts.values()].filter((one) => !one.outcome);
  }

  // Sends what is not under way: on the stream on which the attempt came, where it frees its slot, else on any.
  private sendResults(): void {
    const live = [...this.sessions.live.values()];
    for (const one of this.attempts.values()) {
      if (!one.outcome || one.sentOn?.open) continue;
      one.sentOn = [one.session, ...live].find((session) => session.open && !session.retiring) ?? live[0];
      one.sentOn?.send({ results: { results: [{ attempt: one.ref, ...one.outcome }] } });
    }
  }

  private report(requestId: string | number, asked: (ref: AttemptRef) => boolean, shards: number[] = []): Report {
    const ours = [...this.attempts.values()].filter((one) => one.ours && asked(one.ref));
    const refs = (ended: boolean) => ours.filter((one) => !!one.outcome === ended).map((one) => one.ref);
    return { requestId, running: refs(false), finished: refs(true), shards };
  }

  private grant(): void {
    const limits = Object.entries(this.handlers).map(([name, { maxConcurrency }]) => [name, maxConcurrency] as const);
    moveSlots([...this.sessions.live.values()], limits, this.busy(), this.stopping);
  }

  private async until(condition: () => boolean, timeoutMs: number): Promise<void> {
    for (const end = Date.now() + timeoutMs; !condition() && Date.now() < end;) await sleep(20);
  }
}
