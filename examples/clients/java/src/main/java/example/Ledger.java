package example;

import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Predicate;
import shardwheel.v1.WorkerServiceOuterClass.AttemptRef;
import shardwheel.v1.WorkerServiceOuterClass.Report;

/** What a worker holds, and what it has said and heard of attempts. */
final class Ledger {
  /** From the assignment to the acknowledgement of the result, in the order of their coming. */
  final Map<AttemptRef, Attempt> attempts = new LinkedHashMap<>();
  /** Attempts that a node was told are not here. */
  private final Set<AttemptRef> disclaimed = new HashSet<>();
  /** By shard: the highest epoch seen on any stream. */
  private final Map<Integer, Long> epochs = new HashMap<>();

  List<Attempt> busy() {
    return attempts.values().stream().filter(one -> one.outcome == null).toList();
  }

  /** The attempt of a job that runs or waits here, null if there is none. */
  Attempt ofJob(long jobId) {
    return busy().stream().filter(one -> one.ours && one.job.getJobId() == jobId).findFirst().orElse(null);
  }

  /** Notes an epoch; false if a higher one has been seen: then the sender does not own the shard any more. */
  boolean accepts(int shard, long epoch) {
    return epoch >= epochs.merge(shard, epoch, Math::max);
  }

  /** Notes that a node is told that these are not here, as far as they are not. */
  void disclaim(Set<AttemptRef> asked) {
    asked.stream().filter(ref -> !attempts.containsKey(ref) || !attempts.get(ref).ours).forEach(disclaimed::add);
  }

  boolean disclaimed(AttemptRef ref) {
    return disclaimed.contains(ref);
  }

  Report.Builder report(long requestId, Predicate<AttemptRef> asked) {
    var report = Report.newBuilder().setRequestId(requestId);
    attempts.values().stream().filter(one -> one.ours && asked.test(one.ref)).forEach(one -> {
      if (one.outcome == null) {
        report.addRunning(one.ref);
      } else {
        report.addFinished(one.ref);
      }
    });
    return report;
  }
}
