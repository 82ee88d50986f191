// One execution of a job, from its assignment until a node has acknowledged its result.
import type { Assignment__Output as Assignment } from './gen/shardwheel/v1/Assignment.js';
import type { AttemptRef } from './gen/shardwheel/v1/AttemptRef.js';
import type { Result } from './gen/shardwheel/v1/Result.js';
import type { Session } from './session.js';

export type Outcome = Omit<Result, 'attempt'>;

export class Attempt {
  readonly ref: AttemptRef;
  readonly abort = new AbortController();
  started = false;
  ours = true; // until it is superseded; then its handler may still run, and occupies a slot
  reason = ''; // why it has to stop
  outcome?: Outcome; // once it has ended; it is kept until a node has acknowledged it
  sentOn?: Session;
  constructor(readonly job: Assignment, readonly session: Session) {
    this.ref = { jobId: job.jobId, claim: job.claim };
  }
}

export const keyOf = (ref: { jobId?: unknown; claim?: unknown } | null) => `${ref?.jobId}/${ref?.claim}`;
export const shardOf = (jobId: unknown) => Number(BigInt(String(jobId)) & 4095n);
