package example;

import java.security.SecureRandom;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import shardwheel.v1.WorkerServiceOuterClass.*;

/** What a worker does with each message, by docs/worker-protocol.md. Only {@link #drain} is for other threads. */
final class Runner {
  private final Loop loop = new Loop();
  private final String name;
  private final Map<String, Handler> handlers;
  private final Map<String, Integer> limits;
  private final long incarnation = (new SecureRandom().nextLong() >>> 2) + 1; // new for each start
  private final Ledger ledger = new Ledger();
  private final Sessions sessions;
  private boolean stopping;

  Runner(String name, Map<String, Handler> handlers) {
    this.name = name;
    this.handlers = handlers;
    limits = handlers.entrySet().stream()
        .collect(Collectors.toMap(Map.Entry::getKey, entry -> entry.getValue().maxConcurrency()));
    sessions = new Sessions(loop, this);
    loop.every(1000, this::changed);
  }

  Hello.Builder hello() {
    var hello = Hello.newBuilder().setWorker(name).setIncarnation(incarnation).setNamespace(Cluster.NAMESPACE)
        .setReport(ledger.report(0, ref -> true)).setSdk("java-example/1");
    limits.forEach((handler, limit) ->
        hello.addHandlers(HandlerRegistration.newBuilder().setHandler(handler).setMaxConcurrency(limit)));
    return hello;
  }

  void welcomed(Welcome welcome) {
    welcome.getSupersededList().forEach(this::supersede);
    changed();
  }

  void received(Session from, SessionResponse response) {
    switch (response.getMessageCase()) {
      case JOBS -> response.getJobs().getJobsList().forEach(job -> take(from, job));
      case RESULT_ACKS -> response.getResultAcks().getAcksList()
          .forEach(ack -> ledger.attempts.remove(ack.getAttempt()));
      case CANCELS -> response.getCancels().getCancelsList().forEach(this::cancel);
      case OWNER_HELLO -> {
        var owned = response.getOwnerHello();
        owned.getShardsList().forEach(one -> ledger.accepts(one.getShard(), one.getEpoch()));
        var shards = owned.getShardsList().stream().map(ShardEpoch::getShard).toList();
        from.report(ledger.report(owned.getRequestId(), ref -> shards.contains(Attempt.shardOf(ref.getJobId())))
            .addAllShards(shards));
      }
      case AUDIT -> {
        var asked = Set.copyOf(response.getAudit().getAttemptsList());
        ledger.disclaim(asked);
        from.report(ledger.report(response.getAudit().getRequestId(), asked::contains));
      }
      case DEMAND -> from.demand = response.getDemand().getDemandsList().stream()
          .collect(Collectors.toMap(HandlerDemand::getHandler, HandlerDemand::getWaiting));
      case CREDIT_ACK -> from.acknowledged = response.getCreditAck().getSequence();
      case MEMBERS -> sessions.setMembers(from, response.getMembers().getMembersList().stream()
          .collect(Collectors.toMap(Member::getNode, Member::getAddress)));
      case DRAIN -> from.draining = true;
      default -> { } // a heartbeat_ack, or a message of a newer node
    }
    changed();
  }

  /** Sends what has become possible or necessary. */
  void changed() {
    sendResults();
    Slots.move(sessions.live.values(), limits, ledger.busy(), stopping);
    for (Session one : List.copyOf(sessions.live.values())) {
      if (one.left && ledger.attempts.values().stream().noneMatch(attempt -> attempt.sentOn == one)) {
        one.end();
      }
    }
  }

