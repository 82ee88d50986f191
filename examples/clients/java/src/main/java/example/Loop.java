package example;

import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/** The one thread in which a worker thinks: nothing there needs a lock. What fails is printed, and the loop goes on. */
final class Loop {
  private final ScheduledExecutorService executor = Executors.newSingleThreadScheduledExecutor(Loop::daemon);

  void execute(Runnable task) {
    executor.execute(guarded(task));
  }

  Future<?> after(long milliseconds, Runnable task) {
    return executor.schedule(guarded(task), milliseconds, TimeUnit.MILLISECONDS);
  }

  Future<?> every(long milliseconds, Runnable task) {
    return executor.scheduleAtFixedRate(guarded(task), milliseconds, milliseconds, TimeUnit.MILLISECONDS);
  }

  /** Does something in the loop, and waits for its end. For other threads. */
  void run(Runnable task) throws Exception {
    executor.submit(task).get();
  }

  /** Waits for a condition, which is looked at in the loop, at most so long. For other threads. */
  void until(double seconds, Callable<Boolean> condition) throws Exception {
    long end = System.nanoTime() + (long) (seconds * 1e9);
    while (!executor.submit(condition).get() && System.nanoTime() < end) {
      Thread.sleep(20);
    }
  }

  static Thread daemon(Runnable task) {
    Thread thread = new Thread(task);
    thread.setDaemon(true);
    return thread;
  }

  private static Runnable guarded(Runnable task) {
    return () -> {
      try {
        task.run();
      } catch (RuntimeException error) {
        error.printStackTrace();
      }
    };
  }
}
