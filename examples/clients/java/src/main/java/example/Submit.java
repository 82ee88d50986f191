package example;

import com.google.protobuf.ByteString;
import com.google.protobuf.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import shardwheel.v1.JobOuterClass.Job;
import shardwheel.v1.JobOuterClass.JobSpec;
import shardwheel.v1.JobOuterClass.RetryPolicy;
import shardwheel.v1.JobServiceOuterClass.SubmitJobRequest;
import shardwheel.v1.JobServiceOuterClass.SubmitJobResponse;
import shardwheel.v1.JobServiceOuterClass.WaitJobRequest;
import shardwheel.v1.JobServiceOuterClass.WaitJobResponse;

/** Submits jobs and waits for their results: {@code Submit HANDLER PAYLOAD [COUNT]}. */
final class Submit {
  public static void main(String[] arguments) throws InterruptedException {
    String handler = arguments.length > 0 ? arguments[0] : "example.echo";
    String payload = arguments.length > 1 ? arguments[1] : "\"hello\"";
    int count = arguments.length > 2 ? Integer.parseInt(arguments[2]) : 1;
    int failed = 0;
    try (Cluster cluster = new Cluster()) {
      List<Long> ids = new ArrayList<>();
      while (ids.size() < count) {
        ids.add(submit(cluster, handler, payload));
      }
      System.out.println("submitted " + ids.size());
      for (long id : ids) {
        Job job = await(cluster, id);
        boolean completed = job.getState() == Job.State.COMPLETED;
        failed += completed ? 0 : 1;
        String text = completed ? job.getResult().toStringUtf8() : job.getError().getMessage();
        System.out.println(id + " " + job.getState() + " " + text);
      }
    }
    System.exit(failed > 0 ? 1 : 0);
  }

  private static long submit(Cluster cluster, String handler, String payload) throws InterruptedException {
    JobSpec job = JobSpec.newBuilder()
        .setHandler(handler)
        .setPayload(ByteString.copyFromUtf8(payload))
        .setContentType("application/json")
        // The key makes the call safe to repeat: if the answer is lost, the next one names the same job.
        .setDedupeKey(UUID.randomUUID().toString())
        .setRetry(RetryPolicy.newBuilder().setMaxAttempts(3))
        .putLabels("client", "java")
        .build();
    var request = SubmitJobRequest.newBuilder().setNamespace(Cluster.NAMESPACE).setJob(job).build();
    var response = cluster.call("JobService/SubmitJob", request, SubmitJobResponse.getDefaultInstance(), 10);
    return response.getJob().getId();
  }

  private static Job await(Cluster cluster, long id) throws InterruptedException {
    var request = WaitJobRequest.newBuilder()
        .setNamespace(Cluster.NAMESPACE)
        .setId(id)
        .setMaxWait(Duration.newBuilder().setSeconds(20))
        .build();
    while (true) {
      var response = cluster.call("JobService/WaitJob", request, WaitJobResponse.getDefaultInstance(), 30);
      if (response.getDone()) {
        return response.getJob();
      }
    }
  }
}
