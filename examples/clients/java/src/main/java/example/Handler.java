package example;

import com.google.protobuf.ByteString;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.Consumer;
import shardwheel.v1.JobOuterClass.JobError;
import shardwheel.v1.WorkerServiceOuterClass.Completed;
import shardwheel.v1.WorkerServiceOuterClass.Failed;
import shardwheel.v1.WorkerServiceOuterClass.Result;

/** Runs jobs, so many at a time; its thread is interrupted when one has to stop. */
record Handler(int maxConcurrency, Body body) {
  private static final ExecutorService THREADS = Executors.newCachedThreadPool(Loop::daemon);

  /** What a handler does. */
  interface Body {
    byte[] run(byte[] payload) throws Exception;
  }

  /** Starts an attempt; its outcome is told from another thread. */
  void start(Attempt attempt, Consumer<Result.Builder> ended) {
    attempt.started = true;
    THREADS.execute(() -> {
      attempt.thread = Thread.currentThread();
      try {
        if (attempt.stopped) {
          throw new InterruptedException();
        }
        byte[] result = body.run(attempt.job.getPayload().toByteArray());
        var completed = Completed.newBuilder().setContentType("application/json");
        ended.accept(Result.newBuilder().setCompleted(completed.setResult(ByteString.copyFrom(result))));
      } catch (Throwable error) { // whatever it is, the job has to hear of it
        ended.accept(attempt.stopped ? attempt.stoppedResult() : failed(error));
      } finally {
        attempt.thread = null;
      }
    });
  }

  private static Result.Builder failed(Throwable error) {
    var cause = JobError.newBuilder()
        .setType(error.getClass().getSimpleName())
        .setMessage(String.valueOf(error.getMessage()));
    return Result.newBuilder().setFailed(Failed.newBuilder().setError(cause));
  }
}
