package example;

import com.google.protobuf.Duration;
import io.grpc.CallOptions;
import io.grpc.ConnectivityState;
import io.grpc.ManagedChannel;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.ClientResponseObserver;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import shardwheel.v1.WorkerServiceOuterClass.SessionRequest;
import shardwheel.v1.WorkerServiceOuterClass.SessionResponse;
import shardwheel.v1.WorkerServiceOuterClass.Welcome;

/** Keeps a session to every node. Used in the worker's loop only. */
final class Sessions {
  private static final int ANSWER_MS = 5000;
  private static final MethodDescriptor<SessionRequest, SessionResponse> SESSION = Cluster.method(
      MethodDescriptor.MethodType.BIDI_STREAMING, "WorkerService/Session",
      SessionRequest.getDefaultInstance(), SessionResponse.getDefaultInstance());

  /** By node. */
  final Map<String, Session> live = new TreeMap<>();

  private final Loop loop;
  private final Runner runner;
  private Map<String, String> members = Map.of();
  /** Nodes, and "" for whatever node is behind a seed. */
  private final Set<String> dialling = new HashSet<>();
  private int seed;
  /** Of two hellos to one node, the second would not know what is unread on the first one's stream: one at a time. */
  private boolean greeting;
  private boolean everWelcomed;
  private boolean closed;

  Sessions(Loop loop, Runner runner) {
    this.loop = loop;
    this.runner = runner;
    loop.every(200, this::dial);
  }

  void close() {
    closed = true;
  }

  void setMembers(Session of, Map<String, String> told) {
    of.told = told;
    members = Members.of(live.values());
    live.values().forEach(one -> one.left = !members.isEmpty() && !members.containsKey(one.node));
  }

  /** Seeds are dialled while there is no session: so the cluster is found again after all addresses have changed. */
  private void dial() {
    if (closed) {
      return;
    }
    members.forEach(this::keep);
    if (live.isEmpty()) {
      keep("", Cluster.ADDRESSES.get(seed++ % Cluster.ADDRESSES.size()));
    }
  }

  private void keep(String node, String address) {
    if (live.containsKey(node) || !dialling.add(node)) {
      return;
    }
    ManagedChannel channel = Cluster.dial(address);
    var timeout = loop.after(ANSWER_MS, () -> release(node, channel));
    awaitReady(channel, () -> {
      if (timeout.cancel(false)) {
        greet(node, address, channel);
      }
    });
  }

  private void awaitReady(ManagedChannel channel, Runnable then) {
    ConnectivityState state = channel.getState(true);
    if (state == ConnectivityState.READY || state == ConnectivityState.TRANSIENT_FAILURE) {
      then.run(); // the call that follows tells what is wrong
    } else if (state != ConnectivityState.SHUTDOWN) {
      channel.notifyWhenStateChanged(state, () -> loop.execute(() -> awaitReady(channel, then)));
    }
  }

  private void greet(String node, String address, ManagedChannel channel) {
    if (greeting) {
      loop.after(10, () -> greet(node, address, channel));
    } else if (closed || live.containsKey(node) || (node.isEmpty() && !live.isEmpty())) {
      release(node, channel);
    } else {
      greeting = true;
      new Stream(node, address, channel).open();
    }
  }

  private void release(String node, ManagedChannel channel) {
    channel.shutdownNow();
    loop.after(100 + ThreadLocalRandom.current().nextInt(400), () -> dialling.remove(node));
  }

  /** Brings what happens on a stream into the loop. */
  private final class Stream implements ClientResponseObserver<SessionRequest, SessionResponse> {
    private final String key;
    private final String address;
    private final ManagedChannel channel;
    private final Session session = new Session();
    private Future<?> unanswered;
    private Future<?> beats;

    Stream(String key, String address, ManagedChannel channel) {
      this.key = key;
      this.address = address;
      this.channel = channel;
    }

    void open() {
      unanswered = loop.after(ANSWER_MS, () -> session.cancel("no answer to hello"));
      ClientCalls.asyncBidiStreamingCall(Cluster.withToken(channel).newCall(SESSION, CallOptions.DEFAULT), this);
      session.send(SessionRequest.newBuilder().setHello(runner.hello()));
    }

    @Override
    public void beforeStart(ClientCallStreamObserver<SessionRequest> requests) {
      session.attach(requests);
    }

    @Override
    public void onNext(SessionResponse response) {
      loop.execute(() -> {
        session.heardAt = System.nanoTime();
        if (response.hasWelcome()) {
          welcome(response.getWelcome());
        } else {
          runner.received(session, response);
        }
      });
    }

    private void welcome(Welcome welcome) {
      unanswered.cancel(false);
      greeting = false;
      everWelcomed = true;
      session.node = welcome.getNode();
      live.put(session.node, session);
      System.out.println("connected to " + session.node);
      long silence = milliseconds(welcome.getLeaseDuration()) * 2 / 3;
      beats = loop.every(milliseconds(welcome.getHeartbeatInterval()), () -> session.beat(silence));
      runner.welcomed(welcome);
    }

    private static long milliseconds(Duration span) {
      return span.getSeconds() * 1000 + span.getNanos() / 1_000_000;
    }

    @Override
    public void onError(Throwable error) {
      loop.execute(() -> end(Status.fromThrowable(error)));
    }

    @Override
    public void onCompleted() {
      loop.execute(() -> end(Status.OK));
    }

    private void end(Status status) {
      session.open = false;
      unanswered.cancel(false);
      if (beats == null) {
        greeting = false;
      } else {
        beats.cancel(false);
      }
      live.remove(session.node, session);
      System.out.println("session with " + address + " ended: " + status);
      if (status.getCode() == Status.Code.INVALID_ARGUMENT && !everWelcomed) {
        System.err.println("the cluster refuses this worker");
        Runtime.getRuntime().halt(2);
      }
      release(key, channel);
      runner.changed();
    }
  }
}