  /** Lets running attempts end for a while, then stops them and gives them back; says goodbye last. */
  void drain(double graceSeconds) throws Exception {
    loop.run(() -> {
      stopping = true;
      ledger.busy().stream().filter(one -> !one.started)
          .forEach(one -> stop(one, CancelReason.CANCEL_REASON_UNSPECIFIED));
      changed();
    });
    loop.until(graceSeconds, () -> ledger.busy().isEmpty());
    loop.run(() -> ledger.busy().forEach(one -> stop(one, CancelReason.CANCEL_REASON_UNSPECIFIED)));
    loop.until(5, () -> ledger.busy().isEmpty());
    loop.run(() -> ledger.busy().forEach(one -> finish(one, Attempt.interrupted()))); // its handler does not stop
    loop.until(5, ledger.attempts::isEmpty);
    loop.run(() -> {
      sessions.close();
      for (Session one : sessions.live.values()) {
        one.send(SessionRequest.newBuilder().setGoodbye(Goodbye.newBuilder().setReason("worker stops")));
        one.end();
      }
    });
    loop.until(1, sessions.live::isEmpty);
  }

  private void take(Session from, Assignment job) {
    Attempt attempt = new Attempt(job, from);
    if (ledger.attempts.containsKey(attempt.ref)) {
      return; // sent twice
    }
    Attempt older = ledger.ofJob(job.getJobId());
    boolean late = older != null && older.job.getClaim() > job.getClaim();
    ledger.attempts.put(attempt.ref, attempt);
    boolean current = ledger.accepts(Attempt.shardOf(job.getJobId()), job.getEpoch());
    if (!current || late || stopping || ledger.disclaimed(attempt.ref) || !handlers.containsKey(job.getHandler())) {
      finish(attempt, Attempt.interrupted()); // given back: no try is burned
      return;
    }
    if (older != null) {
      supersede(older.ref);
    }
    startWaiting();
  }

  private void startWaiting() {
    limits.forEach((handler, limit) -> {
      var mine = ledger.busy().stream().filter(one -> one.job.getHandler().equals(handler)).toList();
      long places = limit - mine.stream().filter(one -> one.started).count();
      mine.stream().filter(one -> !one.started).limit(Math.max(0, places)).forEach(one ->
          handlers.get(handler).start(one, outcome -> loop.execute(() -> finish(one, outcome))));
    });
  }

  private void cancel(Cancel cancel) {
    Attempt attempt = ledger.attempts.get(cancel.getAttempt());
    if (cancel.getReason() == CancelReason.CANCEL_SUPERSEDED) {
      supersede(cancel.getAttempt());
    } else if (attempt != null && attempt.outcome == null) {
      stop(attempt, cancel.getReason());
    }
  }

  private void stop(Attempt attempt, CancelReason reason) {
    if (!attempt.stopped) {
      attempt.reason = reason;
      attempt.stopped = true;
    }
    Thread thread = attempt.thread;
    if (!attempt.started) {
      finish(attempt, attempt.stoppedResult());
    } else if (thread != null) {
      thread.interrupt();
    }
  }

  private void supersede(AttemptRef ref) {
    Attempt attempt = ledger.attempts.get(ref);
    if (attempt == null) {
      return;
    }
    attempt.ours = false;
    if (attempt.outcome != null) {
      ledger.attempts.remove(ref);
    } else {
      stop(attempt, CancelReason.CANCEL_SUPERSEDED);
    }
  }

  private void finish(Attempt attempt, Result.Builder outcome) {
    if (attempt.outcome != null) {
      return;
    }
    attempt.outcome = outcome.setAttempt(attempt.ref).build();
    if (!attempt.ours) {
      ledger.attempts.remove(attempt.ref); // superseded: its result is dropped
    }
    if (!stopping) {
      startWaiting();
    }
    changed();
  }

  /** Sends what is not under way: on the stream on which the attempt came, where it frees its slot, else on any. */
  private void sendResults() {
    for (Attempt one : ledger.attempts.values()) {
      if (one.outcome == null || (one.sentOn != null && one.sentOn.open)) {
        continue;
      }
      one.sentOn = Stream.concat(Stream.of(one.session), sessions.live.values().stream())
          .filter(session -> session.open && !session.retiring()).findFirst()
          .orElseGet(() -> sessions.live.values().stream().findFirst().orElse(null));
      if (one.sentOn != null) {
        one.sentOn.send(SessionRequest.newBuilder().setResults(ResultBatch.newBuilder().addResults(one.outcome)));
      }
    }
  }
}
