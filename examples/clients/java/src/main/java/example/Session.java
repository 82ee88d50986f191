package example;

import io.grpc.stub.ClientCallStreamObserver;
import java.util.HashMap;
import java.util.Map;
import shardwheel.v1.WorkerServiceOuterClass.Credit;
import shardwheel.v1.WorkerServiceOuterClass.Heartbeat;
import shardwheel.v1.WorkerServiceOuterClass.HandlerCredit;
import shardwheel.v1.WorkerServiceOuterClass.Report;
import shardwheel.v1.WorkerServiceOuterClass.SessionRequest;

/** One stream to one node. Used in the worker's loop only. */
final class Session {
  String node = "";
  boolean open = true;
  /** The node said that it is about to stop. */
  boolean draining;
  /** The other nodes know it no more. */
  boolean left;
  /** The members, as the node knows them. */
  Map<String, String> told = Map.of();
  Map<String, Integer> demand = Map.of();
  /** As sent last. */
  Map<String, Integer> credit = new HashMap<>();
  long sequence;
  long acknowledged;
  long heardAt = System.nanoTime();
  private long beats;
  private boolean ended;
  private ClientCallStreamObserver<SessionRequest> out;

  void attach(ClientCallStreamObserver<SessionRequest> requests) {
    out = requests;
  }

  boolean retiring() {
    return draining || left;
  }

  void send(SessionRequest.Builder request) {
    if (open && !ended) {
      out.onNext(request.build());
    }
  }

  void report(Report.Builder report) {
    send(SessionRequest.newBuilder().setReport(report));
  }

  void grant(Map<String, Integer> slots) {
    credit = slots;
    var message = Credit.newBuilder().setSequence(++sequence);
    slots.forEach((name, count) -> message.addCredits(HandlerCredit.newBuilder().setHandler(name).setSlots(count)));
    send(SessionRequest.newBuilder().setCredit(message));
  }

  /** The connection may hang without an error: then only the missing answers tell. */
  void beat(long silenceMs) {
    if (System.nanoTime() - heardAt > silenceMs * 1_000_000) {
      cancel("the node is silent");
    } else {
      send(SessionRequest.newBuilder().setHeartbeat(Heartbeat.newBuilder().setSequence(++beats)));
    }
  }

  /** Closes the stream after everything that was sent. */
  void end() {
    if (open && !ended) {
      ended = true;
      out.onCompleted();
    }
  }

  void cancel(String reason) {
    out.cancel(reason, null);
  }
}
