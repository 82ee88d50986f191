package example;

import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/** Runs jobs until SIGTERM. SHARDWHEEL_GRACE is the time in seconds that running jobs then have. */
final class Worker {
  private static final Map<String, Handler> HANDLERS = Map.of(
      "example.echo", new Handler(4, payload -> payload),
      "example.fail", new Handler(4, payload -> {
        throw new IllegalStateException("as asked");
      }),
      "example.sleep", new Handler(4, payload -> {
        Thread.sleep((long) (Double.parseDouble(new String(payload, StandardCharsets.UTF_8)) * 1000));
        return "\"slept\"".getBytes(StandardCharsets.UTF_8);
      }));

  public static void main(String[] arguments) throws Exception {
    String host = InetAddress.getLocalHost().getHostName();
    String name = Cluster.variable("SHARDWHEEL_WORKER", host + "-" + ProcessHandle.current().pid());
    double grace = Double.parseDouble(Cluster.variable("SHARDWHEEL_GRACE", "30"));
    Runner runner = new Runner(name, HANDLERS);
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      try {
        runner.drain(grace);
      } catch (Exception error) {
        error.printStackTrace();
        Runtime.getRuntime().halt(1);
      }
      Runtime.getRuntime().halt(0); // else the exit code would be that of the signal
    }));
    Thread.currentThread().join();
  }
}
