package example;

import shardwheel.v1.WorkerServiceOuterClass.Assignment;
import shardwheel.v1.WorkerServiceOuterClass.AttemptRef;
import shardwheel.v1.WorkerServiceOuterClass.CancelReason;
import shardwheel.v1.WorkerServiceOuterClass.Interrupted;
import shardwheel.v1.WorkerServiceOuterClass.Result;
import shardwheel.v1.WorkerServiceOuterClass.Stopped;

/** One execution of a job, from its assignment until a node has acknowledged its result. */
final class Attempt {
  final Assignment job;
  final AttemptRef ref;
  final Session session;
  boolean started;
  /** Until it is superseded; then its handler may still run, and occupies a slot. */
  boolean ours = true;
  /** It was told to stop. Read by the handler's thread, too. */
  volatile boolean stopped;
  /** Why; none if the worker stops. Set before {@link #stopped}. */
  CancelReason reason = CancelReason.CANCEL_REASON_UNSPECIFIED;
  /** The handler's thread, while it runs. */
  volatile Thread thread;
  /** Once it has ended; kept until a node has acknowledged it. */
  Result outcome;
  Session sentOn;

  Attempt(Assignment job, Session session) {
    this.job = job;
    this.session = session;
    ref = AttemptRef.newBuilder().setJobId(job.getJobId()).setClaim(job.getClaim()).build();
  }

  static int shardOf(long jobId) {
    return (int) (jobId & 4095);
  }

  static Result.Builder interrupted() {
    return Result.newBuilder().setInterrupted(Interrupted.getDefaultInstance());
  }

  Result.Builder stoppedResult() {
    return reason == CancelReason.CANCEL_REASON_UNSPECIFIED
        ? interrupted()
        : Result.newBuilder().setStopped(Stopped.newBuilder().setReason(reason));
  }
}
