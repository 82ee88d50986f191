package example;

import com.google.protobuf.Message;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientInterceptors;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import java.io.File;
import java.io.IOException;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/** How a program reaches the nodes: addresses, certificate and token come from the environment. */
final class Cluster implements AutoCloseable {
  static final String NAMESPACE = variable("SHARDWHEEL_NAMESPACE", "default");
  static final List<String> ADDRESSES =
      Stream.of(variable("SHARDWHEEL_ADDRESS", "localhost:7400").split(",")).map(String::trim).toList();

  private final List<ManagedChannel> channels = ADDRESSES.stream().map(Cluster::dial).toList();
  private int current = 0;

  static String variable(String name, String otherwise) {
    String value = System.getenv(name);
    return value == null || value.isEmpty() ? otherwise : value;
  }

  static ManagedChannel dial(String address) {
    String ca = variable("SHARDWHEEL_CA", "");
    try {
      ChannelCredentials credentials = ca.isEmpty()
          ? InsecureChannelCredentials.create()
          : TlsChannelCredentials.newBuilder().trustManager(new File(ca)).build();
      return Grpc.newChannelBuilder(address, credentials).build();
    } catch (IOException error) {
      throw new IllegalArgumentException("SHARDWHEEL_CA: " + error.getMessage(), error);
    }
  }

  /** Adds the token to all calls of a channel. */
  static Channel withToken(Channel channel) {
    String token = variable("SHARDWHEEL_TOKEN", "");
    Metadata headers = new Metadata();
    if (!token.isEmpty()) {
      headers.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + token);
    }
    return ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(headers));
  }

  /** What gRPC's code generator would write for a method; with it, no native plugin is needed to build this. */
  static <Q extends Message, A extends Message> MethodDescriptor<Q, A> method(
      MethodDescriptor.MethodType type, String name, Q request, A answer) {
    return MethodDescriptor.<Q, A>newBuilder(ProtoUtils.marshaller(request), ProtoUtils.marshaller(answer))
        .setType(type)
        .setFullMethodName("shardwheel.v1." + name)
        .build();
  }

  /** Calls one node after another until one answers; for calls that may be repeated. */
  @SuppressWarnings("unchecked") // a message's default instance is of its own class
  <Q extends Message, A extends Message> A call(String name, Q request, A answer, int timeoutSeconds)
      throws InterruptedException {
    var empty = (Q) request.getDefaultInstanceForType();
    var method = method(MethodDescriptor.MethodType.UNARY, name, empty, answer);
    for (int failures = 1; ; failures++) {
      var options = CallOptions.DEFAULT.withDeadlineAfter(timeoutSeconds, TimeUnit.SECONDS);
      var channel = withToken(channels.get(current % channels.size()));
      try {
        return ClientCalls.blockingUnaryCall(channel, method, options, request);
      } catch (StatusRuntimeException error) {
        if (failures >= 60 || !mayPass(error.getStatus())) {
          throw error;
        }
        current++;
        Thread.sleep(200 + ThreadLocalRandom.current().nextInt(300));
      }
    }
  }

  /** Whether another node may answer. A connection that breaks in the middle of a write is reported as UNKNOWN. */
  private static boolean mayPass(Status status) {
    return switch (status.getCode()) {
      case UNAVAILABLE, DEADLINE_EXCEEDED -> true;
      case UNKNOWN -> status.getCause() instanceof IOException;
      default -> false;
    };
  }

  @Override
  public void close() {
    channels.forEach(ManagedChannel::shutdownNow);
  }
}
