package example;

import com.google.protobuf.ByteString;
import java.time.Instant;
import shardwheel.v1.JobOuterClass.JobSpec;
import shardwheel.v1.ScheduleOuterClass.CronTiming;
import shardwheel.v1.ScheduleOuterClass.ScheduleSpec;
import shardwheel.v1.ScheduleServiceOuterClass.EnsureSchedulesRequest;
import shardwheel.v1.ScheduleServiceOuterClass.EnsureSchedulesResponse;
import shardwheel.v1.ScheduleServiceOuterClass.NamedScheduleSpec;
import shardwheel.v1.ScheduleServiceOuterClass.PreviewScheduleRequest;
import shardwheel.v1.ScheduleServiceOuterClass.PreviewScheduleResponse;

/** Stores a schedule and shows its next firings: {@code Schedule NAME HANDLER PAYLOAD CRON [TIME_ZONE]}. */
final class Schedule {
  public static void main(String[] arguments) throws InterruptedException {
    String[] values = {"example", "example.echo", "\"tick\"", "*/5 * * * *", "UTC"};
    System.arraycopy(arguments, 0, values, 0, Math.min(arguments.length, values.length));
    var spec = ScheduleSpec.newBuilder()
        .setCron(CronTiming.newBuilder().setExpression(values[3]).setTimeZone(values[4]))
        .setJob(JobSpec.newBuilder()
            .setHandler(values[1])
            .setPayload(ByteString.copyFromUtf8(values[2]))
            .setContentType("application/json"))
        .build();
    try (Cluster cluster = new Cluster()) {
      // Creates the schedule, or changes the one of that name; an unchanged one keeps its next firing.
      var ensure = EnsureSchedulesRequest.newBuilder()
          .setNamespace(Cluster.NAMESPACE)
          .addSchedules(NamedScheduleSpec.newBuilder().setName(values[0]).setSpec(spec))
          .build();
      var ensured = cluster.call(
          "ScheduleService/EnsureSchedules", ensure, EnsureSchedulesResponse.getDefaultInstance(), 10);
      System.out.println(values[0] + " " + ensured.getResults(0).getChange());
      var preview = cluster.call(
          "ScheduleService/PreviewSchedule",
          PreviewScheduleRequest.newBuilder().setSpec(spec).setCount(3).build(),
          PreviewScheduleResponse.getDefaultInstance(),
          10);
      System.out.println(preview.getDescription());
      preview.getFiringsList().forEach(one -> System.out.println(Instant.ofEpochSecond(one.getSeconds())));
    }
  }
}
